//go:build linux && (amd64 || arm64)

package control

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	readRights  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	runRights   = readRights | unix.LANDLOCK_ACCESS_FS_EXECUTE
	writeRights = readRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
	fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// opening is a host path that a gate process may use.
type opening struct {
	path   string
	rights uint64
}

// openings returns the paths that a gate process may use: the program, the configuration of the host's resolver, files
// that the Go runtime reads, and the journal, the only one that is writable.
func openings(program, journal string) []opening {
	return []opening{
		{program, runRights},
		{"/lib", runRights}, {"/lib64", runRights}, {"/usr/lib", runRights}, // only needed if the binary is not static
		{"/etc", readRights}, {"/run/systemd/resolve", readRights}, {"/run/resolvconf", readRights},
		{"/run/NetworkManager", readRights},
		{"/proc", readRights}, {"/sys", readRights}, {"/usr/share/zoneinfo", readRights},
		// certificate authorities that the host trusts
		{"/usr/share/ca-certificates", readRights}, {"/usr/local/share/ca-certificates", readRights},
		{"/dev/null", readRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE},
		{journal, writeRights},
	}
}

// handled returns what the kernel can restrict, by its Landlock version (landlock(7)): file rights, network rights,
// and scopes.
func handled(abi int) (attr [3]uint64, size uintptr) {
	attr[0], size = 1<<13-1, 8
	if abi >= 2 {
		attr[0] |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		attr[0] |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 { // the gate connects, but listens on no port
		attr[1], size = unix.LANDLOCK_ACCESS_NET_BIND_TCP, 16
	}
	if abi >= 5 {
		attr[0] |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		attr[2], size = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET|unix.LANDLOCK_SCOPE_SIGNAL, 24
	}
	return attr, size
}

// wall restricts this thread, and processes that it starts, to openings. Before Linux 5.13 there is no Landlock,
// which plan.Decide reports. The thread must have no_new_privs.
func wall(program, journal string) error {
	abi, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e == unix.ENOSYS || e == unix.EOPNOTSUPP {
		return nil
	}
	if e != 0 {
		return fmt.Errorf("landlock: %w", e)
	}
	attr, size := handled(int(abi))
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if e != 0 {
		return fmt.Errorf("landlock: create a ruleset: %w", e)
	}
	defer unix.Close(int(fd))
	for _, o := range openings(program, journal) {
		if err := allow(int(fd), o.path, o.rights&attr[0]); err != nil {
			return fmt.Errorf("landlock: open %s: %w", o.path, err)
		}
	}
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); e != 0 {
		return fmt.Errorf("landlock: restrict: %w", e)
	}
	return nil
}

// allow adds a path to a ruleset; a missing path needs no rule.
func allow(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	// EBADFD is from a memfd, which Landlock does not restrict (security/landlock/syscalls.c, get_path_from_fd).
	if e != 0 && e != unix.EBADFD {
		return e
	}
	return nil
}
