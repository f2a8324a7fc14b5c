package rootfs

import (
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/moby/sys/mountinfo"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mounttable"
)

// HostMounts returns the mounts in the caller's mount namespace.
func HostMounts() ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fault.Wrap(err, "read the mounts of the host")
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts parses the text of /proc/self/mountinfo. An invalid line is an error of kind fault.Internal: it is not
// safe to guess what is mounted.
func parseMounts(r io.Reader) ([]*mountinfo.Info, error) {
	ms, err := mounttable.Parse(r, nil)
	if err != nil {
		return nil, fault.Wrap(err, "read the mounts of the host")
	}
	for _, m := range ms {
		// The library parses an invalid ID as 0, which no visible mount has.
		if m.ID < 1 || m.Parent < 1 || !path.IsAbs(m.Mountpoint) {
			return nil, fault.New(fault.Internal, "read the mounts of the host: invalid mount %d on %d at %q", m.ID,
				m.Parent, m.Mountpoint)
		}
	}
	return ms, nil
}

// ThisHost returns the host that the caller runs on.
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
