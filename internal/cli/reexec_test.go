//go:build linux && (amd64 || arm64)

package cli_test

import (
	"os"
	"os/exec"
	"regexp"
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
		if found := kernels.FindString(string(out)); found != "" {
			t.Errorf("%s has initialised gVisor: %s", name, found)
		}
	}
}

// kernels are the packages of gVisor's kernel, in a trace.
var kernels = regexp.MustCompile(`(?m)^init gvisor\.dev/gvisor/(runsc|pkg/sentry)/.*`)

// Linking gVisor in would add to each start of the program more than all of the rest takes.
func TestTheCommandLineDoesNotWaitForGVisor(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("coppice", "--version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\ninit net/http ") {
		t.Fatalf("no trace: %v: %q", err, out)
	}
	if found := kernels.FindString(string(out)); found != "" {
		t.Errorf("the command line has initialised gVisor: %s", found)
	}
	gvisor := &exec.Cmd{Path: "/proc/self/exe", Args: []string{"coppice-gvisor"}, Env: cmd.Env}
	if out, _ := gvisor.CombinedOutput(); !kernels.Match(out) {
		t.Errorf("a conductor has not initialised gVisor: %q", out)
	}
}
