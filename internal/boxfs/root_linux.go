package boxfs

import (
	"cmp"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Options configure a Root.
type Options struct {
	// Dir is the root, which the Root owns and closes. O_PATH is sufficient.
	Dir  *os.File
	User User
	// Renames is held while a name is removed or replaced. So while another holder lists files, a Root neither
	// removes what the holder has seen nor moves a file past it. It is also held from the comparison with
	// WriteOptions.Match to the rename. Roots of the same directory share one. If nil, the Root uses its own.
	Renames sync.Locker
	// Watches is shared by all Roots of the same directory; nil creates a separate one.
	Watches *Watches
	// Fixed are the paths, without links, of the policy's mounts. Neither they nor their parent directories are
	// renamed, replaced or removed.
	Fixed []string
	// Decoys are the paths of Fixed, without links, that a Root must not show: files on their file system are neither
	// opened nor listed.
	Decoys []string
	// Unseen are directories, without links, on memory file systems of the sandbox: their content cannot be reached
	// from outside, where Dir has empty file systems.
	Unseen []string
	// Limits bound a single call; the zero value means DefaultLimits.
	Limits Limits
}

// Limits bound a single call.
type Limits struct {
	List    int   // entries in a result of List
	Entries int64 // entries of an archive
	Bytes   int64 // total size of the files of an archive
	Watches int   // watched directories of one Watch
}

// DefaultLimits are used if Options has no Limits.
var DefaultLimits = Limits{List: limit.ListEntries, Entries: limit.UnpackEntries, Bytes: 256 << 30, Watches: 8192}

// Root gives access to the files in a directory. Its methods are safe for concurrent use; their errors have a
// fault.Kind. Create one with New.
type Root struct {
	dir     *os.File
	fd      int
	user    User
	actor   actor
	renames sync.Locker
	watches *Watches
	limits  Limits
	dev     uint64          // device of the root directory
	kind    int64           // type of its file system
	kernels map[uint64]bool // devices of file systems of the kernel
	held    map[inode]bool  // parent directories of Options.Fixed
	decoys  map[uint64]bool // devices of Options.Decoys
	unseen  []string        // Options.Unseen
	covers  map[uint64]bool // devices of the mounts at Options.Unseen
}

// New returns a Root. If it fails, opt.Dir remains the caller's.
func New(opt Options) (*Root, error) {
	a, err := opt.User.actor()
	if err != nil {
		return nil, err
	}
	if opt.Renames == nil {
		opt.Renames = new(sync.Mutex)
	}
	if opt.Watches == nil {
		opt.Watches = new(Watches)
	}
	r := &Root{watches: opt.Watches, dir: opt.Dir, fd: int(opt.Dir.Fd()), user: opt.User, actor: a, renames: opt.Renames,
		limits: opt.Limits.or(DefaultLimits), kernels: map[uint64]bool{}, unseen: opt.Unseen, covers: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return nil, fault.Wrap(err, "stat the root")
	}
	if !dirfd.IsDir(&st) {
		return nil, fault.New(fault.Invalid, "the root is not a directory")
	}
	var fs unix.Statfs_t
	if err := fstatfs(r.fd, &fs); err != nil {
		return nil, fault.Wrap(err, "stat the root")
	}
	r.dev, r.kind = st.Dev, fs.Type
	if err := r.holds(opt.Fixed); err != nil {
		return nil, fault.Wrap(err, "list the mounts in the root")
	}
	if err := r.findDecoys(opt.Decoys); err != nil {
		return nil, fault.Wrap(err, "find honeytokens")
	}
	if err := r.findMounted(r.covers, opt.Unseen); err != nil {
		return nil, fault.Wrap(err, "find hidden paths")
	}
	return r, fault.Wrap(r.findMounted(r.kernels, kernelPlaces), "find the kernel's file systems")
}

func (l Limits) or(d Limits) Limits {
	if l.List == 0 {
		l.List = d.List
	}
	if l.Entries == 0 {
		l.Entries = d.Entries
	}
	if l.Bytes == 0 {
		l.Bytes = d.Bytes
	}
	if l.Watches == 0 {
		l.Watches = d.Watches
	}
	return l
}

// Close closes the root. Files that were opened through it remain open.
func (r *Root) Close() error { return r.dir.Close() }

// kernelPlaces are the mount points of file systems of the kernel, some of which have the same type as the one at
// /tmp.
var kernelPlaces = []string{"/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue"}

// findMounted adds the devices of the mounts at places, which processes inside cannot move.
func (r *Root) findMounted(devs map[uint64]bool, places []string) error {
	for _, name := range places {
		name = strings.TrimLeft(name, "/")
		var st unix.Stat_t
		fd, err := dirfd.Open(r.fd, name, unix.O_PATH|unix.O_NOFOLLOW, dirfd.InRoot|dirfd.NoLinks)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) ||
			errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err != nil {
			return err
		}
		if st.Dev != r.dev {
			devs[st.Dev] = true
		}
	}
	return nil
}

// ordinary are the types of file systems with files of users.
var ordinary = map[int64]bool{
	unix.OVERLAYFS_SUPER_MAGIC: true,
	unix.TMPFS_MAGIC:           true,
	unix.EXT4_SUPER_MAGIC:      true,
	unix.XFS_SUPER_MAGIC:       true,
	unix.BTRFS_SUPER_MAGIC:     true,
	unix.F2FS_SUPER_MAGIC:      true,
}

// admit refuses a file on a file system of the kernel. It checks the opened file, never a name.
func (r *Root) admit(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if r.decoys[st.Dev] {
		return unix.ENOENT
	}
	if r.covers[st.Dev] {
		return errUnseen("it is")
	}
	if r.kernels[st.Dev] {
		return errKernel
	}
	if st.Dev == r.dev {
		return nil
	}
	var fs unix.Statfs_t
	if err := fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != r.kind && !ordinary[fs.Type] {
		return errKernel
	}
	return nil
}

// errUnseen is the error for a path that cannot be reached from outside.
func errUnseen(what string) error {
	return fault.New(fault.Unsupported, "%s on a memory file system of the sandbox, unreachable from outside", what).
		WithHint("use a command in the sandbox, or another directory: coppice exec NAME -- ls DIRECTORY")
}

// seen refuses a path in Options.Unseen. A path that leads there through a link is refused by admit if something is
// opened, and otherwise not found.
func (r *Root) seen(p string) error {
	p = path.Clean("/" + p)
	for _, at := range r.unseen {
		if p == at || strings.HasPrefix(p, at+"/") {
			return errUnseen(strconv.Quote(p) + " is")
		}
	}
	return nil
}

var errKernel = errors.New("it is on a file system of the kernel")

func fstatfs(fd int, fs *unix.Statfs_t) error {
	for {
		if err := unix.Fstatfs(fd, fs); err != unix.EINTR {
			return err
		}
	}
}

// open opens p in the root. With O_NOFOLLOW in flags it opens a link in the last component itself.
func (r *Root) open(p string, flags int) (int, error) {
	return dirfd.OpenLong(r.fd, cmp.Or(strings.TrimLeft(p, "/"), "."), flags, dirfd.InRoot)
}

// reopen opens exactly the file that the O_PATH descriptor fd refers to. It must be a directory or a regular file.
func reopen(fd, flags int) (int, error) {
	for {
		got, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != unix.EINTR {
			return got, err
		}
	}
}

// place is a name in a directory.
type place struct {
	dir  int // O_PATH
	name string
}

func (p place) close() { unix.Close(p.dir) }

// parent opens the parent directory of p.
func (r *Root) parent(p string) (place, error) {
	dir, name, err := splitPath(p)
	if err != nil {
		return place{}, err
	}
	fd, err := r.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return place{}, err
	}
	if err := r.admit(fd); err != nil {
		unix.Close(fd)
		return place{}, err
	}
	return place{fd, name}, nil
}

// splitPath splits off the last component of a path. It refuses a path that does not end in a name.
func splitPath(p string) (dir, name string, err error) {
	dir, name = path.Split(strings.TrimRight(p, "/"))
	if name == "" || name == "." || name == ".." {
		return "", "", fault.New(fault.Invalid, "invalid path %q: must end in the name of a file", p).
			WithHint("use a path such as /src/main.go")
	}
	return dir, name, nil
}

// valid refuses invalid paths, and those in Unseen.
func (r *Root) valid(p string) error {
	switch {
	case p == "":
		return fault.New(fault.Invalid, "path is required").
			WithHint("use a path such as /src/main.go; / is the root directory")
	case strings.IndexByte(p, 0) >= 0:
		return fault.New(fault.Invalid, "invalid path %q: must not contain NUL", p).WithHint("remove the NUL byte")
	case len(p) > 1<<20:
		return fault.New(fault.Invalid, "invalid path of %d bytes: too long", len(p)).
			WithHint("a path may have %d bytes", 1<<20)
	}
	return r.seen(p)
}

// errIs converts a system error to a fault of the appropriate kind.
func errIs(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	var known *fault.Error
	if errors.As(err, &known) {
		return err
	}
	kind, hint := fault.KindOf(err), ""
	switch {
	case errors.Is(err, errKernel):
		kind, hint = fault.Denied, "/proc, /sys and /dev are not files; read them with a command in the sandbox"
	case errors.Is(err, unix.ENOTDIR):
		kind, hint = fault.Invalid, "a component of the path is not a directory"
	case errors.Is(err, unix.EISDIR):
		kind, hint = fault.Invalid, "it is a directory"
	case errors.Is(err, unix.ELOOP):
		kind, hint = fault.Invalid, "symbolic links in the path form a loop, or lead into /proc"
	case errors.Is(err, unix.ENAMETOOLONG):
		kind, hint = fault.Invalid, "a name may have 255 bytes"
	case errors.Is(err, unix.ENOTEMPTY):
		kind, hint = fault.Conflict, "it is not empty; to remove its contents too, set recursive"
	case errors.Is(err, unix.EXDEV):
		kind, hint = fault.Unsupported, "it crosses file systems; move it inside: coppice exec NAME -- mv FROM TO"
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ETXTBSY),
		errors.Is(err, unix.ESTALE):
		kind, hint = fault.Conflict, "a process in the sandbox uses or moves it; try again"
	case errors.Is(err, unix.EINVAL):
		kind, hint = fault.Invalid, "the file system does not support such a name or change"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		kind, hint = fault.Unavailable, "too many files are open; try again later"
	case errors.Is(err, unix.EROFS):
		kind, hint = fault.Denied,
			"it is read-only inside, by the policy or on the host; see: coppice policy show NAME"
	case kind == fault.Exists:
		hint = "remove it first, or choose another name"
	case kind == fault.Denied:
		hint = "the sandbox's user lacks the permission"
	}
	return fault.New(kind, format, args...).Because(err).WithHint("%s", hint)
}

// do runs one operation on p as the user.
func (r *Root) do(verb, p string, fn func() error) error {
	if err := r.valid(p); err != nil {
		return err
	}
	return errIs(r.actor.act(fn), "%s %q", verb, p)
}
