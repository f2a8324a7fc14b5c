//go:build linux && (amd64 || arm64)

package guest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

func TestWithKnownHosts_CopiesHostsOnly(t *testing.T) {
	t.Parallel()
	const have = "# comment\na.example ssh-ed25519 AAAA note\nroot:$6$salt$hash:19000:0:99999:7:::\n" +
		"@revoked * ssh-rsa BBBB\n-----BEGIN PRIVATE KEY-----\nMIIB\nus\n" +
		"my password ssh-secret\na ssh-rsa\n@revoked a b ssh-rsa\n"
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
	const want = "Include /etc/ssh/ssh_config.d/*.conf\nHost *\nSendEnv LANG LC_*\nPort=22\n"
	const first = "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2 " + plan.SSHHosts + "\n"
	if got != first+want {
		t.Errorf("%q", got)
	}
	for _, other := range []string{"root:x:0\n", "secret\n", have + "token abc\n", "GLOBALKNOWNHOSTSFILE /a\n",
		"-----BEGIN PRIVATE KEY-----\n"} {
		if got := withSSHConfig([]byte(other)); got != nil {
			t.Errorf("%q: %q", other, got)
		}
	}
}

// TestWithSSHConfig_Large has the largest file that a sandbox can plant: the start must not wait for it.
func TestWithSSHConfig_Large(t *testing.T) {
	const lines = limit.TrustStoreBytes / 4
	large := []byte(strings.Repeat("tag\n", lines))
	if n := testing.AllocsPerRun(1, func() { withSSHConfig(large) }); n > 5*lines {
		t.Errorf("%v allocations", n)
	}
}

// TestReplacedTrust checks that a resumed sandbox trusts the new gate alone, also over SSH.
func TestReplacedTrust(t *testing.T) {
	t.Parallel()
	before, now := authority(t), authority(t)
	for _, of := range []func([]byte) []byte{func(ca []byte) []byte { return ca }, plan.KnownHosts} {
		have := "first\n" + string(of(before)) + "last\n"
		if got, want := string(replacedTrust([]byte(have), before, now)), "first\n"+string(of(now))+"last\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// authority returns a certificate with a new key of the kind of a gate's.
func authority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
