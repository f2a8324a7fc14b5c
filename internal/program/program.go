//go:build linux

// Package program finds the helper programs, which users never start themselves: Init, Gate and Sentry, with which the
// daemon runs sandboxes, and Broker, built from cmd/coppice-init, cmd/coppice-gate, cmd/coppice-sentry and
// cmd/coppice-broker. They are separate programs so that a process in or around a sandbox contains no more code than it
// needs. It also provides the running program, coppice, which sandboxes show.
//
// A release embeds them: `make build` compresses them into the coppice program (build tag embed), which unpacks each
// one once into a file that is named by its digest. A program built otherwise, as by go install, finds them in a
// directory, and refuses those of another version.
//
// Packages box, daemon and secret/client import it.
package program

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/visible"
)

// Name is the name of a helper program.
type Name string

// The helper programs.
const (
	Init   Name = "coppice-init"   // keeper, PID 1 of sandboxes, and the host's self-tests
	Gate   Name = "coppice-gate"   // egress gate of one sandbox
	Sentry Name = "coppice-sentry" // gVisor, for tier gvisor
	Broker Name = "coppice-broker" // holds the values of secrets
)

// Names lists all helper programs.
var Names = [...]Name{Init, Gate, Sentry, Broker}

// Set provides the helper programs of one build. Its methods are safe for concurrent use.
type Set struct {
	embedded fs.FS  // SHA256SUMS and compressed programs, in "embedded"; or nothing
	unpacked string // directory of unpacked programs
	beside   string // directory of programs that are not embedded

	mu   sync.Mutex
	open map[Name]*os.File // guarded by mu
}

// New returns the programs of this build. Embedded programs are unpacked into the directory unpacked, which is created
// when needed; no other user may write there. Other programs are in the directory beside, or, if it is "", in that of
// the running program.
func New(unpacked, beside string) *Set {
	return &Set{embedded: files, unpacked: unpacked, beside: beside, open: map[Name]*os.File{}}
}

// File returns the program, open for reading and verified. It is executed through its descriptor (/proc/self/fd), so
// that the executed file is the verified one. The Set owns the file, which stays open until Close. An Unsupported fault
// says which program is missing or of another version, and how to install it.
func (s *Set) File(name Name) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened(name, func() (*os.File, error) {
		f, err := s.unpack(name)
		if errors.Is(err, errNotEmbedded) {
			return s.find(name)
		}
		return f, err
	})
}

// opened returns the open file of a program, which open opens the first time. The caller holds mu.
func (s *Set) opened(name Name, open func() (*os.File, error)) (*os.File, error) {
	if f := s.open[name]; f != nil {
		return f, nil
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	if f, err = Executable(f); err != nil {
		return nil, err
	}
	s.open[name] = f
	return f, nil
}

// aboveGiven is more than the number of descriptors passed to any child process.
const aboveGiven = 16

// Executable returns f with a descriptor that a child process still has when it executes Path(f): the low numbers are
// used for the files passed to the child. It closes f.
func Executable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, aboveGiven)
	if err != nil {
		return nil, fault.Wrap(err, "keep %s open", f.Name())
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Guard returns a duplicate of f, to be passed in its place to a child that executes Path(exe). Before the child
// executes, package syscall moves the files that it passes to numbers above the highest of them, and replaces what is
// open there (go.dev/issue/61751). So one of the files must have a number above that of exe: the duplicate has. The
// caller closes it.
func Guard(exe, f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, int(exe.Fd())+1)
	if err != nil {
		return nil, fault.Wrap(err, "duplicate %s", f.Name())
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Path returns the path by which a child process executes f, a file of Executable. One of the files passed to the child
// must be from Guard. The caller keeps f open until the child has executed it.
func Path(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// Close closes all files. Processes that run from them continue.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []error
	for name, f := range s.open {
		all = append(all, f.Close())
		delete(s.open, name)
	}
	return errors.Join(all...)
}

// find opens a program that is not embedded.
func (s *Set) find(name Name) (*os.File, error) {
	dir := s.beside
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fault.Wrap(err, "find %s", name)
		}
		dir = filepath.Dir(self)
	}
	path := filepath.Join(dir, string(name))
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.New(fault.Unsupported, "helper program %s not found: it is not embedded, and not at %s", name,
			path).WithHint("%s", install)
	}
	if err != nil {
		return nil, fault.Wrap(err, "open %s", name)
	}
	if err := check(f, name); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// check refuses a file that is not the helper program name of this program's version, or that another user may have put
// there.
func check(f *os.File, name Name) error {
	if err := private(f); err != nil {
		return err
	}
	if err := isProgram(f, name); err != nil {
		return err
	}
	own, _ := debug.ReadBuildInfo() // a program that was built without modules has no build information
	return sameVersion(f, versionOf(own))
}

// private refuses a file that any user may write to, or replace in its directory. The owner of the directory, and its
// group, are trusted: they may also replace the running program.
func private(f *os.File) error {
	for _, path := range []string{Path(f), filepath.Dir(f.Name())} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return fault.Wrap(err, "inspect %s", path)
		}
		if st.Mode&unix.S_IWOTH != 0 {
			return fault.New(fault.Denied, "cannot execute %s: it or its directory is world-writable", f.Name()).
				WithHint("fix the permissions: chmod o-w %s %s", visible.Word(f.Name()), visible.Word(filepath.Dir(f.Name())))
		}
	}
	return nil
}

// install is the hint for getting all programs of one version.
const install = "install all programs of one version: go install github.com/coppice-dev/coppice/cmd/...@VERSION; or " +
	"use a release, which contains them"
