//go:build linux && (amd64 || arm64)

package box

import (
	"time"

	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Where no namespace ends the processes of a box, the keeper ends them. If the keeper is killed, init ends them; if
// init is killed as well, they run on. So the keeper of a locked workspace creates a file before the first command
// (procs.ExpectEnd), and removes it when no process is left. A box with that file has not ended until procs.ProveEnd
// succeeds.

const (
	// provePatience bounds the wait for processes that init ends after its keeper was killed, which takes it two seconds
	// at most.
	provePatience = 3 * time.Second
	// A box whose end is not proved is looked at every proveAgain, and all processes of the host every proveEvery times.
	proveAgain = time.Second
	proveEvery = 10
)

// proveEnd returns nil if no process of a locked workspace is left whose keeper in runDir has ended. It waits up to
// patience for those that are left. held reports that it does not know, since a keeper or another call holds the run
// directory.
func proveEnd(runDir string, patience time.Duration) (held bool, err error) {
	if expected, err := procs.EndExpected(runDir); err != nil || !expected {
		return false, err
	}
	return whileFree(runDir, func() error { return procs.ProveEnd(runDir, patience) })
}

// awaitEnd waits until no process is left after the exit of the keeper. It returns false if Close was called first.
func (b *Box) awaitEnd() bool {
	held, err := proveEnd(b.runDir, provePatience)
	for tries := 1; held || err != nil; tries++ {
		if err != nil && !isOver(b.unproven) {
			close(b.unproven)
		}
		select {
		case <-b.closing:
			return false
		case <-time.After(proveAgain):
		}
		if expected, e := procs.EndExpected(b.runDir); e == nil && !expected {
			return true // another call has proved it
		}
		if held || tries%proveEvery == 0 {
			held, err = proveEnd(b.runDir, 0)
		}
	}
	return true
}

// isOver reports whether a channel is closed.
func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// unended returns why the box has not ended although its keeper has exited: a Conflict. It returns nil if the keeper
// runs, or the box has ended or is about to be found so.
func (b *Box) unended() error {
	if !isOver(b.unproven) {
		return nil
	}
	held, err := proveEnd(b.runDir, 0)
	for i := 0; held && i < 100; i++ { // awaitEnd looks
		time.Sleep(lockLook)
		held, err = proveEnd(b.runDir, 0)
	}
	if held {
		return fault.New(fault.Conflict, "the sandbox's monitor was killed, and another process holds %s", b.runDir).
			WithHint("try again")
	}
	return err
}
