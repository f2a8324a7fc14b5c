package rootfs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/removal"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// volumes creates live roots as btrfs subvolumes. For each recently used stack it keeps a read-only subvolume in
// <home>/cache/btrfs, and creates a new generation as a snapshot of it, without visiting any file. The name of a
// cached subvolume is derived from the layers of its stack, which are immutable, so it is never stale; it may be
// deleted at any time.
type volumes struct{ home, cache string }

// maxCached is the maximum number of cached stacks. Their extents are shared with the layers if the copy used
// reflinks.
const maxCached = 8

func newVolumes(home string) *volumes {
	return &volumes{home: home, cache: filepath.Join(home, "cache", "btrfs")}
}

// supported fails if the home is not on btrfs.
func (v *volumes) supported() error {
	var st unix.Statfs_t
	if err := unix.Statfs(v.home, &st); err != nil {
		return fault.Wrap(err, "inspect the file system of %s", v.home)
	}
	if st.Type != unix.BTRFS_SUPER_MAGIC {
		return fault.New(fault.Unsupported, "cannot use driver btrfs: %s is not on btrfs", v.home).
			WithHint("set COPPICE_HOME to a directory on btrfs, or use --driver overlay")
	}
	return nil
}

// make creates the subvolume dst with the tree of the stack. If the stack is not cached, fill writes the tree into an
// empty directory.
func (v *volumes) make(
	ctx context.Context, stack rootspec.Stack, dst string, fill func(context.Context, rootspec.Stack, string) error,
) error {
	if err := os.MkdirAll(v.cache, 0o700); err != nil {
		return err
	}
	cached := filepath.Join(v.cache, stackKey(stack))
	if err := snapshot(cached, dst, false); err == nil {
		return v.used(cached)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := createSubvolume(dst); err != nil {
		return err
	}
	if err := fill(ctx, stack, dst); err != nil {
		return err
	}
	return v.keep(ctx, dst, cached)
}

// keep adds a read-only snapshot of dst to the cache. If another generation does the same concurrently, the first one
// remains.
func (v *volumes) keep(ctx context.Context, dst, cached string) error {
	if err := snapshot(dst, cached, true); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	if err := v.used(cached); err != nil {
		return err
	}
	return v.trim(ctx)
}

// used sets the time of last use, which is that of an empty file beside the subvolume: the subvolume itself is
// read-only.
func (v *volumes) used(cached string) error {
	return os.WriteFile(cached+".used", nil, 0o600)
}

// trim deletes the least recently used stacks.
func (v *volumes) trim(ctx context.Context) error {
	entries, err := os.ReadDir(v.cache)
	if err != nil {
		return err
	}
	type item struct {
		path string
		used time.Time
	}
	var all []item
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		it := item{path: filepath.Join(v.cache, e.Name())}
		if fi, err := os.Stat(it.path + ".used"); err == nil {
			it.used = fi.ModTime()
		}
		all = append(all, it)
	}
	slices.SortFunc(all, func(a, b item) int { return cmp.Or(b.used.Compare(a.used), strings.Compare(a.path, b.path)) })
	for _, it := range all[min(maxCached, len(all)):] {
		if err := errors.Join(removal.Tree(ctx, it.path), os.RemoveAll(it.path+".used")); err != nil {
			return err
		}
	}
	return nil
}

func stackKey(s rootspec.Stack) string {
	h := sha256.New()
	for _, l := range s.Layers {
		h.Write([]byte(l))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// ioctls of btrfs (include/uapi/linux/btrfs.h): magic 0x94 and a number each; the argument is one page.
const (
	iocSubvolCreate = 0x5000940e // _IOW(0x94, 14, struct btrfs_ioctl_vol_args)
	iocSnapCreateV2 = 0x50009417 // _IOW(0x94, 23, struct btrfs_ioctl_vol_args_v2)
	subvolReadOnly  = 1 << 1     // BTRFS_SUBVOL_RDONLY
)

type volArgs struct {
	FD   int64
	Name [4088]byte
}

type volArgsV2 struct {
	FD      int64
	TransID uint64
	Flags   uint64
	_       [4]uint64
	Name    [4040]byte
}

func ioctl(fd int, req uintptr, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg)); e != 0 {
		return e
	}
	return nil
}

func createSubvolume(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	var a volArgs
	copy(a.Name[:len(a.Name)-1], filepath.Base(path))
	if err := ioctl(int(dir.Fd()), iocSubvolCreate, unsafe.Pointer(&a)); err != nil {
		return &fs.PathError{Op: "create subvolume", Path: path, Err: err}
	}
	return nil
}

// snapshot creates dst as a snapshot of the subvolume src. An unprivileged user may snapshot subvolumes that they
// own.
func snapshot(src, dst string, readOnly bool) error {
	s, err := os.Open(src)
	if err != nil {
		return err
	}
	defer s.Close()
	dir, err := os.Open(filepath.Dir(dst))
	if err != nil {
		return err
	}
	defer dir.Close()
	a := volArgsV2{FD: int64(s.Fd())}
	if readOnly {
		a.Flags = subvolReadOnly
	}
	copy(a.Name[:len(a.Name)-1], filepath.Base(dst))
	if err := ioctl(int(dir.Fd()), iocSnapCreateV2, unsafe.Pointer(&a)); err != nil {
		return &fs.PathError{Op: "snapshot subvolume", Path: dst, Err: err}
	}
	return nil
}
