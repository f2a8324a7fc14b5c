//go:build linux && (amd64 || arm64)

package cli_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The two processes of a box are this program too, and begin before the packages
// are initialised that only the daemon needs and that take long: each sandbox would
// wait for them twice.
func TestABoxDoesNotWaitForTheDaemonsPackages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"coppice-keeper", "coppice-init"} {
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{name}, Env: append(os.Environ(), "GODEBUG=inittrace=1")}
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s without a plan has not failed", name)
		}
		if !strings.Contains(string(out), "\ninit net ") {
			t.Fatalf("%s: no trace: %q", name, out)
		}
		for _, slow := range []string{"github.com/danielgtaylor/huma/v2", "github.com/google/jsonschema-go/jsonschema", "modernc.org/libc", "modernc.org/sqlite", "oras.land/oras-go/v2/registry"} {
			if strings.Contains(string(out), "\ninit "+slow+" @") {
				t.Errorf("%s has initialised %s", name, slow)
			}
		}
	}
}
