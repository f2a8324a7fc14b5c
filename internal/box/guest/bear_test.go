//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// bears is set in the environment of the process that has init's handlers.
const bears = "COPPICE_TEST_BEARS"

// TestSignals_OnlyFaultsAreFatal checks that the process survives signals from other processes, and that a fault of its
// own ends it.
func TestSignals_OnlyFaultsAreFatal(t *testing.T) {
	if os.Getenv(bears) != "" {
		bearToTheFault(t)
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestSignals_OnlyFaultsAreFatal$")
	cmd.Env = append(os.Environ(), bears+"=1")
	out, err := cmd.CombinedOutput()
	var end *exec.ExitError
	if !errors.As(err, &end) || end.ExitCode() != 2 || string(out) != "borne\n" {
		t.Errorf("%q, %v; want exit code 2, by the handler", out, err)
	}
}

func bearToTheFault(t *testing.T) {
	bearSignals()
	for sig := unix.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
			continue
		}
		for range 10 {
			if err := unix.Kill(os.Getpid(), sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("borne")
	page[0] = 1
	t.Fatal("the fault did not end the process")
}
