package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/quota"
)

// Driver overlay limits by a project quota. The directory with the generations of a sandbox is the top of the
// project, and the only record of the project's number. Everything created in it belongs to the project: upper
// directories, and the work directories from which overlayfs renames. An upper that becomes a layer remains in the
// project.

// CanLimit implements Limiter.
func (o *overlay) CanLimit() error {
	if !o.deps.Root {
		return quota.NotRoot()
	}
	return quota.TryProject(o.deps.Home)
}

// claim ensures that the generation belongs to a project of its sandbox, with a limit. A previous generation that
// used up the limit would block a new one, so for a new one the limit is lifted until hold. Nothing runs meanwhile.
func (o *overlay) claim(live Live) (quota.Project, error) {
	if !o.deps.Root {
		return 0, quota.NotRoot()
	}
	top := filepath.Dir(live.Dir)
	if err := quota.Holds(top); err != nil {
		return 0, err
	}
	p, inherited, err := quota.Of(top)
	if err != nil {
		return 0, err
	}
	_, err = os.Lstat(live.Dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return 0, err
	}
	switch {
	case p.Ours() && inherited && fresh:
		if quota.Exempt(top) {
			return p, nil
		}
		return p, quota.Limit(top, p, 0)
	case p.Ours() && inherited:
		return p, belongs(live.Dir, p)
	case p != 0 && !p.Ours():
		return 0, fault.New(fault.Unsupported, "cannot limit %s: it already belongs to project %d", top, p).
			WithHint("set COPPICE_HOME to a directory outside that project, then create the sandbox there")
	case !fresh:
		return 0, notLimited(top)
	}
	return quota.Claim(top, live.Disk)
}

// hold sets the limit, whether or not it was lifted.
func (o *overlay) hold(live Live, p quota.Project) error {
	err := quota.Limit(filepath.Dir(live.Dir), p, live.Disk)
	return fault.Wrap(err, "limit the disk of the live root")
}

// belongs checks that the directories that overlayfs writes to are in the project, so that the files that it creates
// there are too.
func belongs(dir string, p quota.Project) error {
	rec, err := readRecord(dir)
	if err != nil {
		return err
	}
	dirs := []string{".", "upper", "work"}
	for _, r := range rec.parts {
		dirs = append(dirs, filepath.Join("upper", r.dir), filepath.Join("work", r.dir))
	}
	for _, d := range dirs {
		got, inherited, err := quota.Of(filepath.Join(dir, d))
		if err != nil {
			return err
		}
		if got != p || !inherited {
			return notLimited(filepath.Join(dir, d))
		}
	}
	return nil
}

// notLimited is the error for a live root that was not created by a driver, such as by cp of a whole home. Its
// changes can still be captured.
func notLimited(dir string) error {
	return fault.New(fault.Conflict, "the disk limit of the sandbox does not apply to %s: was it copied?", dir).
		WithHint("start a new live root from the newest snapshot: coppice rewind NAME HEAD")
}

// Limit implements Limiter. Copies are charged only if the limit never makes a copy fail.
func (o *overlay) Limit(live Live) (Limit, error) {
	p, err := o.project(live)
	if err != nil {
		return Limit{}, err
	}
	l := Limit{By: "project quota " + strconv.FormatUint(uint64(p), 10)}
	if quota.Exempt(filepath.Dir(live.Dir)) {
		l.Project = uint32(p)
	}
	return l, nil
}

// Used implements Limiter.
func (o *overlay) Used(live Live) (int64, error) {
	p, err := o.project(live)
	if err != nil {
		return 0, err
	}
	f, err := quota.Read(filepath.Dir(live.Dir), p)
	if f.InodeLimit > 0 && f.Inode >= f.InodeLimit {
		f.Used = max(f.Used, f.Limit) // the maximum number of files is reached
	}
	return f.Used, fault.Wrap(err, "read the usage of the live root")
}

func (o *overlay) project(live Live) (quota.Project, error) {
	p, _, err := quota.Of(filepath.Dir(live.Dir))
	if err == nil && !p.Ours() {
		err = notLimited(filepath.Dir(live.Dir))
	}
	return p, fault.Wrap(err, "read the limit of the live root")
}

// Unlimit implements Limiter.
func (o *overlay) Unlimit(dir string) error {
	p, _, err := quota.Of(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && p.Ours() {
		err = quota.Limit(dir, p, 0)
	}
	return fault.Wrap(err, "remove the limit of %s", dir)
}

// baseAttr is an attribute of the directory with the generations. Driver btrfs limits by the qgroup of each
// generation's subvolume: to the size of the unchanged first generation of the sandbox, which the attribute stores,
// plus the limit.
const baseAttr = "user.coppice.base"

// CanLimit implements Limiter.
func (c *plain) CanLimit() error {
	switch {
	case c.vol == nil:
		return quota.NoDriver(c.Name())
	case !c.deps.Root:
		return quota.NotRoot()
	}
	if err := c.vol.supported(); err != nil {
		return err
	}
	return quota.TrySubvolume(c.deps.Home)
}

// hold enforces the limit of a generation, whose subvolume is root. fresh reports that it is unchanged: only then may
// its size become the base.
func (c *plain) hold(live Live, root string, fresh bool) error {
	if live.Disk == 0 {
		return nil
	}
	err := func() error {
		if !c.deps.Root {
			return quota.NotRoot()
		}
		top := filepath.Dir(live.Dir)
		base, err := readBase(top)
		if errors.Is(err, unix.ENODATA) && fresh {
			base, err = measure(root)
			if err == nil {
				err = unix.Setxattr(top, baseAttr, strconv.AppendInt(nil, base, 10), 0)
			}
		}
		if errors.Is(err, unix.ENODATA) {
			return notLimited(top)
		}
		if err != nil {
			return err
		}
		s, err := quota.OpenSubvolume(root)
		if err != nil {
			return err
		}
		return s.Limit(root, base+live.Disk)
	}()
	return fault.Wrap(err, "limit the disk of the live root")
}

// measure returns the number of bytes that a subvolume refers to. It flushes first, since the figures do not include
// what is not on disk yet.
func measure(root string) (int64, error) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(unix.Syncfs(fd), unix.Close(fd)); err != nil {
		return 0, err
	}
	s, err := quota.OpenSubvolume(root)
	if err != nil {
		return 0, err
	}
	return s.Used()
}

func readBase(top string) (int64, error) {
	var b [32]byte
	n, err := unix.Getxattr(top, baseAttr, b[:])
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(b[:n]), 10, 64)
}

// Limit implements Limiter. Layers are not in the subvolume, and are not charged.
func (c *plain) Limit(live Live) (Limit, error) {
	if c.vol == nil {
		return Limit{}, quota.NoDriver(c.Name())
	}
	s, err := quota.OpenSubvolume(filepath.Join(live.Dir, "root"))
	return Limit{By: "btrfs qgroup " + s.String()}, fault.Wrap(err, "read the limit of the live root")
}

// Used implements Limiter.
func (c *plain) Used(live Live) (int64, error) {
	base, err := readBase(filepath.Dir(live.Dir))
	if err != nil {
		return 0, fault.Wrap(err, "read the usage of the live root")
	}
	used, err := measure(filepath.Join(live.Dir, "root"))
	return max(used-base, 0), fault.Wrap(err, "read the usage of the live root")
}

// Unlimit implements Limiter. A qgroup is removed with its subvolume (Linux 6.11), or remains unused (btrfs qgroup
// clear-stale): its number is never reused.
func (c *plain) Unlimit(string) error { return nil }
