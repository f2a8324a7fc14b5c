package rootfs

import (
	"io/fs"
	"os"

	"github.com/coppice-dev/coppice/internal/fault"
)

// HostMounts are the mounts that the caller sees.
func HostMounts() ([]Mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fault.Wrap(err, "read the mounts of the host")
	}
	return ParseMountinfo(text)
}

// ThisHost is the host that the caller runs on.
func ThisHost(store string, root bool) (Host, error) {
	ms, err := HostMounts()
	if err != nil {
		return Host{}, err
	}
	return Host{
		Mounts: ms, Root: root, Store: store,
		Lstat: func(p string) (fs.FileMode, error) {
			fi, err := os.Lstat(p)
			if err != nil {
				return 0, err
			}
			return fi.Mode(), nil
		},
		ReadDir:  listDir,
		Readlink: os.Readlink,
		Access:   access,
	}, nil
}
