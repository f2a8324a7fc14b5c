//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// A promotion builds a new directory, which exists only in the upper layer, moves the content of the old one into it,
// and replaces the old one by it. It works in the directory journalName in the root of the overlay mount, the workshop:
//
//	.coppice-promote/from   symbolic link; its text is the directory's path, relative to the mount's root
//	.coppice-promote/tree   the new directory
//	.coppice-promote/try    a target for trial renames
//
// Steps, for a directory D:
//
//	1  make the workshop and `from`, check whether D can be renamed at all, make `tree`
//	2  move each entry of D into tree: everything but directories, and directories that
//	   are pure upper, by one rename; other directories are created in tree, given D's
//	   mode, owner and xattrs, filled in the same way, and then removed from D, where
//	   they are empty by now
//	3  rename tree onto D, which is empty by now (one atomic step)
//	4  remove the workshop
//
// A file with several names in D keeps them: the first name is moved, the others are created as links to it and then
// removed from D.
//
// At every step each entry is in D or in tree (briefly, a further name of a file is in both), and never in neither. So
// recovery moves everything back from the workshop (undo; used after a failure and by Recover): an entry that D lacks
// is renamed back as a whole, a directory that D has is entered, a file that D has is dropped. A kill therefore loses
// nothing; directories that were entered may have the time of the recovery as mtime.
//
// Paths are never followed: every step is relative to descriptors of one mount, and rename(2) does not cross mounts.
const (
	journalName = rootspec.Workshop
	journalFrom = "from"
	journalTree = "tree"
	journalTry  = "try" // see triedToMove and refused; never exists together with the tree
)

// promote makes the directory at e pure upper. After a failure everything is as before. Nothing else may change the
// tree during a promotion. hook may be nil.
func promote(e *end, hook func() error) (moved int, size int64, err error) {
	root, rel, err := mountRoot(e)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(root)
	if err := recoverAt(root); err != nil {
		return 0, 0, err
	}
	times := keepTimes(root)
	defer times()
	parentTimes := keepTimes(e.parent)
	defer parentTimes()
	work, err := makeWorkshop(root, rel)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(work)
	m := mover{hook: hook, work: work, links: map[inode]string{}}
	if err = refused(e, work); err != nil {
		return 0, 0, errors.Join(err, removeWorkshop(root, work))
	}
	err = m.move(e.parent, e.base, work, journalTree)
	if err == nil {
		err = m.step()
	}
	if err == nil {
		if rerr := unix.Renameat(work, journalTree, e.parent, e.base); rerr != nil {
			err = fmt.Errorf("move the new directory into place: %w", rerr)
		}
	}
	if err != nil {
		err = errors.Join(err, undo(work, e.parent, e.base), m.restoreTimes(e.parent, e.base))
	}
	return m.moved, m.bytes, errors.Join(err, removeWorkshop(root, work))
}

// errHeld means that the kernel refuses to rename a directory for any process.
var errHeld = errors.New("the directory is a mount point")

// refused returns errHeld if anything is mounted on e in any mount namespace, so that the kernel refuses to rename it
// (EBUSY). A promotion that has to be undone would leave copies of the entries in the upper layer, so before it changes
// anything, refused tries a rename onto a directory that is not empty, which always fails.
func refused(e *end, work int) error {
	for _, name := range []string{journalTry, journalTry + "/x"} {
		if err := unix.Mkdirat(work, name, 0o700); err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
	}
	tried := unix.Renameat(e.parent, e.base, work, journalTry)
	for _, name := range []string{journalTry + "/x", journalTry} {
		if err := unix.Unlinkat(work, name, unix.AT_REMOVEDIR); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	if errors.Is(tried, unix.EBUSY) {
		return errHeld
	}
	return nil
}

// mountRoot opens the root of the mount of e, and returns e's path relative to it.
func mountRoot(e *end) (int, string, error) {
	cur, err := openat(e.parent, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, "", err
	}
	for {
		var st unix.Statx_t
		if err := statx(cur, &st); err != nil {
			unix.Close(cur)
			return -1, "", err
		}
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			break
		}
		up, err := openat(cur, "..", unix.O_PATH|unix.O_DIRECTORY)
		unix.Close(cur)
		if err != nil {
			return -1, "", err
		}
		cur = up
	}
	rel, err := relative(cur, e)
	if err != nil {
		unix.Close(cur)
		return -1, "", err
	}
	return cur, rel, nil
}

// relative returns e's path below root, after it has verified that the path leads to e.
func relative(root int, e *end) (string, error) {
	at, err := os.Readlink(byFD(root))
	if err != nil {
		return "", err
	}
	rel, ok := strings.CutPrefix(e.name(), strings.TrimSuffix(at, "/")+"/")
	if !ok || len(rel) >= unix.PathMax {
		return "", fmt.Errorf("spell %s below %s: %w", e.name(), at, unix.ENAMETOOLONG)
	}
	fd, err := openInside(root, rel, 0)
	if err != nil {
		return "", fmt.Errorf("find %s below %s: %w", rel, at, err)
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := statx(fd, &st); err != nil {
		return "", err
	}
	if !sameFile(&st, &e.st) {
		return "", fmt.Errorf("find %s below %s: %w", rel, at, unix.ESTALE)
	}
	return rel, nil
}

// openInside opens a path below the root of a mount, without leaving that mount.
func openInside(root int, name string, flags int) (int, error) {
	return dirfd.Open(root, name, flags|unix.O_PATH|unix.O_NOFOLLOW, dirfd.Beneath|dirfd.OneMount)
}

func makeWorkshop(root int, rel string) (int, error) {
	if err := unix.Mkdirat(root, journalName, 0o700); err != nil {
		return -1, fmt.Errorf("create %s: %w", journalName, err)
	}
	work, err := openat(root, journalName, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err == nil {
		if err = unix.Symlinkat(rel, work, journalFrom); err == nil {
			return work, nil
		}
		unix.Close(work)
	}
	return -1, errors.Join(fmt.Errorf("write %s: %w", journalName, err),
		unix.Unlinkat(root, journalName, unix.AT_REMOVEDIR))
}

// removeWorkshop succeeds only if the tree is gone, so that the next recovery can complete a failed undo.
func removeWorkshop(root, work int) error {
	for _, left := range []struct {
		name  string
		flags int
	}{{journalTree, unix.AT_REMOVEDIR}, {journalTry + "/x", unix.AT_REMOVEDIR}, {journalTry, unix.AT_REMOVEDIR},
		{journalFrom, 0}} {
		if err := unix.Unlinkat(work, left.name, left.flags); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("clean up %s: %w", journalName, err)
		}
	}
	if err := unix.Unlinkat(root, journalName, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove %s: %w", journalName, err)
	}
	return nil
}

// mover moves entries from one directory into another.
type mover struct {
	moved int
	bytes int64
	stamp []stamp // times of directories that were entered, outermost first
	hook  func() error

	work  int              // the workshop
	links map[inode]string // where the first name of a file with several names was moved, relative to work
}

// inode identifies a file within one mount.
type inode struct{ dev, ino uint64 }

// step is called before each change.
func (m *mover) step() error {
	if m.hook == nil {
		return nil
	}
	return m.hook()
}

// stamp holds the times of a directory, by its path below the promoted one.
type stamp struct {
	path string
	st   unix.Stat_t
}

// move creates directory newName in newDir, with the metadata and all entries of oldName in oldDir, which is left
// empty.
func (m *mover) move(oldDir int, oldName string, newDir int, newName string) error {
	return m.enter(oldDir, oldName, newDir, newName, "")
}

func (m *mover) enter(oldDir int, oldName string, newDir int, newName, rel string) error {
	from, err := openat(oldDir, oldName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open %q: %w", oldName, err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return fmt.Errorf("stat %q: %w", oldName, err)
	}
	m.stamp = append(m.stamp, stamp{rel, st})
	if err := m.step(); err != nil {
		return err
	}
	if err := unix.Mkdirat(newDir, newName, 0o700); err != nil {
		return fmt.Errorf("create %q: %w", oldName, err)
	}
	into, err := openat(newDir, newName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open the new %q: %w", oldName, err)
	}
	defer unix.Close(into)
	names, err := list(from)
	if err != nil {
		return fmt.Errorf("read %q: %w", oldName, err)
	}
	for _, name := range names {
		if err := m.entry(from, into, name, rel); err != nil {
			return err
		}
	}
	if err := m.step(); err != nil {
		return err
	}
	if err := likeness(from, into, &st); err != nil {
		return fmt.Errorf("copy metadata of %q: %w", oldName, err)
	}
	return nil
}

// entry moves one entry. EXDEV from overlayfs means that a directory has to be entered. Any other error (EBUSY: a mount
// point) fails the promotion.
func (m *mover) entry(from, into int, name, rel string) error {
	st, err := dirfd.Lstat(from, name)
	if err != nil {
		return fmt.Errorf("stat %q: %w", name, err)
	}
	if err := m.step(); err != nil {
		return err
	}
	err = m.carry(from, into, name, rel, &st)
	switch {
	case err == nil:
		m.moved++
		return nil
	case !errors.Is(err, unix.EXDEV) || !dirfd.IsDir(&st):
		return fmt.Errorf("move %q: %w", name, err)
	}
	if err := m.enter(from, name, into, name, rel+"/"+name); err != nil {
		return err
	}
	if err := m.step(); err != nil {
		return err
	}
	if err := unix.Unlinkat(from, name, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove the old %q: %w", name, err)
	}
	m.moved++
	return nil
}

// carry moves one entry as a whole. Copying up separates the names of a file that has several in a lower layer; carry
// keeps the names in the promoted directory together.
func (m *mover) carry(from, into int, name, rel string, st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.Renameat(from, name, into, name)
	}
	key := inode{st.Dev, st.Ino}
	if first, ok := m.links[key]; ok {
		if unix.Linkat(m.work, first, into, name, 0) == nil {
			return unix.Unlinkat(from, name, 0)
		}
	}
	if err := unix.Renameat(from, name, into, name); err != nil {
		return err
	}
	m.bytes += st.Size
	if place := journalTree + rel + "/" + name; st.Nlink > 1 && len(place) < unix.PathMax {
		m.links[key] = place
	}
	return nil
}

// restoreTimes resets the times of the directories below dir/name to those from before they were entered.
func (m *mover) restoreTimes(dir int, name string) error {
	var first error
	for i := len(m.stamp) - 1; i >= 0; i-- {
		s := m.stamp[i]
		fd, err := openInside(dir, name+s.path, 0)
		if err != nil {
			continue // never created
		}
		if err := setTimes(byFD(fd), &s.st); err != nil && first == nil {
			first = fmt.Errorf("restore the times of %q: %w", name+s.path, err)
		}
		unix.Close(fd)
	}
	return first
}

// undo moves the content of work/tree back to dir/name.
func undo(work, dir int, name string) error {
	if place, err := unmove(work, journalTree, dir, name, name); err != nil {
		return fmt.Errorf("move %q back: %w", place, err)
	}
	return nil
}

// unmove moves the parts of a tree that are missing back. An error comes with its path, cut to its end: the sandbox may
// have created the tree, to any depth.
func unmove(newDir int, newName string, oldDir int, oldName, place string) (string, error) {
	// If the old directory is missing, or was removed because it was empty, the new one is complete.
	err := unix.Renameat2(newDir, newName, oldDir, oldName, unix.RENAME_NOREPLACE)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return place, nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return place, err
	}
	from, err := openat(newDir, newName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return place, unix.Unlinkat(newDir, newName, 0) // a further name that was created; the old name still exists
	}
	if err != nil {
		return place, err
	}
	defer unix.Close(from)
	into, err := openat(oldDir, oldName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return place, err
	}
	defer unix.Close(into)
	names, err := list(from)
	if err != nil {
		return place, err
	}
	for _, n := range names {
		if place, err := unmove(from, n, into, n, below(place, n)); err != nil {
			return place, err
		}
	}
	return place, unix.Unlinkat(newDir, newName, unix.AT_REMOVEDIR)
}

// below returns the path of a name in a directory, or the end of it.
func below(place, name string) string {
	place += "/" + name
	if over := len(place) - limit.MessagePath; over > 0 {
		return "..." + place[over+len("..."):]
	}
	return place
}
