package layer

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// refusesWhiteouts reports whether the file system of the open directory tmp refuses whiteouts, as overlayfs does in
// its own mounts. Any other error, such as that of a full disk, is no such answer.
func refusesWhiteouts(tmp int) bool {
	const name = "whiteout"
	err := unix.Mknodat(tmp, name, unix.S_IFCHR, 0)
	if err == nil {
		_ = unix.Unlinkat(tmp, name, 0) // otherwise sweep removes it
	}
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// RemovesByFiles reports whether new layers record removals as files, because the file system refuses whiteouts. No
// driver can mount such layers, and builds that know only version 1 of a home misread them.
func (s *Store) RemovesByFiles() bool { return s.byFiles }

// marks is the form of new layers of the store.
func (s *Store) marks() string {
	if s.byFiles {
		return rootspec.MarksFiles
	}
	return rootspec.MarksPlain
}

// whiteout records in a new layer that lower layers have nothing under name.
func (s *Store) whiteout(dir int, name string) (err error) {
	if !s.byFiles {
		return s.fs.Mknod(dir, name, unix.S_IFCHR, 0)
	}
	fd, err := s.fs.Create(dir, name, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := s.fs.SetXattr(fd, rootspec.RemovalXattr, []byte("y")); err != nil {
		return err
	}
	return s.fs.Chmod(fd, rootspec.RemovalMode)
}

// asWhiteout changes the state of an entry of the tree that is a removal to that of a whiteout.
func (s *source) asWhiteout(dir int, name string, st *unix.Stat_t) {
	if s.byFiles && st.Mode == unix.S_IFREG|rootspec.RemovalMode && rootspec.IsRemoval(xattrAt(dir, name).path, st) {
		st.Mode, st.Rdev = unix.S_IFCHR, 0
	}
}
