//go:build linux && (amd64 || arm64)

package relay

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// Inner runs PID 1 of a sandbox in tier gvisor: init (package guest) and the inner end of the relay, in one process.
// The conductor (package gvisor) starts it in the sandbox's own kernel, with the pipes of the relay as standard input
// and output. The process is part of every memory image of that kernel. Inner returns the exit code of the process. The
// sandbox ends when it exits.
func Inner() int {
	if err := inner(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-inner:", err)
		return 1
	}
	return 0
}

func inner() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	in, out, err := takePipes()
	if err != nil {
		return err
	}
	ours, inits := initlink.NewLinks()
	served := make(chan error, 1)
	go func() {
		err := guest.Serve(inits)
		inits.Shutdown() // the sandbox ends when init ends
		served <- err
	}()
	r := Inside(ours, in, out)
	return errors.Join(r.Run(), <-served)
}

// takePipes moves the relay's pipes to descriptors that commands do not use. The pipes are non-blocking, so that a
// reader waits in the Go scheduler's poll, and not in a system call, for which the scheduler would poll repeatedly.
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
			return nil, nil, fmt.Errorf("receive descriptor %d: %w", i, err)
		}
		*f = os.NewFile(uintptr(fd), [...]string{"from the conductor", "to the conductor"}[i])
	}
	return in, out, nil
}
