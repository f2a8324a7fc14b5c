// Package vfs is the file system interface that stores write through. Tests can count its calls, make the k-th one
// fail (Faulty), and crash between any two (Crashable). Reads do not use it: stores read through real descriptors, so
// a crashed store is a real directory, too, and not a copy of it in memory.
//
// Every name is a single path component, resolved beneath an open directory and never through a symbolic
// link: the trees that stores handle were made by untrusted programs. Any package that stores data may import
// it; it imports no package of Coppice.
package vfs

import "errors"

// Op names a call of FS, for Faulty and its callers.
type Op string

// The calls, one for each kind of call of FS that can fail.
const (
	OpCreate   Op = "create"
	OpMkdir    Op = "mkdir"
	OpSymlink  Op = "symlink"
	OpMknod    Op = "mknod"
	OpLink     Op = "link"
	OpRename   Op = "rename"
	OpUnlink   Op = "unlink"
	OpRmdir    Op = "rmdir"
	OpWrite    Op = "write"
	OpCopy     Op = "copy"
	OpTruncate Op = "truncate"
	OpPunch    Op = "punch"
	OpChmod    Op = "chmod"
	OpChown    Op = "chown"
	OpXattr    Op = "xattr"
	OpTimes    Op = "times"
	OpSync     Op = "sync"
)

// ErrNoClone is the error of Clone if the file system cannot share extents between files; the caller copies instead.
var ErrNoClone = errors.New("vfs: files cannot be cloned here")

// ErrNoPunch is the error of Punch if the file system cannot make holes in files.
var ErrNoPunch = errors.New("vfs: files cannot have holes punched here")

// FS changes the disk. A dir is the descriptor of an open directory, a fd that of an open file; the caller keeps
// both. Errors are the bare errno. Implementations are safe for concurrent use.
type FS interface {
	// Create makes a new regular file, open for reading and writing. It fails with EEXIST if the name exists. The
	// caller closes the file.
	Create(dir int, name string, mode uint32) (fd int, err error)
	// Mkdir makes a directory with the given permission bits, less the umask.
	Mkdir(dir int, name string, mode uint32) error
	// Symlink makes a symbolic link to target.
	Symlink(target string, dir int, name string) error
	// Mknod makes a FIFO, socket or device; mode holds the type bits.
	Mknod(dir int, name string, mode uint32, dev uint64) error
	// Link creates a second name for the file at (fromDir, from). A symbolic link is linked itself.
	Link(fromDir int, from string, toDir int, to string) error
	// Rename moves an entry; an existing file or empty directory is replaced.
	Rename(fromDir int, from string, toDir int, to string) error
	// Unlink removes a name that is not a directory.
	Unlink(dir int, name string) error
	// Rmdir removes an empty directory.
	Rmdir(dir int, name string) error

	// WriteAt writes all of p at offset off, or fails.
	WriteAt(fd int, p []byte, off int64) error
	// CopyRange copies up to n bytes at the same offset off from src to dst in the kernel and returns how
	// many; 0 means that src ends at off.
	CopyRange(dst, src int, off int64, n int64) (int64, error)
	// Clone makes dst share all of src's extents. It returns ErrNoClone if the file system cannot do so.
	Clone(dst, src int) error
	// Truncate sets the size of a file; growing leaves a hole.
	Truncate(fd int, size int64) error
	// Punch makes a hole of n bytes at off, which read as zeros; the size does not change. It returns ErrNoPunch if
	// the file system cannot do so.
	Punch(fd int, off, n int64) error

	// Chmod sets permission, setuid, setgid and sticky bits of an open file.
	Chmod(fd int, mode uint32) error
	// ChmodAt sets the mode by name, for entries that should not be opened. The caller must have created the entry,
	// which must not be a symbolic link.
	ChmodAt(dir int, name string, mode uint32) error
	// ChownAt sets the owner of an entry itself, of the directory when name is "".
	ChownAt(dir int, name string, uid, gid uint32) error
	// SetXattr sets an extended attribute of an open file or directory.
	SetXattr(fd int, key string, value []byte) error
	// SetXattrAt sets one by name, on the entry itself.
	SetXattrAt(dir int, name, key string, value []byte) error
	// RemoveXattr removes an extended attribute of an open file or directory.
	RemoveXattr(fd int, key string) error
	// RemoveXattrAt removes one by name, on the entry itself.
	RemoveXattrAt(dir int, name, key string) error
	// Utimes sets the modification time (nanoseconds since 1970) of an entry itself, of the open dir when name is "".
	// The access time does not change.
	Utimes(dir int, name string, mtime int64) error

	// Sync flushes a file or directory to the medium.
	Sync(fd int) error
	// SyncFS flushes the whole file system that contains fd.
	SyncFS(fd int) error
}
