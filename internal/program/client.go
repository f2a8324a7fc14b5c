//go:build linux

package program

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Names in a Set of the program coppice.
const (
	running Name = "coppice"        // the running program, which is not a file of the Set
	copied  Name = "coppice-client" // a copy of it in the directory of unpacked programs
)

// Client returns the program coppice, open for reading, with a name by which a sandbox can mount the file, and which
// every user of it may execute: the running program or, if its file was replaced, removed or is private to its owner, a
// copy. It is executed only inside sandboxes, so it is not verified. The Set owns the file, which stays open until
// Close.
//
// The copy has no name if the directory of unpacked programs is mounted noexec: it is a file in memory.
func (s *Set) Client() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, err := s.opened(running, func() (*os.File, error) { return os.Open(ownProgram) })
	if err != nil {
		return nil, err
	}
	if mountable(own) {
		return own, nil
	}
	return s.opened(copied, func() (*os.File, error) {
		digest, err := digestOf(own)
		if err != nil {
			return nil, err
		}
		return s.kept(copied, digest, func(w io.Writer) error {
			_, err := io.Copy(w, io.NewSectionReader(own, 0, 1<<62))
			return err
		})
	})
}

// ownProgram is a magic link to the running program, even if another file has replaced it.
const ownProgram = "/proc/self/exe"

// mountable reports whether the file of the running program still has its name, and every user may execute it.
func mountable(own *os.File) bool {
	var is, named unix.Stat_t
	name, err := os.Readlink(ownProgram)
	if err != nil || unix.Fstat(int(own.Fd()), &is) != nil || unix.Stat(name, &named) != nil {
		return false
	}
	return is.Dev == named.Dev && is.Ino == named.Ino && is.Mode&0o005 == 0o005
}

// digestOf returns the SHA-256 of a file, in hex.
func digestOf(f *os.File) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, 1<<62)); err != nil {
		return "", fault.Wrap(err, "read %s", f.Name())
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
