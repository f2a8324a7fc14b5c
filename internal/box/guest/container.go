//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Contained runs init as PID 1 of a container that a conductor (package oci) has had made, and returns the exit code of
// the process. The conductor sends the sandbox's root, which it has made with MakeRoot; the container has a directory
// initlink.WorldView to mount it at.
func Contained() int {
	_ = os.WriteFile("/proc/self/comm", []byte(initlink.Argv0), 0) // for ps
	if err := runContained(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-init:", err)
		return 1
	}
	return 0
}

func runContained() error {
	if err := closeInherited(); err != nil {
		return fmt.Errorf("close the runtime's descriptors: %w", err)
	}
	if err := unix.CloseRange(initlink.FD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	from := initlink.NewLink(initlink.SetupFD)
	m, err := from.Recv()
	if err != nil {
		return fmt.Errorf("wait for the plan: %w", err)
	}
	more, err := from.Recv()
	var out initlink.Outside
	if err == nil {
		err = more.Decode(&out)
	}
	if err != nil {
		return fmt.Errorf("wait for the plan: %w", err)
	}
	if len(more.FDs) != 1 {
		return fmt.Errorf("the sandbox's root came as %d descriptors", len(more.FDs))
	}
	root := more.FDs[0]
	err = enterContainer(out, root)
	unix.Close(root)
	if err != nil {
		return errors.Join(err, from.Send(initlink.MsgReady, initlink.Ready{Err: initlink.WireError(err)}))
	}
	if err := from.Send(initlink.MsgReady, initlink.Ready{}); err != nil {
		return fmt.Errorf("answer the conductor: %w", err)
	}
	from.Close()
	return serveAs(initlink.NewLink(initlink.FD), m, out.Weak)
}

// setUpContained takes over a container's root. With g.Tell, the descriptor of the tally of refused calls came with the
// plan.
func (d *daemon) setUpContained(g plan.Guest, fds []int) error {
	d.pid1 = true
	if g.Tell != (len(fds) == 1) || len(fds) > 1 {
		return fault.New(fault.Internal, "the plan came with %d descriptors", len(fds))
	}
	if g.Tell {
		if err := d.countRefusals(fds[0]); err != nil {
			return err
		}
	}
	bearSignals()
	return nil
}

// ProcLimits returns the paths of /proc that a sandbox does not see, and those that it cannot write.
func ProcLimits() (masked, readOnly []string) {
	for _, names := range [][]string{procHiddenFiles, procHiddenDirs} {
		for _, name := range names {
			masked = append(masked, "/proc/"+name)
		}
	}
	for _, name := range procReadOnly {
		readOnly = append(readOnly, "/proc/"+name)
	}
	return masked, readOnly
}
