//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/landlock"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Rights of landlock(7). changeRights lack those to make devices.
const (
	deviceRights = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	changeRights = landlock.RunRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO
)

// ruleset is a Landlock ruleset of paths that is being made.
type ruleset struct {
	*landlock.Ruleset
	closed []string // directories that allow leaves out, without links
}

// landlockScopes restricts signals and abstract sockets to the domain.
func landlockScopes() error {
	r, err := landlock.New(landlock.Handled{Scoped: landlock.HandledBy(landlock.ABIScopes).Scoped})
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Restrict()
}

// landlockLock restricts this thread, and what it forks, as l says.
func landlockLock(l *plan.Lock) error {
	made, err := landlock.New(handledBy(l))
	if err != nil {
		return err
	}
	defer made.Close()
	r := &ruleset{Ruleset: made}
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
		{l.System, landlock.RunRights, r.allow}, {l.Seen, landlock.ReadRights, r.allow},
		{l.Devices, deviceRights, r.addOwn}, {l.Own, changeRights, r.addOwn},
		{l.Read, landlock.RunRights, r.addPlace}, {l.Write, changeRights, r.addPlace},
	} {
		for _, p := range open.paths {
			err := open.add(p, open.rights)
			if err != nil {
				return fault.Wrap(err, "let commands open %s", p)
			}
		}
	}
	return r.Restrict()
}

// handledBy returns what a ruleset for l restricts: all that the host's Landlock can, and TCP only if there is no
// network.
func handledBy(l *plan.Lock) landlock.Handled {
	h := landlock.HandledBy(l.Landlock)
	if !l.NoInet {
		h.Net = 0
	}
	return h
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
	return r.Allow(fd, rights)
}
