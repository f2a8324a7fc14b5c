package rootfs

import (
	"io/fs"
	"os"

	"github.com/coppice-dev/coppice/internal/fault"
)

// ThisHost is the host that the caller runs on.
func ThisHost(store string, root bool) (Host, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Host{}, fault.Wrap(err, "read the mounts of the host")
	}
	ms, err := ParseMountinfo(text)
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
