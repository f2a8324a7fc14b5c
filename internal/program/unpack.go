//go:build linux

package program

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// errNotEmbedded is the error for a program that this build does not contain.
var errNotEmbedded = errors.New("not embedded")

// unpack opens the embedded program in the directory of unpacked programs. If it is not there, or has another digest,
// it is written there first. If that file system is mounted noexec, the result is a sealed file in memory instead.
func (s *Set) unpack(name Name) (*os.File, error) {
	dir := s.unpacked
	digest, err := s.digestOf(name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "create the directory of helper programs")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fault.Wrap(err, "inspect %s", dir)
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return s.inMemory(name, digest)
	}
	path := filepath.Join(dir, string(name)+"-"+digest[:16])
	if f, err := os.Open(path); err == nil {
		if verify(f, digest) == nil {
			return f, nil
		}
		f.Close()
	}
	if err := s.write(path, name); err != nil {
		return nil, fault.Wrap(err, "unpack %s", name)
	}
	forget(dir, name, path)
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, "open %s", name)
	}
	if err := verify(f, digest); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// digestOf returns the SHA-256 of an embedded program, in hex.
func (s *Set) digestOf(name Name) (string, error) {
	sums, err := fs.ReadFile(s.embedded, "embedded/SHA256SUMS")
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNotEmbedded
	}
	if err != nil {
		return "", fault.Wrap(err, "read the digests of helper programs")
	}
	for line := range strings.Lines(string(sums)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == string(name) && len(f[0]) == 2*sha256.Size {
			return f[0], nil
		}
	}
	return "", fault.New(fault.Internal, "no embedded digest of %s", name).WithHint("rebuild it: make build")
}

// verify reads f, and returns an error if it has another digest.
func verify(f *os.File, digest string) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, 1<<62)); err != nil {
		return fault.Wrap(err, "read %s", f.Name())
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		return fault.New(fault.Unavailable, "%s has digest %s, expected %s", f.Name(), got, digest).
			WithHint("check its disk, then restart the daemon: coppice serve --stop")
	}
	return nil
}

// write stores an embedded program at path, atomically and durably. Every user may execute it: init starts with ids
// that only its sandbox has.
func (s *Set) write(path string, name Name) error {
	unfinished := path + ".new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a daemon that was killed
		return err
	}
	err := s.writeNew(unfinished, name)
	if err == nil {
		err = syncFile(unfinished)
	}
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		_ = os.Remove(unfinished)
	}
	return err
}

// writeNew writes an embedded program to a new file. No process is forked until the file is closed: until its execve, a
// child would hold the descriptor open for writing, and the program could not be executed (ETXTBSY,
// go.dev/issue/22315).
func (s *Set) writeNew(path string, name Name) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(s.copyTo(f, name), f.Chmod(0o555), f.Close())
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// copyTo decompresses an embedded program to w.
func (s *Set) copyTo(w io.Writer, name Name) error {
	packed, err := s.embedded.Open("embedded/" + string(name) + ".gz")
	if err != nil {
		return err
	}
	defer packed.Close() //nolint:errcheck // it was read
	z, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, z)
	return errors.Join(err, z.Close())
}

// forget removes files of a program that earlier versions have unpacked. Processes that run from such a file continue.
// A file that cannot be removed takes up space until the next version tries again.
func forget(dir string, name Name, keep string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), string(name)+"-") && e.Name() != filepath.Base(keep) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// inMemory unpacks a program into a sealed file in memory.
func (s *Set) inMemory(name Name, digest string) (*os.File, error) {
	f, err := Sealed(string(name), func(w io.Writer) error { return s.copyTo(w, name) })
	if err != nil {
		return nil, fault.Wrap(err, "unpack %s into memory", name)
	}
	if err := verify(f, digest); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
