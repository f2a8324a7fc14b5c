//go:build linux

package program

import (
	"compress/gzip"
	"crypto/sha256"
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

// unpack opens the embedded program as a kept file.
func (s *Set) unpack(name Name) (*os.File, error) {
	digest, err := s.embeddedDigest(name)
	if err != nil {
		return nil, err
	}
	return s.kept(name, digest, func(w io.Writer) error { return s.copyTo(w, name) })
}

// kept opens the program with the given digest in the directory of unpacked programs. If it is not there, or has
// another digest, write writes it there first. If that file system is mounted noexec, the result is a sealed file in
// memory instead.
func (s *Set) kept(name Name, digest string, write func(io.Writer) error) (*os.File, error) {
	dir := s.unpacked
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "create the directory of helper programs")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fault.Wrap(err, "inspect %s", dir)
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return inMemory(name, digest, write)
	}
	if lock, err := locked(dir); err == nil { // elsewhere, as on some network file systems, verify notices a mixture
		defer lock.Close()
	}
	path := filepath.Join(dir, string(name)+"-"+digest[:16])
	if f, err := os.Open(path); err == nil {
		if verify(f, digest) == nil {
			return f, nil
		}
		f.Close()
	}
	if err := writeTo(path, write); err != nil {
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

// locked opens a directory and locks it until it is closed: the daemon and several clients may unpack at the same time.
func locked(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// embeddedDigest returns the SHA-256 of an embedded program, in hex.
func (s *Set) embeddedDigest(name Name) (string, error) {
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
	got, err := digestOf(f)
	if err != nil {
		return err
	}
	if got != digest {
		return fault.New(fault.Unavailable, "%s has digest %s, expected %s", f.Name(), got, digest).
			WithHint("check its disk, then restart the daemon: coppice serve --stop")
	}
	return nil
}

// writeTo stores the program that write writes at path, atomically and durably. Every user may execute it: init starts
// with ids that only its sandbox has.
func writeTo(path string, write func(io.Writer) error) error {
	unfinished := path + ".new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a daemon that was killed
		return err
	}
	err := writeNew(unfinished, write)
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

// writeNew writes a program to a new file. No process is forked until the file is closed: until its execve, a
// child would hold the descriptor open for writing, and the program could not be executed (ETXTBSY,
// go.dev/issue/22315).
func writeNew(path string, write func(io.Writer) error) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Chmod(0o555), f.Close())
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

// inMemory returns the program that write writes as a sealed file in memory.
func inMemory(name Name, digest string, write func(io.Writer) error) (*os.File, error) {
	f, err := Sealed(string(name), write)
	if err != nil {
		return nil, fault.Wrap(err, "unpack %s into memory", name)
	}
	if err := verify(f, digest); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
