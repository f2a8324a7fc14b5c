package landlock

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ABI versions that added something on which callers depend.
const (
	ABITruncate = 3 // Linux 6.2: all changes of a file's content can be restricted
	ABIScopes   = 6 // Linux 6.12: signals and abstract sockets
)

// Rights to files (struct landlock_path_beneath_attr) that are used together.
const (
	ReadRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	RunRights  = ReadRights | unix.LANDLOCK_ACCESS_FS_EXECUTE
)

// fileRights are those that a rule for something other than a directory can have.
const fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
	unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

// Version returns the ABI version of the kernel's Landlock, at least 1. The error is an Errno: ENOSYS and EOPNOTSUPP if
// the kernel has none, and also EPERM if a seccomp filter of the process does not know the call.
func Version() (int, error) {
	abi, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0, e
	}
	return int(abi), nil
}

// Handled is what a ruleset restricts: struct landlock_ruleset_attr. A kernel that does not know one of the last fields
// accepts it if it is zero.
type Handled struct {
	FS     uint64 // LANDLOCK_ACCESS_FS_*
	Net    uint64 // LANDLOCK_ACCESS_NET_*
	Scoped uint64 // LANDLOCK_SCOPE_*
}

// HandledBy returns all that version abi can restrict, as far as this package knows it: the rights of ABI 1 to 6.
func HandledBy(abi int) (h Handled) {
	if abi >= 1 {
		h.FS = unix.LANDLOCK_ACCESS_FS_REFER - 1
	}
	if abi >= 2 {
		h.FS |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= ABITruncate {
		h.FS |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 {
		h.Net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= 5 {
		h.FS |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= ABIScopes {
		h.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return h
}

// Ruleset is a ruleset that is being made. It is not safe for concurrent use.
type Ruleset struct {
	fd int
	fs uint64 // rights that it restricts
}

// New makes a ruleset, which the caller closes.
func New(h Handled) (*Ruleset, error) {
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&h)), unsafe.Sizeof(h), 0)
	if e != 0 {
		return nil, fmt.Errorf("make a Landlock ruleset: %w", e)
	}
	return &Ruleset{fd: int(fd), fs: h.FS}, nil
}

// Close releases the ruleset. Threads that it restricts stay restricted.
func (r *Ruleset) Close() { unix.Close(r.fd) }

// Allow allows rights to the file that is open as fd (O_PATH suffices) and, if it is a directory, to everything below
// it. It leaves out rights that the ruleset does not restrict, and for other files those to directories. The error is
// an Errno: EBADFD for a file that Landlock never restricts, such as a memfd.
func (r *Ruleset) Allow(fd int, rights uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	if rights &= r.fs; rights == 0 {
		return nil
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Restrict puts the calling thread, and what it starts from now on, into a new domain that is restricted to the
// ruleset. The goroutine must be locked to its thread, which must have no_new_privs (prctl(2)).
func (r *Ruleset) Restrict() error {
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); e != 0 {
		return fmt.Errorf("enable the Landlock ruleset: %w", e)
	}
	return nil
}
