//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// harmless are devices that may exist inside, by number.
var harmless = map[[2]uint32]string{
	{1, 3}: "null", {1, 5}: "zero", {1, 7}: "full", {1, 8}: "random", {1, 9}: "urandom", {5, 0}: "tty", {5, 2}: "ptmx",
	{5, 1}: "console",
}

// ownDevices are further devices of gVisor's kernel, by number. It serves them itself, and opens no device of the host
// for them (runsc/boot, registerFilesystems).
var ownDevices = map[[2]uint32]string{{10, 229}: "fuse", {10, 200}: "net/tun"}

// inMemory reports whether a directory is in memory. In tier gvisor that is the memory of the sandbox's own kernel, and
// not a directory of the host.
func inMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

var deviceAttacks = []Attack{
	{Name: "make-device", Emulated: "a device of the sandbox's own kernel", None: Kernel,
		What: "make nodes of disk, memory and kernel log, and open them", Run: func(f Facts) error {
			dir, err := os.MkdirTemp("", "dev")
			if err != nil {
				return err
			}
			places := []string{dir, "/dev", "/dev/shm", "/run", "/usr", "/"}
			devices := [][3]uint32{{unix.S_IFCHR, 1, 1}, {unix.S_IFCHR, 1, 11}, {unix.S_IFCHR, 10, 229}, {unix.S_IFBLK, 254, 0},
				{unix.S_IFBLK, 8, 0}, {unix.S_IFBLK, 253, 0}, {unix.S_IFBLK, 7, 0}}
			return each(places, func(place string) error {
				return each(devices, func(d [3]uint32) error {
					p := filepath.Join(place, fmt.Sprintf("node-%d-%d", d[1], d[2]))
					defer func() { _ = os.Remove(p) }()
					if err := unix.Mknod(p, d[0]|0o666, int(unix.Mkdev(d[1], d[2]))); err != nil {
						return err
					}
					fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					var st unix.Stat_t
					if err := unix.Fstat(fd, &st); err != nil {
						return err
					}
					if st.Mode&unix.S_IFMT == unix.S_IFREG {
						return errors.New("a placeholder")
					}
					if ownDevices[[2]uint32{d[1], d[2]}] != "" && inMemory(place) {
						return f.own(nil)
					}
					return nil
				})
			})
		}},
	{Name: "find-device", Emulated: "devices of the sandbox's own kernel", None: Nothing,
		What: "open any device that is more than /dev/null and its kin", Run: func(f Facts) error {
			var found []string
			emulated := errNothing
			roots := []string{"/dev", "/run", "/sys", "/proc/1/root/dev", "/etc", "/usr"}
			if f.Own && f.User != "root" {
				roots = roots[:len(roots)-1] // it takes ten seconds, and root can see all of it
			}
			for _, root := range roots {
				_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
					if err != nil || d.Type()&fs.ModeDevice == 0 {
						return nil
					}
					var st unix.Stat_t
					if unix.Lstat(p, &st) != nil {
						return nil
					}
					number := [2]uint32{unix.Major(st.Rdev), unix.Minor(st.Rdev)}
					if d.Type()&fs.ModeCharDevice != 0 && (harmless[number] != "" || number[0] >= 136 && number[0] <= 143) {
						return nil // a pseudo-terminal of the sandbox's own devpts
					}
					fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
					if err != nil {
						return nil
					}
					unix.Close(fd)
					if f.Own && ownDevices[number] != "" && inMemory(filepath.Dir(p)) {
						emulated = errOwn
						return nil
					}
					found = append(found, p)
					return nil
				})
			}
			if len(found) == 0 {
				return emulated
			}
			tell(os.Stdout, found)
			return nil
		}},
	{Name: "foreign-terminals", None: Files, What: "open terminals of the host", Run: func(f Facts) error {
		ptys, _ := filepath.Glob("/dev/pts/[0-9]*")
		return each(append(ptys, "/dev/tty1", "/dev/console", "/dev/ttyS0"), func(p string) error {
			fd, err := unix.Open(p, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})
	}},
}
