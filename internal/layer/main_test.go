package layer

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

// TestMain runs the tests as uid 0 in a mount namespace: of the machine if root started it, otherwise of a user
// namespace, as the daemon does.
func TestMain(m *testing.M) {
	const inside = "COPPICE_LAYER_TEST_NS"
	if os.Getenv(asUser) != "" {
		os.Exit(m.Run())
	}
	if os.Getenv(inside) != "" {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			fmt.Println("make mounts private:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	cmd := exec.Cmd{
		Path: "/proc/self/exe", Args: os.Args, Env: append(os.Environ(), inside+"=1"),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL},
	}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	signal.Ignore(os.Interrupt)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Println("SKIP: no mount namespace:", err)
		os.Exit(0)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}
