//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Rights of landlock(7). changeRights lack those to make devices.
const (
	readRights   = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	runRights    = readRights | unix.LANDLOCK_ACCESS_FS_EXECUTE
	deviceRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	changeRights = runRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO
	fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | deviceRights // those that a file can have
)

// rulesetAttr is struct landlock_ruleset_attr.
type rulesetAttr struct{ fs, net, scoped uint64 }

// ruleset is a Landlock ruleset that is being made.
type ruleset struct {
	fd     int
	fs     uint64   // rights that it restricts
	closed []string // directories that allow leaves out, without links
}

// landlockScopes restricts signals and abstract sockets to the domain (landlock(7), ABI 6).
func landlockScopes() error {
	r, err := newRuleset(rulesetAttr{scoped: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL})
	if err != nil {
		return err
	}
	return r.restrict()
}

// landlockLock restricts this thread, and what it forks, as l says.
func landlockLock(l *plan.Lock) error {
	r, err := newRuleset(lockAttr(l))
	if err != nil {
		return err
	}
	for _, dir := range l.Closed {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			r.closed = append(r.closed, real)
		}
		r.closed = append(r.closed, filepath.Clean(dir))
	}
	for _, open := range []struct {
		paths  []string
		rights uint64
		add    func(string, uint64) error
	}{
		{l.System, runRights, r.allow}, {l.Seen, readRights, r.allow}, {l.Devices, deviceRights, r.addOwn},
		{l.Own, changeRights, r.addOwn}, {l.Read, runRights, r.addPlace}, {l.Write, changeRights, r.addPlace},
	} {
		for _, p := range open.paths {
			err := open.add(p, open.rights)
			if err != nil {
				unix.Close(r.fd)
				return fault.Wrap(err, "let commands open %s", p)
			}
		}
	}
	return r.restrict()
}

// lockAttr returns what a ruleset for l restricts, by the version of Landlock.
func lockAttr(l *plan.Lock) rulesetAttr {
	a := rulesetAttr{fs: unix.LANDLOCK_ACCESS_FS_REFER - 1} // the rights of ABI 1
	if l.Landlock >= 2 {
		a.fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if l.Landlock >= 3 {
		a.fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if l.Landlock >= 4 && l.NoInet {
		a.net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if l.Landlock >= 5 {
		a.fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if l.Landlock >= 6 {
		a.scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return a
}

// newRuleset makes a ruleset. Kernels that do not know the last fields of attr take it without them if they are zero.
func newRuleset(attr rulesetAttr) (*ruleset, error) {
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if e != 0 {
		return nil, fault.Wrap(e, "make a Landlock ruleset")
	}
	return &ruleset{fd: int(fd), fs: attr.fs}, nil
}

// restrict restricts this thread to the ruleset, and closes the ruleset.
func (r *ruleset) restrict() error {
	_, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0)
	unix.Close(r.fd)
	if e != 0 {
		return fault.Wrap(e, "enable the Landlock ruleset")
	}
	return nil
}

// allow adds rights to a directory and everything below, except for the closed directories: Landlock cannot take
// rights away below a rule. So the entries of a directory that contains a closed one have rules of their own, and those
// that are made later have none. Links below p are not followed.
func (r *ruleset) allow(p string, rights uint64) error {
	real, err := filepath.EvalSymlinks(p)
	if err != nil {
		return nil //nolint:nilerr // without a rule, the path stays closed
	}
	return r.allowReal(real, rights)
}

func (r *ruleset) allowReal(p string, rights uint64) error {
	if slices.ContainsFunc(r.closed, func(c string) bool { return rootspec.Within(p, c) }) {
		return nil
	}
	if !slices.ContainsFunc(r.closed, func(c string) bool { return rootspec.Within(c, p) }) {
		return r.addOwn(p, rights)
	}
	entries, err := os.ReadDir(p)
	if err != nil {
		return nil //nolint:nilerr // without rules, everything below it stays closed
	}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			continue
		}
		if err := r.allowReal(filepath.Join(p, e.Name()), rights); err != nil {
			return err
		}
	}
	return nil
}

// addOwn adds a rule for a path that commands cannot move, which is not a link itself.
func (r *ruleset) addOwn(p string, rights uint64) error {
	return r.add(p, rights, unix.O_NOFOLLOW, 0)
}

// addPlace adds a rule for a path that commands may have been able to change. Links on the way are errors.
func (r *ruleset) addPlace(p string, rights uint64) error {
	return r.add(p, rights, 0, unix.RESOLVE_NO_SYMLINKS)
}

// add adds one rule. A path that is missing or cannot be reached needs none.
func (r *ruleset) add(p string, rights uint64, flags int, resolve uint64) error {
	fd, err := dirfd.Open(unix.AT_FDCWD, p, unix.O_PATH|flags, resolve)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOTDIR) {
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
