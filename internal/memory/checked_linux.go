package memory

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

const checkedName = "checked"

// record describes files of an open directory that were just hashed, or made from verified data. While it still
// matches the files, they are not hashed again. This guards against a failing disk, other programs and accidents, but
// not against the owner of the store, who can write this record as well.
//
// The record is valid until the machine is restarted, so neither it nor the files need to be flushed: after a power
// loss everything is hashed once.
func (s *Store) record(dir int, files ...string) ([]byte, error) {
	b := s.recordHead()
	for _, name := range files {
		st, err := dirfd.Lstat(dir, name)
		if err != nil {
			return nil, err
		}
		if !dirfd.IsRegular(&st) {
			return nil, unix.EINVAL
		}
		describeFile(&b, name, &st)
	}
	return b.Bytes(), nil
}

// recordHead returns the beginning of every record.
func (s *Store) recordHead() (b bytes.Buffer) {
	fmt.Fprintf(&b, "coppice checked 1\nboot %s\n", s.boot)
	return b
}

// describeFile writes what identifies a file.
func describeFile(b *bytes.Buffer, name string, st *unix.Stat_t) {
	fmt.Fprintf(b, "%s %d %d %d %d %d\n", name, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

// isChecked reports whether the files are those that were hashed.
func (s *Store) isChecked(dir int, files ...string) bool {
	was, err := readAt(dir, checkedName, 4096)
	if err != nil {
		return false
	}
	is, err := s.record(dir, files...)
	return err == nil && bytes.Equal(was, is)
}

// setChecked records that the files were hashed. If it fails, they are hashed again the next time.
func (s *Store) setChecked(dir int, files ...string) error {
	b, err := s.record(dir, files...)
	if err != nil {
		return err
	}
	name := scratch("checked")
	if err := s.write(s.tmp, name, b, false); err != nil {
		return err
	}
	if err := s.fs.Rename(s.tmp, name, dir, checkedName); err != nil {
		_ = s.fs.Unlink(s.tmp, name) // swept when the store is opened
		return err
	}
	return nil
}

// keepChecked calls fn, which changes the times of files but not their content. If the files were those that were
// hashed, it records that they still are.
func (s *Store) keepChecked(dir int, file string, fn func() error) error {
	was := s.isChecked(dir, file)
	err := fn()
	if was {
		_ = s.setChecked(dir, file) // otherwise they are hashed again
	}
	return err
}
