//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/mounts"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// mayCover reports whether init may mount its own file over f, to which name resolved in the sandbox's root, and
// whether the mount must be read-only. The kernel reports the path of f through proc, init's procfs.
func mayCover(proc int, regions []rootspec.Region, name string, f *os.File) (ok, readOnly bool, err error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(proc, "self/fd/"+strconv.Itoa(int(f.Fd())), buf)
	if errors.Is(err, unix.ENAMETOOLONG) || n == len(buf) {
		return false, true, nil // no system file has such a long path
	}
	if err != nil {
		return false, true, fault.Wrap(err, "resolve %s", name)
	}
	at := string(buf[:n])
	return rootspec.MayCover(regions, name, at), !rootspec.RegionOf(regions, at).Open, nil
}

// layOver mounts init's file ours over an open file of the sandbox. With readOnly, no process in the sandbox can write
// to either name. GVisor cannot clone mounts of files; there, root can write, which changes only init's file.
func layOver(ours string, over *os.File, readOnly bool) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, ours, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if errors.Is(err, unix.ENOTDIR) { // gVisor clones only mounts of directories
		return bindOver(ours, over)
	}
	if err != nil {
		return fault.Wrap(err, "open %s", ours)
	}
	defer unix.Close(tree)
	if readOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fault.Wrap(err, "make %s read-only", ours)
		}
		if err := coverItself(ours); err != nil {
			return err
		}
	}
	err = mounts.AttachOver(tree, int(over.Fd()))
	if errors.Is(err, unix.ENOENT) {
		gone, gerr := removed(over)
		if gone {
			return nil
		}
		return errors.Join(err, gerr)
	}
	return err
}

// removed reports whether the name by which f was opened has been removed, so that nothing can be mounted there. The
// link of its descriptor shows it (d_path of fs/d_path.c).
func removed(f *os.File) (bool, error) {
	proc, err := openProc()
	if err != nil {
		return false, err
	}
	defer unix.Close(proc)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(proc, "self/fd/"+strconv.Itoa(int(f.Fd())), buf)
	return err == nil && strings.HasSuffix(string(buf[:n]), " (deleted)"), err
}

// coverItself makes one of init's files in /run read-only by mounting it over itself.
func coverItself(ours string) error {
	at, err := unix.Open(ours, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "open %s", ours)
	}
	defer unix.Close(at)
	same, err := mounts.Clone(at, "", unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return fault.Wrap(err, "make %s read-only", ours)
	}
	defer unix.Close(same)
	return fault.Wrap(mounts.AttachOver(same, at), "make %s read-only", ours)
}

// bindOver is layOver with mount(2).
func bindOver(ours string, over *os.File) error {
	proc, err := openProc()
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	f, err := os.OpenFile(ours, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fault.Wrap(err, "open %s", ours)
	}
	defer f.Close()
	return bindOpen(proc, f, over)
}
