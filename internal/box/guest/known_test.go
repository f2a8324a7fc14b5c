//go:build linux && (amd64 || arm64)

package guest

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
)

func TestWithKnownHosts_CopiesHostsOnly(t *testing.T) {
	t.Parallel()
	const have = "# comment\na.example ssh-ed25519 AAAA note\nroot:$6$salt$hash:19000:0:99999:7:::\n@revoked * ssh-rsa BBBB\n" +
		"-----BEGIN PRIVATE KEY-----\nMIIB\nus\n"
	const line = "@cert-authority * ecdsa-sha2-nistp256 CCCC coppice-gate\n"
	const want = line + "a.example ssh-ed25519 AAAA note\n@revoked * ssh-rsa BBBB\n"
	if got := string(withKnownHosts([]byte(have), []byte(line))); got != want {
		t.Errorf("%q", got)
	}
	if got := string(withKnownHosts([]byte(want), []byte(line))); got != want {
		t.Errorf("again: %q", got)
	}
}

func TestWithSSHConfig(t *testing.T) {
	t.Parallel()
	const have = "# comment\n\nInclude /etc/ssh/ssh_config.d/*.conf\n\nHost *\n\tSendEnv LANG LC_*\n    Port=22\n"
	got := string(withSSHConfig([]byte(have)))
	if want := "Include /etc/ssh/ssh_config.d/*.conf\nHost *\nSendEnv LANG LC_*\nPort=22\n"; !strings.HasSuffix(got, want) ||
		!strings.HasPrefix(got, "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts ") || !strings.Contains(got, plan.SSHHosts) {
		t.Errorf("%q", got)
	}
	for _, other := range []string{"root:x:0\n", "secret\n", have + "token abc\n", "GLOBALKNOWNHOSTSFILE /a\n",
		"-----BEGIN PRIVATE KEY-----\n"} {
		if got := withSSHConfig([]byte(other)); got != nil {
			t.Errorf("%q: %q", other, got)
		}
	}
}
