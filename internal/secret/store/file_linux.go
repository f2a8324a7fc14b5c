package store

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// maxFile is the maximum size of a file that a store reads, in bytes.
const maxFile = 64 << 10

// File reads files that other programs keep, each time that Get is called. It renews no value in them: two clients that
// renew the same token log each other out.
type File struct {
	readOnly
	now func() time.Time
}

// NewFile returns the store of files. now is the clock by which values expire.
func NewFile(now func() time.Time) *File {
	return &File{readOnly{"a file of another program", "write it with the program that keeps it"}, now}
}

// Get implements Store for the file ref.Path: its content without the newline at its end, or the string at the JSON
// pointer ref.Field. Beside such a string, expires, expires_at or expiresAt is when it expires, and user its user name.
// The file must belong to the user or root, not be a link, and not be accessible to other users; otherwise Get returns
// Denied.
func (f *File) Get(_ context.Context, ref Ref) (Value, error) {
	if err := ref.checkFile(); err != nil {
		return Value{}, err
	}
	b, err := readPrivate(ref.Path, 0o077)
	if err != nil {
		return Value{}, err
	}
	if ref.Field == "" {
		v, err := newValue(withoutNewline(b))
		return v, fault.Wrap(err, "read %s", ref.Path)
	}
	defer wipe(b)
	v, err := f.field(b, ref.Field)
	return v, fault.Wrap(err, "read %s#%s", ref.Path, ref.Field)
}

// field returns the value at the pointer in doc.
func (f *File) field(doc []byte, pointer string) (Value, error) {
	raw, in, err := find(doc, pointer)
	if err != nil {
		return Value{}, err
	}
	until, err := in.expires("expires", "expires_at", "expiresAt")
	if err != nil {
		return Value{}, err
	}
	if err := expired(until, f.now()); err != nil {
		return Value{}, err
	}
	user, err := in.user("user")
	if err != nil {
		return Value{}, err
	}
	b, err := text(raw, "the field")
	if err != nil {
		return Value{}, err
	}
	v, err := newValue(b)
	v.Until, v.User = until, user
	return v, err
}

// Check implements Store. It returns nil.
func (f *File) Check(context.Context) error { return nil }

// readPrivate reads a regular file of at most maxFile bytes that belongs to the user or root, and whose mode has none
// of the bits in others. It follows no link at the end of path, and does not wait for the writer of a FIFO.
func readPrivate(path string, others fs.FileMode) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fault.New(fault.Denied, "%s is a symbolic link", path).
			WithHint("name the file that it refers to: readlink -f %s", path)
	}
	if err != nil {
		return nil, fault.Wrap(err, "read a secret")
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fault.Wrap(err, "examine %s", path)
	}
	if err := checkPrivate(path, &st, os.Geteuid(), others); err != nil {
		return nil, err
	}
	b := make([]byte, 0, maxFile+1) // not io.ReadAll, which leaves copies behind as it grows
	for len(b) < cap(b) {
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			wipe(b)
			return nil, fault.Wrap(err, "read a secret")
		}
	}
	wipe(b)
	return nil, fault.New(fault.TooLarge, "%s is larger than %d KiB", path, maxFile>>10)
}

// checkPrivate decides whether a file with state st may hold a secret of user uid.
func checkPrivate(path string, st *unix.Stat_t, uid int, others fs.FileMode) error {
	switch mode := fs.FileMode(st.Mode).Perm(); {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fault.New(fault.Denied, "%s is not a regular file", path)
	case int(st.Uid) != uid && st.Uid != 0:
		return fault.New(fault.Denied, "%s belongs to another user (%d)", path, st.Uid).
			WithHint("make it yours: sudo chown %d %s", uid, path)
	case mode&others != 0:
		return fault.New(fault.Denied, "%s is accessible to other users (mode %04o)", path, mode).
			WithHint("restrict it: chmod 600 %s", path)
	case st.Size > maxFile:
		return fault.New(fault.TooLarge, "%s is larger than %d KiB", path, maxFile>>10)
	}
	return nil
}
