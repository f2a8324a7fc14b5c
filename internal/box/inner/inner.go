//go:build linux && (amd64 || arm64)

// Package inner is PID 1 of a sandbox in tier gvisor: init (package guest), and the inner
// end of the relay that brings it the keeper's messages, in one process. It is started by
// the conductor (package gvisor) with the relay's pipes as standard input and output, in
// a kernel of the sandbox's own, and goes on in every copy that is made of that kernel.
//
// Package box imports it, which is started as this process; it imports box/guest,
// box/relay and box/plan.
package inner

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/relay"
)

// Main is PID 1. It gives the exit code of the process, with which the sandbox ends.
func Main() int {
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(24 << 20)
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
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make the stream to init: %w", err)
	}
	served := make(chan error, 1)
	go func() { served <- guest.Serve(guest.NewLink(pair[1])) }()
	r := relay.Inside(guest.NewLink(pair[0]), in, out)
	return errors.Join(r.Run(), <-served)
}

// takePipes moves the relay's pipes out of the way of commands. They stay as they are,
// blocking: the kernel that the sandbox goes on in binds them to others.
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
		if err != nil {
			return nil, nil, fmt.Errorf("take over descriptor %d: %w", i, err)
		}
		*f = os.NewFile(uintptr(fd), [...]string{"from the conductor", "to the conductor"}[i])
	}
	return in, out, nil
}
