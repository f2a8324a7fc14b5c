package layer

import (
	"errors"

	"golang.org/x/sys/unix"
)

// topDir is EXT4_TOPDIR_FL: the subdirectories of the directory are unrelated.
const topDir = 0x20000

// spread asks ext4 to place each layer in a part of the disk with room instead of next to all others. There ext4
// would search for free inodes among those of layers that were just removed. Without a journal it passes over each of
// them, for every new file, for minutes. Other file systems need no such hint.
func spread(dir int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir, &fs); err != nil || fs.Type != unix.EXT4_SUPER_MAGIC {
		return err
	}
	flags, err := unix.IoctlGetInt(dir, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&topDir == 0 {
		err = unix.IoctlSetPointerInt(dir, unix.FS_IOC_SETFLAGS, flags|topDir)
	}
	// A sandbox around this process may refuse the flag. It is only a hint.
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOTTY) ||
		errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EROFS) {
		return nil
	}
	return err
}
