package quota

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/mounttable"
)

// Commands and ioctls of project quotas (include/uapi/linux/quota.h, dqblk_xfs.h, fs.h).
const (
	prjQuota   = 2
	getQuota   = 0x800007<<8 | prjQuota // Q_GETQUOTA
	setQuota   = 0x800008<<8 | prjQuota // Q_SETQUOTA
	getState   = 0x5808<<8 | prjQuota   // Q_XGETQSTATV
	counted    = 1 << 4                 // FS_QUOTA_PDQ_ACCT
	enforced   = 1 << 5                 // FS_QUOTA_PDQ_ENFD
	limitsOnly = 1 | 4                  // QIF_BLIMITS, QIF_ILIMITS

	fsGetXattr  = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr  = 0x401c5820 // FS_IOC_FSSETXATTR
	projInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// dqblk is struct if_dqblk.
type dqblk struct {
	HardBlocks, SoftBlocks uint64 // in units of 1024 bytes
	Space                  uint64 // bytes
	HardInodes, SoftInodes uint64
	Inodes                 uint64
	BlockTime, InodeTime   uint64
	Valid                  uint32
	_                      uint32
}

// fsxattr is struct fsxattr.
type fsxattr struct {
	Flags, ExtSize, Extents, Project, CowExtSize uint32
	_                                            [8]byte
}

// statv begins like struct fs_quota_statv, and is larger than any version of it.
type statv struct {
	Version int8
	_       uint8
	Flags   uint16
	_       [63]uint64
}

func quotactl(fd int, cmd uintptr, id uint32, addr unsafe.Pointer) error {
	if _, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), cmd, uintptr(id), uintptr(addr), 0, 0); e != 0 {
		return e
	}
	return nil
}

func ioctl(fd int, req uintptr, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg)); e != 0 {
		return e
	}
	return nil
}

// openDir opens a directory of Coppice. The caller closes it.
func openDir(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

// names of the file systems that the package distinguishes.
var names = map[uint32]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.TMPFS_MAGIC: "tmpfs", unix.F2FS_SUPER_MAGIC: "f2fs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
}

func fileSystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "an unknown file system"
	}
	magic := uint32(st.Type) // magics are 32 bits
	if name := names[magic]; name != "" {
		return name
	}
	return "a file system of type 0x" + strconv.FormatUint(uint64(magic), 16)
}

// mountOf returns the mount that contains dir; empty if it cannot be determined.
func mountOf(dir string) (device, mount string) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", ""
	}
	defer f.Close()
	var st unix.Stat_t
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || unix.Stat(real, &st) != nil {
		return "", ""
	}
	return findMount(f, st.Dev, real)
}

// findMount finds the innermost mount of the device dev that contains dir, in the text of mountinfo.
func findMount(r io.Reader, dev uint64, dir string) (device, mount string) {
	above, err := mounttable.Parse(r, mountinfo.ParentsFilter(dir))
	if err != nil {
		return "", ""
	}
	for _, m := range above {
		if unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == dev && len(m.Mountpoint) >= len(mount) {
			device, mount = m.Source, m.Mountpoint
		}
	}
	return device, mount
}
