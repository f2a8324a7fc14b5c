//go:build linux && (amd64 || arm64)

// Package inner is PID 1 of a sandbox in tier gvisor: init (package guest), and the inner
// end of the relay that brings it the keeper's messages, in one process. It is started by
// the conductor (package gvisor) with the relay's pipes as standard input and output, in
// a kernel of the sandbox's own, and goes on in every copy that is made of that kernel.
//
// In the other tiers init is package guest alone. The binary becomes either here, before it
// initialises what neither uses.
//
// Package box imports it, which starts it; it imports box/guest, box/relay and box/plan.
package inner

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/box/relay"
)

// init makes the process a sandbox's init when the binary was started by one of its names,
// so that no program that imports this package has to. It does nothing else.
func init() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case plan.InnerPath:
		os.Exit(Main()) //nolint:forbidigo // the process is PID 1 of a sandbox's own kernel and nothing more
	case guest.Argv0:
		os.Exit(guest.Main()) //nolint:forbidigo // the process is a sandbox's init and nothing more
	}
}

// Main is PID 1. It gives the exit code of the process, with which the sandbox ends.
func Main() int {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-inner:", err)
		return 1
	}
	return 0
}

func run() error {
	// What packages of this binary have opened as they were initialised is none of a
	// command's: gVisor's has a pipe (fsimpl/gofer, host_named_pipe.go).
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	in, out, err := takePipes()
	if err != nil {
		return err
	}
	ours, inits := guest.NewLinks()
	served := make(chan error, 1)
	go func() {
		err := guest.Serve(inits)
		inits.Shutdown() // an init that ends ends the sandbox
		served <- err
	}()
	r := relay.Inside(ours, in, out)
	return errors.Join(r.Run(), <-served)
}

// takePipes moves the relay's pipes out of the way of commands. Who waits for what comes
// waits in the Go scheduler's poll, and not in a system call of its own, for whose end the
// scheduler would look again and again.
func takePipes() (in, out *os.File, err error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	for i, f := range []**os.File{&in, &out} {
		fd, err := unix.FcntlInt(uintptr(i), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			err = unix.Dup3(null, i, 0)
		}
		if err == nil && i == 0 {
			err = unix.SetNonblock(fd, true)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("take over descriptor %d: %w", i, err)
		}
		*f = os.NewFile(uintptr(fd), [...]string{"from the conductor", "to the conductor"}[i])
	}
	return in, out, nil
}
