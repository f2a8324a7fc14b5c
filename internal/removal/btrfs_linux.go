package removal

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

// ioctls of btrfs (include/uapi/linux/btrfs.h).
const (
	iocSnapDestroy    = 0x5000940f // _IOW(0x94, 15, struct btrfs_ioctl_vol_args)
	iocSubvolSetflags = 0x4008941a // _IOW(0x94, 26, __u64)
	subvolRootInode   = 256        // BTRFS_FIRST_FREE_OBJECTID
)

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	FD   int64
	Name [4088]byte
}

func ioctl(fd int, req uintptr, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg)); e != 0 {
		return e
	}
	return nil
}

// dropSubvolume deletes the subvolume name in the directory dir with one ioctl, which only root may (or any user,
// with the mount option user_subvol_rm_allowed). Others empty it first: for them it makes the subvolume writable, and
// rmdir(2) deletes an empty subvolume (since Linux 4.18).
func dropSubvolume(dir int, name string) bool {
	if !isSubvolume(dir, name) {
		return false
	}
	fd, err := dirfd.OpenDir(dir, name)
	if err != nil {
		return false
	}
	var flags uint64
	_ = ioctl(fd, iocSubvolSetflags, unsafe.Pointer(&flags))
	_ = unix.Close(fd)
	var a volArgs
	if len(name) >= len(a.Name) || strings.IndexByte(name, 0) >= 0 {
		return false
	}
	copy(a.Name[:], name)
	// The caller's descriptor may be O_PATH, on which ioctls fail.
	at, err := dirfd.OpenDir(dir, ".")
	if err != nil {
		return false
	}
	defer unix.Close(at)
	return ioctl(at, iocSnapDestroy, unsafe.Pointer(&a)) == nil
}

// isSubvolume reports whether a directory on btrfs is the root of a subvolume.
func isSubvolume(dir int, name string) bool {
	st, err := dirfd.Lstat(dir, name)
	return err == nil && st.Ino == subvolRootInode && dirfd.IsDir(&st)
}
