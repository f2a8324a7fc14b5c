package rootspec

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// layerSet has the directories of one overlay as open descriptors.
type layerSet struct {
	lowers      []int // topmost first
	upper, work string
	xino        bool
}

// overlay mounts o in the root, or as the root.
func (m *mounter) overlay(o Overlay, points []Point) error {
	if m.root >= 0 {
		// The directory is missing in a skeleton, and where no layer has it.
		if err := m.mkdirs(o.Target, keepMode); err != nil {
			return fault.Wrap(err, "create the mount point %s", o.Target)
		}
	}
	err := m.tryOverlay(o, points, m.settle)
	if errors.Is(err, unix.EINVAL) && !m.settle && (o.wraps() || len(points) > 0 || m.idmap > 0) {
		// Before Linux 6.15, clone_private_mount (fs/namespace.c) accepts only mounts of the caller's namespace, not
		// detached ones.
		if m.tryOverlay(o, points, true) == nil {
			err = nil
		}
	}
	if err == nil {
		return nil
	}
	f := fault.New(fault.KindOf(err), "mount the overlay of %s", o.Target).Because(err)
	switch {
	case errors.Is(err, unix.ENODEV):
		f.Kind = fault.Unsupported
		f.Hint = "this kernel has no overlayfs: modprobe overlay, or use --driver copy"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		f.Kind = fault.Unsupported
		f.Hint = "see what this host allows: coppice system probe"
	}
	return f
}

// wraps reports whether the last lower must be wrapped: a single lower overlaps nothing.
func (o Overlay) wraps() bool { return o.Wrap && len(o.Lowers) > 1 }

// tryOverlay mounts o. With settle, every detached mount that serves as a layer is first attached in a hideout, which
// is removed before tryOverlay returns.
func (m *mounter) tryOverlay(o Overlay, points []Point, settle bool) (err error) {
	h := &hideout{m: m, at: o.Target, settle: settle}
	defer func() { err = errors.Join(err, h.leave()) }()
	set, err := m.open(o, points, h)
	if err != nil {
		return err
	}
	mnt, err := m.makeOverlay(set, attrs, h)
	if err == nil {
		err = writable(mnt)
	}
	if err != nil {
		return err
	}
	if err := h.leave(); err != nil {
		return err
	}
	at, err := m.place(o.Target)
	if err != nil {
		return err
	}
	if err := m.attach(mnt, at); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	if m.root < 0 {
		return m.openRoot()
	}
	return nil
}

// open opens the layers of o, shifted and wrapped as needed, with points below them.
func (m *mounter) open(o Overlay, points []Point, h *hideout) (layerSet, error) {
	var set layerSet
	for _, p := range o.Lowers {
		fd, err := m.openHost(p)
		if err != nil {
			return set, fmt.Errorf("lower directory %s: %w", p, err)
		}
		if m.idmap > 0 {
			if fd, err = m.clone(fd, 0); err == nil {
				fd, err = h.use(fd)
			}
			if err != nil {
				return set, fmt.Errorf("shift the ids of %s: %w", p, err)
			}
		}
		set.lowers = append(set.lowers, fd)
	}
	if err := m.openUpper(o, h, &set); err != nil {
		return set, err
	}
	if o.wraps() {
		i := len(set.lowers) - 1
		fd, err := m.wrap(set.lowers[i], h)
		if err != nil {
			return set, fmt.Errorf("wrap %s: %w", o.Lowers[i], err)
		}
		set.lowers[i] = fd
	}
	if len(points) > 0 {
		fd, err := m.pointsLayer(points)
		if err == nil {
			fd, err = h.use(fd)
		}
		if err != nil {
			return set, fmt.Errorf("create mount points: %w", err)
		}
		set.lowers = append(set.lowers, fd)
	}
	set.xino = !sameDev(append(set.lowers[:len(set.lowers):len(set.lowers)], m.lastOf(set)...))
	return set, nil
}

func (m *mounter) lastOf(set layerSet) []int {
	fd, err := unix.Open(set.upper, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return []int{m.own(fd)}
}

// openUpper opens the upper and work directories. overlayfs requires them on one mount, so with an ID map their
// closest common parent is cloned once.
func (m *mounter) openUpper(o Overlay, h *hideout, set *layerSet) error {
	if m.idmap <= 0 {
		up, err := m.openHost(o.Upper)
		if err != nil {
			return fmt.Errorf("upper directory %s: %w", o.Upper, err)
		}
		work, err := m.openHost(o.Work)
		if err != nil {
			return fmt.Errorf("work directory %s: %w", o.Work, err)
		}
		set.upper, set.work = procPath(up), procPath(work)
		return nil
	}
	parent := path.Dir(o.Upper)
	for !Within(o.Work, parent) {
		parent = path.Dir(parent)
	}
	fd, err := m.openHost(parent)
	if err == nil {
		if fd, err = m.clone(fd, 0); err == nil {
			fd, err = h.use(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("shift the ids of %s: %w", parent, err)
	}
	// The generation directory is stored with ID 0, so its owner in the clone is the ID that 0 appears as.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	m.uid, m.gid = int(st.Uid), int(st.Gid)
	set.upper = procPath(fd) + strings.TrimPrefix(o.Upper, strings.TrimSuffix(parent, "/"))
	set.work = procPath(fd) + strings.TrimPrefix(o.Work, strings.TrimSuffix(parent, "/"))
	return nil
}

// wrap creates a read-only overlay that shows the directory fd. Layers below fd on the same file system are then not
// below a lower of the outer overlay, which ovl_check_layer (fs/overlayfs/super.c) refuses with ELOOP. An overlay
// without upper needs two lowers: the second is empty.
func (m *mounter) wrap(fd int, h *hideout) (int, error) {
	empty, err := m.tmpfs(attrs|unix.MOUNT_ATTR_RDONLY, "mode=0755", "size=4k", "nr_inodes=2")
	if err != nil {
		return -1, err
	}
	if empty, err = h.use(empty); err != nil {
		return -1, err
	}
	mnt, err := m.makeOverlay(layerSet{lowers: []int{fd, empty}}, attrs|unix.MOUNT_ATTR_RDONLY, h)
	if err != nil {
		return -1, err
	}
	return h.use(mnt)
}

// writable refuses an overlay that the kernel made read-only because it could not prepare the work directory.
func writable(mnt int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(mnt, &st); err != nil {
		return err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("cannot use the work directory: %w", unix.EROFS)
	}
	return nil
}

// errClassic means that this kernel lacks lowerdir+ (before 6.5).
var errClassic = errors.New("option lowerdir+ is not supported")

// makeOverlay creates a detached overlay mount.
//
// userxattr: the xattrs of overlayfs are user.overlay.*, so that an unprivileged user may write them. xino=on: if
// layers are on several file systems, st_dev is one and st_ino is still unique, so that du -x, find -xdev and tar
// --one-file-system see one file system (Documentation/filesystems/overlayfs.rst, "Inode properties"; the default
// depends on the kernel's configuration). It is off for a wrapped base: it would use up the bits that the outer
// overlay needs.
func (m *mounter) makeOverlay(set layerSet, flags int, h *hideout) (mnt int, err error) {
	try := func() error {
		mnt, err = m.newOverlay(set, flags)
		if errors.Is(err, errClassic) {
			mnt, err = m.classic(set, flags, h)
		}
		return err
	}
	if m.idmap <= 0 {
		err = try()
	} else {
		err = WithFSIDs(m.uid, m.gid, try)
	}
	return mnt, err
}

func (m *mounter) newOverlay(set layerSet, flags int) (int, error) {
	if m.classically {
		return -1, errClassic
	}
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen overlay: %w", err)
	}
	defer unix.Close(fs)
	for i, fd := range set.lowers {
		err := unix.FsconfigSetString(fs, "lowerdir+", procPath(fd))
		if i == 0 && errors.Is(err, unix.EINVAL) && !hasLowerPlus() {
			return -1, errClassic
		}
		if err != nil {
			return -1, kernelSays(fs, fmt.Errorf("lower directory %d of %d: %w", i+1, len(set.lowers), err))
		}
	}
	type kv struct{ k, v string }
	var opts []kv
	if set.upper != "" {
		opts = append(opts, kv{"upperdir", set.upper}, kv{"workdir", set.work})
	}
	xino := "off"
	if set.xino {
		xino = "on"
	}
	opts = append(opts, kv{"xino", xino})
	for _, o := range opts {
		if err := unix.FsconfigSetString(fs, o.k, o.v); err != nil {
			return -1, kernelSays(fs, fmt.Errorf("option %s: %w", o.k, err))
		}
	}
	if err := unix.FsconfigSetFlag(fs, "userxattr"); err != nil {
		return -1, kernelSays(fs, fmt.Errorf("option userxattr: %w", err))
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		if errors.Is(err, unix.EINVAL) && !hasLowerPlus() {
			return -1, errClassic
		}
		return -1, kernelSays(fs, fmt.Errorf("create overlay: %w", err))
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, flags)
	if err != nil {
		return -1, kernelSays(fs, fmt.Errorf("fsmount overlay: %w", err))
	}
	return m.own(mnt), nil
}

// hasLowerPlus tests whether the kernel supports lowerdir+, with a directory that always exists. Before Linux 6.5
// overlayfs accepts any option, and rejects it only on creation (fs/fs_context.c, legacy_parse_param).
func hasLowerPlus() bool {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	return unix.FsconfigSetString(fs, "lowerdir+", "/proc/self") == nil &&
		unix.FsconfigSetString(fs, "no-such-option", "") != nil
}

// classicData returns the option string of mount(2) for kernels without lowerdir+. The paths of descriptors need no
// escaping. mount(2) copies at most one page.
func classicData(set layerSet) (string, error) {
	lowers := make([]string, len(set.lowers))
	for i, fd := range set.lowers {
		lowers[i] = procPath(fd)
	}
	s := "userxattr,lowerdir=" + strings.Join(lowers, ":")
	if set.upper != "" {
		s += ",upperdir=" + set.upper + ",workdir=" + set.work
	}
	if set.xino {
		s += ",xino=on"
	}
	if len(s) >= 4096 {
		return "", fault.New(fault.Unsupported, "cannot mount %d layers at once on a kernel before 6.5", len(lowers)).
			WithHint("use Linux 6.5 or newer, or --driver copy")
	}
	return s, nil
}

// classic creates the overlay with mount(2), in the hideout, and returns a detached copy of the mount.
func (m *mounter) classic(set layerSet, flags int, h *hideout) (int, error) {
	data, err := classicData(set)
	if err != nil {
		return -1, err
	}
	name, at, err := h.place()
	if err != nil {
		return -1, err
	}
	if err := unix.Mount("overlay", procPath(at), "overlay", 0, data); err != nil {
		return -1, fmt.Errorf("mount overlay: %w", err)
	}
	mnt, err := unix.OpenTree(h.dir, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	m.own(mnt)
	attr := unix.MountAttr{Attr_set: uint64(flags), Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return mnt, nil
}

// hideout is a tmpfs over the mount point in which detached mounts are attached one by one while an overlay is
// created from them; overlayfs keeps its own private clones.
type hideout struct {
	m      *mounter
	at     string
	settle bool
	dir    int // the tmpfs, if in is true
	in     bool
	n      int
}

// use returns a descriptor with which the detached mount mnt can be a layer.
func (h *hideout) use(mnt int) (int, error) {
	if !h.settle {
		return mnt, nil
	}
	_, at, err := h.place()
	if err != nil {
		return -1, err
	}
	if err := h.m.attach(mnt, at); err != nil {
		return -1, fmt.Errorf("move_mount: %w", err)
	}
	return mnt, nil
}

// place creates a directory in the hideout, which it mounts on the first call.
func (h *hideout) place() (name string, fd int, err error) {
	if !h.in {
		at, err := h.m.place(h.at)
		if err != nil {
			return "", -1, err
		}
		tmp, err := h.m.tmpfs(attrs, "mode=0700", "size=64k")
		if err != nil {
			return "", -1, err
		}
		if err := h.m.attach(tmp, at); err != nil {
			return "", -1, fmt.Errorf("move_mount: %w", err)
		}
		h.dir, h.in = tmp, true
	}
	name = fmt.Sprint(h.n)
	h.n++
	if err := unix.Mkdirat(h.dir, name, 0o700); err != nil {
		return "", -1, err
	}
	fd, err = unix.Openat(h.dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", -1, err
	}
	return name, h.m.own(fd), nil
}

// leave unmounts the hideout; a second call does nothing.
func (h *hideout) leave() error {
	if !h.in {
		return nil
	}
	h.in = false
	if err := unix.Unmount(procPath(h.dir), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the temporary mount: %w", err)
	}
	return nil
}

// sameDev reports whether all directories are on one file system.
func sameDev(fds []int) bool {
	var first uint64
	for i, fd := range fds {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return false
		}
		if i == 0 {
			first = st.Dev
		} else if st.Dev != first {
			return false
		}
	}
	return true
}
