//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type renameArgs struct {
	from, to place
	flags    uint32
}

// rename prepares a rename so that the kernel can carry it out. Everything but a directory of overlayfs is passed to
// the kernel after one check, and so is a rename that would fail anyway, so that the error is the kernel's own.
func (s *server) rename(c caller, a renameArgs) (verdict, func()) {
	from, err := c.path(a.from)
	if err != nil {
		return proceed, nil
	}
	if a.flags&unix.RENAME_EXCHANGE == 0 {
		if dir, err := c.glance(a.from.dir, from); err == nil && !dir {
			return proceed, nil
		}
	}
	to, err := c.path(a.to)
	if err != nil {
		return proceed, nil
	}
	return proceed, func() { s.promoteFor(c, a, from, to) }
}

// glance reports whether name is a directory, in as few calls as possible. It has no effect, and its result only
// decides whether a closer check follows, so it may follow links that the caller controls. (An absolute link in the
// path, for a caller with another root, may mislead it: at worst the rename returns EXDEV.)
func (c caller) glance(dir int32, name string) (bool, error) {
	what := "cwd/"
	switch {
	case strings.HasPrefix(name, "/"):
		what = "root"
	case dir != fdCwd:
		what = "fd/" + strconv.Itoa(int(dir)) + "/"
	}
	var st unix.Stat_t
	// Trailing slashes are removed: with one, a link would be followed.
	err := unix.Lstat(procPath(c.tid, what)+strings.TrimRight(name, "/"), &st)
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

// end is one of the two names of a rename.
type end struct {
	parent int    // O_PATH
	base   string // last element
	node   int    // the file that the name refers to, O_PATH; -1 for none
	st     unix.Statx_t
}

func (e *end) close() {
	unix.Close(e.parent)
	if e.node >= 0 {
		unix.Close(e.node)
	}
}

func (e *end) isDir() bool { return e.node >= 0 && e.st.Mode&unix.S_IFMT == unix.S_IFDIR }

func (c caller) end(dir int32, name string) (*end, error) {
	parent, base, err := c.openParent(dir, name)
	if err != nil {
		return nil, err
	}
	e := &end{parent: parent, base: base, node: -1}
	if base == "" {
		e.close()
		return nil, unix.EBUSY
	}
	if err := e.look(); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// look opens the file that the name refers to now.
func (e *end) look() error {
	if e.node >= 0 {
		unix.Close(e.node)
		e.node = -1
	}
	e.st = unix.Statx_t{}
	fd, err := openat(e.parent, e.base, unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	e.node = fd
	return statx(fd, &e.st)
}

func statx(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT,
		unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, st)
}

func sameFile(a, b *unix.Statx_t) bool {
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor
}

// promoteFor promotes the directories of a rename, and then lets the kernel rename. It checks twice: before it freezes
// the sandbox, to avoid a useless freeze, and afterwards, when nothing can change any more. It answers before the thaw,
// so that the caller is the first to run.
func (s *server) promoteFor(c caller, a renameArgs, from, to string) {
	v, old, new := s.consider(c, a, from, to)
	if old == nil {
		s.opt.Lock.RLock()
		defer s.opt.Lock.RUnlock()
		s.answer(c.id, v)
		return
	}
	defer old.close()
	defer new.close()
	s.opt.Lock.Lock()
	defer s.opt.Lock.Unlock()
	thaw, err := s.opt.Freeze()
	if err != nil {
		s.opt.Report(Event{Kind: Failed, Path: from, Err: err})
		s.answer(c.id, proceed)
		return
	}
	if thaw != nil {
		defer thaw()
	}
	s.answer(c.id, s.promoteBoth(c, old, new, a.flags))
}

// consider returns the ends of a rename if it needs a promotion and the caller is allowed to rename; otherwise only the
// answer.
func (s *server) consider(c caller, a renameArgs, from, to string) (verdict, *end, *end) {
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	s.trying.Lock()
	defer s.trying.Unlock()
	// Nothing is tried for a dead caller: a process that has seen all callers dead, and has then held Lock, must find
	// no incomplete try.
	if !s.valid(c.id) {
		return proceed, nil, nil
	}
	old, err := c.end(a.from.dir, from)
	if err != nil {
		return proceed, nil, nil
	}
	new, err := c.end(a.to.dir, to)
	if err != nil {
		old.close()
		return proceed, nil, nil
	}
	v, need := needed(old, new, a.flags)
	if len(need) == 0 || !s.valid(c.id) || !c.mayMove(old, new, a.flags) {
		old.close()
		new.close()
		return v, nil, nil
	}
	return v, old, new
}

// promoteBoth promotes the ends that need it, with everything frozen.
func (s *server) promoteBoth(c caller, old, new *end, flags uint32) verdict {
	if !s.valid(c.id) || old.look() != nil || new.look() != nil {
		return proceed
	}
	v, need := needed(old, new, flags)
	for _, e := range need {
		start := time.Now()
		ev := Event{Kind: Promoted, Path: e.name()}
		ev.Moved, ev.Bytes, ev.Err = promote(e, s.opt.hook)
		ev.Took = time.Since(start)
		if errors.Is(ev.Err, errHeld) {
			break // the kernel's own rename returns EBUSY as well
		}
		if ev.Err != nil {
			ev.Kind = Failed
		}
		s.opt.Report(ev)
		if ev.Err != nil {
			break
		}
	}
	return v
}

// name returns the absolute path in this process's root, for messages.
func (e *end) name() string {
	dir, err := os.Readlink(byFD(e.parent))
	if err != nil {
		return e.base
	}
	return strings.TrimSuffix(dir, "/") + "/" + e.base
}

// needed returns the ends that must be promoted so that the kernel does not return EXDEV, and the answer to give after
// that. No promotion is needed if the kernel would refuse for another reason.
func needed(old, new *end, flags uint32) (verdict, []*end) {
	exchange := flags&unix.RENAME_EXCHANGE != 0
	switch {
	case flags&^(unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE) != 0:
		return proceed, nil // overlayfs supports no others: EINVAL
	case !old.isDir() && (!exchange || !new.isDir()):
		return proceed, nil
	case old.node < 0, exchange && new.node < 0:
		return proceed, nil // ENOENT
	case new.node >= 0 && flags&unix.RENAME_NOREPLACE != 0:
		return proceed, nil // EEXIST
	case new.node >= 0 && sameFile(&old.st, &new.st):
		return proceed, nil // the same file: nothing happens
	case !exchange && new.node >= 0 && !new.isDir():
		return proceed, nil // ENOTDIR
	case old.st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, new.st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return proceed, nil // EBUSY
	}
	var op, np unix.Statx_t
	if statx(old.parent, &op) != nil || statx(new.parent, &np) != nil || op.Mnt_id != np.Mnt_id ||
		old.st.Mnt_id != op.Mnt_id {
		return proceed, nil // another mount: EXDEV is correct
	}
	if !onOverlay(old.parent) {
		return proceed, nil
	}
	if contains(&old.st, new.parent) || new.node >= 0 && contains(&new.st, old.parent) {
		return proceed, nil // into itself: EINVAL or ENOTEMPTY
	}
	var need []*end
	if old.isDir() && !pureUpper(old) {
		need = append(need, old)
	}
	if exchange && new.isDir() && !pureUpper(new) {
		need = append(need, new)
	}
	if len(need) > 0 && !exchange && new.node >= 0 {
		if empty, err := isEmpty(new.parent, new.base); err == nil && !empty {
			// overlayfs would return EXDEV before it checks the target, and a program that then copies would merge the
			// two.
			return verdict{errno: unix.ENOTEMPTY}, nil
		}
	}
	return proceed, need
}

func onOverlay(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && uint32(fs.Type) == unix.OVERLAYFS_SUPER_MAGIC
}

// contains reports whether directory fd is the directory dir, or is below it, on the same mount.
func contains(dir *unix.Statx_t, fd int) bool {
	cur, err := openat(fd, ".", unix.O_PATH|unix.O_DIRECTORY)
	for err == nil {
		var st unix.Statx_t
		if statx(cur, &st) != nil {
			break
		}
		if sameFile(&st, dir) {
			unix.Close(cur)
			return true
		}
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			break
		}
		var up int
		up, err = openat(cur, "..", unix.O_PATH|unix.O_DIRECTORY)
		unix.Close(cur)
		cur = up
	}
	if err == nil {
		unix.Close(cur)
	}
	return false
}

// mayMove reports whether the caller itself could carry out the rename if overlayfs did not prevent it: it may write
// both directories, their sticky bits allow it, and it may write a directory whose ".." changes (rename(2), EACCES and
// EPERM).
func (c caller) mayMove(old, new *end, flags uint32) bool {
	who, err := c.credentials()
	if err != nil {
		return false
	}
	var op, np unix.Statx_t
	if statx(old.parent, &op) != nil || statx(new.parent, &np) != nil {
		return false
	}
	ends := []struct {
		*end
		dir *unix.Statx_t
	}{{old, &op}, {new, &np}}
	allowed := false
	err = who.do(func() error {
		for _, e := range ends {
			if err := access(e.parent, unix.W_OK|unix.X_OK); err != nil {
				return err
			}
			if e.node < 0 {
				continue
			}
			if e.dir.Mode&unix.S_ISVTX != 0 && !who.owns(e.dir) && !who.owns(&e.st) && !who.has(unix.CAP_FOWNER) {
				return unix.EPERM
			}
			if e.isDir() && !sameFile(&op, &np) && (e.end == old || flags&unix.RENAME_EXCHANGE != 0) {
				if err := access(e.node, unix.W_OK); err != nil {
					return err
				}
			}
		}
		allowed = true
		return nil
	})
	return err == nil && allowed
}

func access(fd int, mode uint32) error {
	_, _, e := unix.Syscall6(unix.SYS_FACCESSAT2, uintptr(fd), uintptr(ptr("\x00")), uintptr(mode),
		unix.AT_EMPTY_PATH|unix.AT_EACCESS, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}
