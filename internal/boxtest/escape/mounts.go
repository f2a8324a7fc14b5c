//go:build linux && (amd64 || arm64)

package escape

import (
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

var mountAttacks = []Attack{
	{Name: "mount", Refused: []string{"mount", "fsopen", "fspick", "fsmount", "open_tree", "move_mount", "pivot_root"},
		What: "mount file systems by the old and the new calls", Run: func(f Facts) error {
			return any1(map[string]func() error{
				"tmpfs":   func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") },
				"proc":    func() error { return unix.Mount("proc", "/tmp", "proc", 0, "") },
				"sysfs":   func() error { return unix.Mount("sys", "/tmp", "sysfs", 0, "") },
				"cgroup2": func() error { return unix.Mount("cg", "/tmp", "cgroup2", 0, "") },
				"cgroup":  func() error { return unix.Mount("cg", "/tmp", "cgroup", 0, "devices") },
				"bind":    func() error { return unix.Mount("/", "/tmp", "", unix.MS_BIND, "") },
				"fsopen":  func() error { _, err := unix.Fsopen("tmpfs", 0); return err },
				"fspick":  func() error { _, err := unix.Fspick(unix.AT_FDCWD, "/", 0); return err },
				"fsmount": func() error { _, err := unix.Fsmount(0, 0, 0); return err },
				"open_tree": func() error {
					_, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
					return err
				},
				"move_mount": func() error { return unix.MoveMount(unix.AT_FDCWD, "/proc", unix.AT_FDCWD, "/tmp", 0) },
				"pivot_root": func() error { return unix.PivotRoot("/", "/") },
			})
		}},
	{Name: "remount", Refused: []string{"mount", "mount_setattr"},
		What: "make read-only mounts writable, and drop nosuid and nodev", Run: func(f Facts) error {
			return each(mountPoints(), func(p string) error {
				if err := unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND, ""); err == nil {
					return nil
				}
				attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID}
				return unix.MountSetattr(unix.AT_FDCWD, p, 0, &attr)
			})
		}},
	{Name: "unmount", Refused: []string{"umount2"}, What: "take masks and covers off", Run: func(f Facts) error {
		return each(mountPoints(), func(p string) error {
			if err := unix.Unmount(p, unix.MNT_DETACH); err == nil {
				return nil
			}
			return unix.Unmount(p, unix.MNT_EXPIRE)
		})
	}},
}

func mountPoints() []string {
	mounts, _ := mountinfo.GetMounts(nil)
	var list []string
	for _, m := range mounts {
		list = append(list, m.Mountpoint)
	}
	return list
}
