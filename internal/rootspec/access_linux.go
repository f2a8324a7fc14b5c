package rootspec

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Sources are the open files and directories for the mounts of an Access. The holder closes them.
type Sources struct {
	fds    Descriptors
	points []Point     // by index of the mount
	decoys Descriptors // empty until Restrict creates them
}

// Decoys returns the files that Restrict created for Access.Decoys, in the same order and open with O_PATH: their
// inodes must be watched before any process can open them. Close closes them.
func (s *Sources) Decoys() []int { return s.decoys }

// DecoyDevice returns the device of the file system that Restrict created for the decoys, which has no other files; 0
// without decoys.
func (s *Sources) DecoyDevice() (uint64, error) {
	if len(s.decoys) == 0 {
		return 0, nil
	}
	var st unix.Stat_t
	err := unix.Fstat(s.decoys[0], &st)
	return st.Dev, fault.Wrap(err, "inspect a honeytoken")
}

// Close closes all descriptors.
func (s *Sources) Close() {
	s.fds.Close()
	s.decoys.Close()
}

// Points returns the paths at which the sources are mounted.
func (s *Sources) Points() []Point { return slices.Clone(s.points) }

// kernels are the file systems of the kernel, through which the machine can be changed.
var kernels = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
	unix.TRACEFS_MAGIC,
	unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC,
	unix.SELINUX_MAGIC, unix.SMACK_MAGIC,
}

// Sources validates a, and opens the directories and regular files of the host that it shows, by paths without links,
// so that they cannot be redirected between the check and the mount.
func (a Access) Sources() (_ *Sources, err error) {
	if err := a.Validate(); err != nil {
		return nil, err
	}
	s := new(Sources)
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for i, h := range a.mounted() {
		fd, err := dirfd.Open(unix.AT_FDCWD, h.From, unix.O_PATH|unix.O_NOFOLLOW, dirfd.NoLinks)
		if errors.Is(err, unix.ELOOP) {
			return nil, fault.New(fault.Invalid, "cannot mount %s: its path contains a symbolic link", h.From).
				WithHint("%s", linkHint(h.From))
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil, fault.New(fault.NotFound, "cannot mount %s at %s: source not found", h.From, h.To).
				WithHint("create it, then try again")
		}
		if err != nil {
			return nil, fault.Wrap(err, "open %s to mount it at %s", h.From, h.To)
		}
		s.fds = append(s.fds, fd)
		var st unix.Stat_t
		var fs unix.Statfs_t
		if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
			return nil, fault.Wrap(err, "inspect %s", h.From)
		}
		kind := st.Mode & unix.S_IFMT
		switch {
		case kind != unix.S_IFDIR && kind != unix.S_IFREG, slices.Contains(kernels, fs.Type):
			return nil, fault.New(fault.Invalid, "cannot mount %s: not a directory or regular file of the host",
				h.From).
				WithHint("mount a directory or a regular file; sockets, devices, /proc and /sys cannot be mounted")
		}
		p := Point{Path: h.To, File: kind == unix.S_IFREG}
		if i >= len(a.Mounts) {
			p.UID, p.GID = st.Uid, st.Gid
		}
		s.points = append(s.points, p)
	}
	return s, nil
}

// linkHint names the target of p.
func linkHint(p string) string {
	if to, err := filepath.EvalSymlinks(p); err == nil {
		return "use its target: " + to
	}
	return "use its target"
}

// Restrict applies a to the root that Mount has mounted at target, with Spec.Points from s.Points. Undoing it
// requires the right to mount. Copies of the mounts that were made before are not restricted.
func Restrict(target string, a Access, s *Sources, opts Options) (err error) {
	if a.IsZero() {
		return nil
	}
	m := &mounter{target: target, idmap: opts.IDMapFD, uid: opts.Zero, gid: opts.Zero, root: -1}
	defer func() {
		if err == nil && opts.Keep != nil {
			*opts.Keep = append(*opts.Keep, m.fds...)
			return
		}
		m.fds.Close()
	}()
	if err := m.openRoot(); err != nil {
		return err
	}
	for _, p := range s.points {
		if err := m.point(p); err != nil {
			return err
		}
	}
	var fixed []string
	for _, p := range Reserved { // init mounts there, when perhaps nothing can be created any more
		if err := m.point(Point{Path: p}); err != nil {
			return err
		}
	}
	if a.Only {
		if fixed, err = m.only(a.Writable); err != nil {
			return err
		}
	}
	mounts := a.mounted()
	order := make([]int, len(mounts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(mounts[i].To, mounts[j].To) }) // parents first
	for _, i := range order {
		if err := m.show(mounts[i], s.fds[i]); err != nil {
			return err
		}
		fixed = append(fixed, mounts[i].To)
	}
	if err := m.decoys(a.Decoys, s); err != nil {
		return err
	}
	for _, d := range a.Decoys {
		fixed = append(fixed, d.At)
	}
	held, err := m.readOnly(a.ReadOnly)
	if err != nil {
		return err
	}
	return m.pin(above(append(fixed, held...)))
}

// find opens p inside; it returns -1 if p does not exist. It refuses paths through a link.
func (m *mounter) find(p, what string) (int, error) {
	fd, err := m.inside(p, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return -1, nil
	}
	link := errors.Is(err, unix.ELOOP)
	if err == nil {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return -1, fault.Wrap(err, "inspect %s", p)
		}
		link = st.Mode&unix.S_IFMT == unix.S_IFLNK
	}
	if link {
		return -1, fault.New(fault.Invalid,
			"cannot make %s %s: its path contains a symbolic link, which could change", p, what).
			WithHint("use its target")
	}
	return fd, fault.Wrap(err, "open %s", p)
}

// asOwner calls do, such that what it creates belongs to the owner of p, or to ID 0 if the root has no such IDs.
func (m *mounter) asOwner(p Point, do func() error) error {
	if m.idmap <= 0 && p.UID == 0 && p.GID == 0 {
		return do()
	}
	err := WithFSIDs(m.uid+int(p.UID), m.gid+int(p.GID), do)
	if errors.Is(err, unix.EOVERFLOW) && (p.UID != 0 || p.GID != 0) {
		return WithFSIDs(m.uid, m.gid, do)
	}
	return err
}

// point creates p if it does not exist. It is created in the root, and so becomes part of the history, if the layer
// of mount points cannot show it, such as after the sandbox removed it.
func (m *mounter) point(p Point) error {
	fd, err := m.find(p.Path, "a mount point")
	if err != nil {
		return err
	}
	if fd < 0 {
		err = m.asOwner(p, func() error {
			if p.File {
				return m.touch(p.Path)
			}
			return m.mkdirs(p.Path, keepMode)
		})
		if err != nil {
			return fault.New(fault.KindOf(err), "create the mount point %s", p.Path).Because(err).
				WithHint("choose a path in a directory that the sandbox can write to")
		}
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault.Wrap(err, "inspect %s", p.Path)
	}
	if p.File == (st.Mode&unix.S_IFMT == unix.S_IFDIR) {
		return fault.New(fault.Invalid, "cannot mount at %s: a directory needs a directory, and a file a file", p.Path).
			WithHint("choose another path")
	}
	return nil
}

// clonePart creates a detached copy of the tree at fd, including the mounts in it.
func (m *mounter) clonePart(fd int, attr unix.MountAttr) (int, error) {
	mnt, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	m.own(mnt)
	if attr != (unix.MountAttr{}) {
		if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return -1, fmt.Errorf("mount_setattr: %w", err)
		}
	}
	return mnt, nil
}

// only makes all of the root read-only except places, and returns those that exist.
func (m *mounter) only(places []Place) ([]string, error) {
	var all, kept []string
	for _, p := range places {
		all = append(all, p.At...)
	}
	slices.Sort(all)
	var mnts []int
	for _, p := range Outermost(all) {
		fd, err := m.find(p, "writable")
		if err != nil {
			return nil, err
		}
		if fd < 0 {
			continue
		}
		mnt, err := m.clonePart(fd, unix.MountAttr{})
		if err != nil {
			return nil, fault.Wrap(err, "keep %s writable", p)
		}
		kept, mnts = append(kept, p), append(mnts, mnt)
	}
	ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(m.root, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &ro); err != nil {
		return nil, fault.Wrap(err, "make the root read-only")
	}
	for i, p := range kept {
		at, err := m.inside(p, 0)
		if err == nil {
			err = m.attach(mnts[i], at)
		}
		if err != nil {
			return nil, fault.Wrap(err, "keep %s writable", p)
		}
	}
	return kept, nil
}

// show mounts a directory or file of the host.
func (m *mounter) show(h HostMount, src int) error {
	attr := unix.MountAttr{Attr_set: attrs, Propagation: unix.MS_PRIVATE}
	if !h.Write {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if m.idmap > 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(m.idmap)
	}
	at, err := m.find(h.To, "a mount point")
	if err != nil {
		return err
	}
	mnt, err := m.clonePart(src, attr)
	if err == nil {
		err = m.attach(mnt, at)
	}
	return fault.Wrap(err, "mount %s at %s", h.From, h.To)
}

// readOnly makes places read-only, and returns their paths.
func (m *mounter) readOnly(places []Place) ([]string, error) {
	var all []string
	for _, p := range places {
		found := false
		for _, at := range p.At {
			fd, err := m.find(at, "read-only")
			if err != nil {
				return nil, err
			}
			if fd >= 0 {
				found, all = true, append(all, at)
			}
		}
		if !found {
			return nil, fault.New(fault.NotFound, "cannot make %s read-only: not found", p.Said).
				WithHint("use an existing parent directory instead, or remove " +
					"it from files.readonly")
		}
	}
	slices.Sort(all)
	ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	for _, p := range Outermost(all) {
		if p == "/" {
			err := unix.MountSetattr(m.root, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &ro)
			return nil, fault.Wrap(err, "make the root read-only")
		}
		fd, err := m.inside(p, 0)
		mnt := -1
		if err == nil {
			mnt, err = m.clonePart(fd, ro)
		}
		if err == nil {
			err = m.attach(mnt, fd)
		}
		if err != nil {
			return nil, fault.Wrap(err, "make %s read-only", p)
		}
	}
	return Outermost(all), nil
}

// pin prevents directories from being renamed and removed, which would move the mounts in them and leave their paths
// free. The kernel refuses both (EBUSY) for a directory that is a mount point anywhere in the caller's mount
// namespace (is_local_mountpoint, fs/namei.c), even if it is reached through another mount. So something is mounted
// on each of them, on a copy of its mount that no process can reach: it is below what init mounts. The directories
// themselves stay on their mount, within which programs rename and link.
func (m *mounter) pin(dirs []string) error {
	top := -1
	for _, d := range dirs {
		fd, err := m.inside(d, unix.O_DIRECTORY)
		if err != nil {
			return fault.Wrap(err, "pin %s", d)
		}
		var st unix.Statx_t
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st); err != nil {
			return fault.Wrap(err, "pin %s", d)
		}
		if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			continue // something is mounted there already
		}
		if top < 0 {
			if top, err = m.place(pinsAt); err != nil {
				return fault.Wrap(err, "pin directories")
			}
		}
		mnt, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err == nil {
			m.own(mnt)
			err = m.attach(mnt, top)
		}
		cover := -1
		if err == nil {
			cover, err = m.tmpfs(attrs|unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOEXEC, "mode=0555", "size=4k", "nr_inodes=2")
		}
		if err == nil {
			err = m.attach(cover, mnt)
		}
		if err != nil {
			return fault.Wrap(err, "pin %s", d)
		}
		top = cover
	}
	return nil
}

// pinsAt is the directory at which the mounts of pin are. Init mounts its own file system over it, which no process
// inside can unmount.
const pinsAt = "/sys"

// pointsLayer creates a read-only layer of mount points, below all others: an entry is visible if no other layer has
// one, and is never part of the history.
func (m *mounter) pointsLayer(points []Point) (int, error) {
	mnt, err := m.tmpfs(attrs, "mode=0755", "size=1m")
	if err != nil {
		return -1, err
	}
	for _, p := range points {
		if err := m.pointAt(mnt, p); err != nil {
			return -1, fmt.Errorf("%s: %w", p.Path, err)
		}
	}
	return mnt, nil
}

func (m *mounter) pointAt(layer int, p Point) error {
	parts := strings.Split(path.Clean(p.Path), "/")
	dir := layer
	for i, name := range parts {
		if p.File && i == len(parts)-1 {
			fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
			if err != nil {
				return err
			}
			m.own(fd)
			return unix.Fchown(fd, m.uid, m.gid)
		}
		made := unix.Mkdirat(dir, name, 0o755)
		if made != nil && !errors.Is(made, unix.EEXIST) {
			return made
		}
		next, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		m.own(next)
		dir = next
		if made != nil {
			continue // an earlier point has the directory, too
		}
		// Fchmod, since mkdirat applies the umask.
		err = errors.Join(unix.Fchmod(next, 0o755), unix.Fchown(next, m.uid+int(p.UID), m.gid+int(p.GID)))
		if err != nil {
			return err
		}
	}
	return nil
}
