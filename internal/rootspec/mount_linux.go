package rootspec

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Options configure Mount. The zero value is valid.
type Options struct {
	// IDMapFD is the descriptor of a user namespace (/proc/PID/ns/user) whose map is applied to every directory of
	// the root: a stored ID 0 appears as the ID that 0 is mapped to outside, and that ID is stored as 0. 0 means no
	// shift. It requires the capabilities of the initial user namespace, and a file system that supports it
	// (FS_ALLOW_IDMAP).
	IDMapFD int

	// Zero is the ID that ID 0 appears as, if IDs are shifted.
	Zero int

	// Keep, if not nil, receives the descriptors that Mount opened, for the caller to close. Otherwise Mount closes
	// them before it returns.
	Keep *Descriptors

	// For tests: the code paths for kernels before 6.15 and before 6.5.
	settle, classic bool
}

// Descriptors are open descriptors, some of them of detached mounts. No mount depends on them.
type Descriptors []int

// Close closes the descriptors. It is slow, since a detached mount is destroyed with its descriptor, and the kernel
// waits until it is unused (synchronize_rcu in namespace_unlock, fs/namespace.c): about a millisecond each.
func (d *Descriptors) Close() {
	for _, fd := range *d {
		_ = unix.Close(fd)
	}
	*d = nil
}

// attrs are the flags of every mount of a live root: device nodes and set-id bits have no effect in trees that were
// imported or written by others.
const attrs = unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID

// Mount mounts the live root s at the directory target. The calling process must be in its own mount namespace with
// private propagation, and have CAP_SYS_ADMIN over it: either as real root or as uid 0 of a user namespace. /proc
// must be mounted. Mount leaves Reserved to the caller. If it fails, nothing remains mounted.
//
// Directories are passed to overlayfs as /proc/self/fd/N. So their paths may have any length (a string of fsconfig(2)
// is limited to 255 bytes) and contain ':', ',' and '\', and mountinfo inside the sandbox shows no path of the host.
func Mount(s Spec, target string, opts Options) (err error) {
	if err := s.Validate(); err != nil {
		return err
	}
	m := &mounter{target: target, idmap: opts.IDMapFD, root: -1, settle: opts.settle, classically: opts.classic}
	defer func() {
		if err != nil && m.mounted {
			// MNT_DETACH also detaches everything below.
			_ = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if err == nil && opts.Keep != nil {
			*opts.Keep = append(*opts.Keep, m.fds...)
			return
		}
		m.fds.Close()
	}()
	overlays := s.Overlays
	skeleton := false
	switch {
	case s.Bind != "":
		err = m.bind(s.Bind)
	case overlays[0].Target == "/":
		err = m.overlay(overlays[0], s.points(0))
		overlays = overlays[1:]
	default:
		skeleton = true
		err = m.skeleton(s)
	}
	if err != nil {
		return err
	}
	for i, o := range overlays {
		if err := m.overlay(o, s.points(len(s.Overlays)-len(overlays)+i)); err != nil {
			return err
		}
	}
	if skeleton {
		for _, p := range s.points(-1) {
			if err := m.point(p); err != nil {
				return err
			}
		}
	}
	for _, f := range s.Files {
		if err := m.file(f, skeleton && !s.covers(f.Target)); err != nil {
			return err
		}
	}
	for _, h := range s.Hide {
		if err := m.hide(h); err != nil {
			return err
		}
	}
	if skeleton {
		ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(m.root, "", unix.AT_EMPTY_PATH, &ro); err != nil {
			return fault.Wrap(err, "make the skeleton of the root read-only")
		}
	}
	return nil
}

// covers reports whether p is in one of the overlays.
func (s Spec) covers(p string) bool {
	return slices.ContainsFunc(s.Overlays, func(o Overlay) bool { return Within(p, o.Target) })
}

// mounter is one run of Mount.
type mounter struct {
	target  string
	idmap   int
	root    int  // the mounted root, O_PATH; -1 before it is mounted
	mounted bool // something is mounted at target
	fds     Descriptors

	uid, gid int // the IDs that ID 0 appears as, if IDs are shifted

	settle, classically bool // as in Options
}

func (m *mounter) own(fd int) int {
	m.fds = append(m.fds, fd)
	return fd
}

// openHost opens a directory of the host by its path.
func (m *mounter) openHost(p string) (int, error) {
	fd, err := dirfd.OpenLong(unix.AT_FDCWD, p, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	return m.own(fd), nil
}

// place opens a directory inside the root, at its topmost mount, without following symbolic links: the sandbox may
// have written there.
func (m *mounter) place(p string) (int, error) {
	if p == "/" && m.root < 0 {
		return m.openHost(m.target)
	}
	return m.inside(p, unix.O_DIRECTORY)
}

func (m *mounter) inside(p string, flags int) (int, error) {
	fd, err := dirfd.OpenLong(m.root, cmp.Or(strings.TrimPrefix(p, "/"), "."),
		unix.O_PATH|unix.O_NOFOLLOW|flags, dirfd.Beneath)
	if err != nil {
		return -1, err
	}
	return m.own(fd), nil
}

// attach mounts the detached mount mnt over the directory or file at.
func (m *mounter) attach(mnt, at int) error {
	return unix.MoveMount(mnt, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// attachRoot mounts mnt at the target and opens it as the root.
func (m *mounter) attachRoot(mnt int) error {
	at, err := m.openHost(m.target)
	if err != nil {
		return fault.Wrap(err, "open the mount point %s", m.target)
	}
	if err := m.attach(mnt, at); err != nil {
		return fault.Wrap(err, "mount the root at %s", m.target)
	}
	return m.openRoot()
}

func (m *mounter) openRoot() error {
	m.mounted = true
	fd, err := m.openHost(m.target)
	if err != nil {
		return fault.Wrap(err, "open the mounted root %s", m.target)
	}
	m.root = fd
	return nil
}

// bind mounts a plain directory as the root.
func (m *mounter) bind(dir string) error {
	fd, err := m.openHost(dir)
	if err != nil {
		return fault.Wrap(err, "open the root directory %s", dir)
	}
	mnt, err := m.clone(fd, attrs)
	if err != nil {
		return fault.Wrap(err, "bind the root directory %s", dir)
	}
	return m.attachRoot(mnt)
}

// clone creates a detached copy of the mount of fd, rooted at fd, with shifted IDs if the options require it
// (open_tree(2) with OPEN_TREE_CLONE; mount_setattr(2): a mount can be given an ID map only while it is detached).
func (m *mounter) clone(fd int, set uint64) (int, error) {
	mnt, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	m.own(mnt)
	attr := unix.MountAttr{Attr_set: set, Propagation: unix.MS_PRIVATE}
	if m.idmap > 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(m.idmap)
	}
	if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return mnt, nil
}

// tmpfs creates a detached tmpfs.
func (m *mounter) tmpfs(set int, opts ...string) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen tmpfs: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range opts {
		k, v, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(fs, k, v); err != nil {
			return -1, kernelSays(fs, fmt.Errorf("tmpfs option %s: %w", o, err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, kernelSays(fs, fmt.Errorf("create tmpfs: %w", err))
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, set)
	if err != nil {
		return -1, fmt.Errorf("fsmount tmpfs: %w", err)
	}
	return m.own(mnt), nil
}

// skeleton mounts a tmpfs as the root, and creates in it what must exist before overlays are mounted on it.
func (m *mounter) skeleton(s Spec) error {
	mnt, err := m.tmpfs(attrs, "mode=0755", "size=16m")
	if err != nil {
		return fault.Wrap(err, "create the skeleton of the root")
	}
	if err := m.attachRoot(mnt); err != nil {
		return err
	}
	for _, e := range s.Skeleton {
		if e.Link != "" {
			if err := m.symlink(e); err != nil {
				return fault.Wrap(err, "create the link %s of the root", e.Path)
			}
			continue
		}
		if err := m.mkdirs(e.Path, int(e.Mode)); err != nil {
			return fault.Wrap(err, "create the directory %s of the root", e.Path)
		}
	}
	for _, p := range Reserved {
		if err := m.mkdirs(p, keepMode); err != nil {
			return fault.Wrap(err, "create the directory %s of the root", p)
		}
	}
	return nil
}

func (m *mounter) symlink(e Entry) error {
	dir, name := path.Split(e.Path)
	if err := m.mkdirs(path.Clean(dir), keepMode); err != nil {
		return err
	}
	fd, err := m.place(path.Clean(dir))
	if err != nil {
		return err
	}
	return unix.Symlinkat(e.Link, fd, name)
}

// keepMode makes mkdirs set mode 0755 on a new directory, and keep the mode of an existing one.
const keepMode = -1

// mkdirs creates the directory p of the root with the permission bits mode, and missing parents with 0755.
func (m *mounter) mkdirs(p string, mode int) error {
	if p == "/" {
		return nil
	}
	dir, name := path.Split(p)
	dir = path.Clean(dir)
	fd, err := m.place(dir)
	if errors.Is(err, unix.ENOENT) {
		if err := m.mkdirs(dir, keepMode); err != nil {
			return err
		}
		fd, err = m.place(dir)
	}
	if err != nil {
		return err
	}
	err = unix.Mkdirat(fd, name, 0o755)
	if errors.Is(err, unix.EEXIST) {
		err = nil
		if mode == keepMode {
			return nil
		}
	}
	if err != nil {
		return err
	}
	if mode == keepMode {
		mode = 0o755
	}
	return unix.Fchmodat(fd, name, uint32(mode)&0o7777, 0) // the umask applies to mkdir(2)
}

// file binds one file of the host read-only. If its mount point is missing, it is created in a skeleton; in an
// overlay the file is omitted, since creating a mount point would be a change that the sandbox did not make.
func (m *mounter) file(f File, skeleton bool) error {
	src, err := unix.Open(f.Source, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "open %s", f.Source)
	}
	m.own(src)
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return fault.Wrap(err, "inspect %s", f.Source)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // if it became a socket, for example, it would lead out of the sandbox
	}
	if skeleton {
		if err := m.touch(f.Target); err != nil {
			return fault.Wrap(err, "create the mount point of %s", f.Target)
		}
	}
	at, err := m.inside(f.Target, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "open the mount point of %s", f.Target)
	}
	mnt, err := m.clone(src, attrs|unix.MOUNT_ATTR_RDONLY)
	if err == nil {
		err = m.attach(mnt, at)
	}
	return fault.Wrap(err, "bind %s", f.Target)
}

// touch creates an empty file in the skeleton.
func (m *mounter) touch(p string) error {
	dir, name := path.Split(p)
	if err := m.mkdirs(path.Clean(dir), keepMode); err != nil {
		return err
	}
	d, err := m.place(path.Clean(dir))
	if err != nil {
		return err
	}
	fd, err := unix.Openat(d, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// hide covers a directory of the root with an empty read-only tmpfs. A path that leads through symbolic links shows
// nothing of the host: directories of a lower layer are visible only at their own paths.
func (m *mounter) hide(p string) error {
	at, err := m.inside(p, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "open %s to hide it", p)
	}
	mnt, err := m.tmpfs(attrs|unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOEXEC, "mode=0555", "size=4k", "nr_inodes=2")
	if err == nil {
		err = m.attach(mnt, at)
	}
	return fault.Wrap(err, "hide %s", p)
}

// procPath returns a path of an open descriptor that is valid in every option that takes a path.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// kernelSays adds to err what the kernel logged in the file-system context fs: each read(2) returns one line,
// "e ", "w " or "i " and the text (fsopen(2)).
func kernelSays(fs int, err error) error {
	var lines []string
	buf := make([]byte, 1024)
	for len(lines) < 16 {
		n, rerr := unix.Read(fs, buf)
		if rerr != nil || n <= 0 {
			break
		}
		lines = append(lines, strings.TrimSpace(string(buf[:n])))
	}
	if len(lines) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(lines, "; "))
}
