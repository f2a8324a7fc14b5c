//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
)

// shown is a program that a sandbox with its own kernel has in its memory: coppice-init, which is PID 1 there, or
// coppice. A memory image can be resumed only with that same program, even after coppice was replaced.
type shown struct {
	name string
	at   string   // a magic link of /proc to the program
	kept *os.File // the program of an image, locked: the store keeps a locked program until the keeper exits; or nil
	was  state
}

// state detects that a program was overwritten in place.
type state struct{ size, seconds, nanos int64 }

func stateOf(fd int) (state, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return state{st.Size, st.Mtim.Sec, st.Mtim.Nsec}, err
}

// set chooses the program called name: that of an image, at the path kept, or, if kept is "", that at the magic link
// own.
func (s *shown) set(name, kept, own string) (err error) {
	s.close() // left from a failed attempt
	s.name, s.at = name, own
	if kept != "" {
		if s.kept, err = lockedProgram(kept); err != nil {
			return fault.Wrap(err, "open a program of the memory image")
		}
		s.at = program.Path(s.kept)
	}
	f, err := os.Open(s.at)
	if err == nil {
		s.was, err = stateOf(int(f.Fd()))
		f.Close()
	}
	return fault.Wrap(err, "open a program to be shown inside")
}

// lockedProgram opens the file at path for reading, and takes a shared lock on it.
func lockedProgram(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// file opens the program as the conductor can mount it: a detached read-only mount, or a file in memory. The caller
// closes it.
func (s *shown) file() (*os.File, error) { return readOnly(s.name, s.at) }

// open opens the program for reading. The caller closes it. sandbox is the name of the sandbox.
func (s *shown) open(sandbox string) (*os.File, error) {
	f, err := os.Open(s.at)
	if err != nil {
		return nil, fault.Wrap(err, "open a program that is shown inside")
	}
	now, err := stateOf(int(f.Fd()))
	if err == nil && now != s.was {
		err = fault.New(fault.Conflict,
			"a program of coppice in the sandbox was overwritten while it ran, so the sandbox's memory cannot be resumed").
			WithHint("restart the sandbox: coppice stop %s; replace coppice by renaming a new file into place", sandbox)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (s *shown) close() {
	if s.kept != nil {
		s.kept.Close()
		s.kept = nil
	}
}
