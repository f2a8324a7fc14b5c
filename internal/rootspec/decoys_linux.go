package rootspec

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// decoys creates the files in a new tmpfs, which has no path on the host: only processes inside can open them. Each
// file is mounted separately, and the file system as a whole nowhere.
func (m *mounter) decoys(list []Decoy, s *Sources) error {
	if len(list) == 0 {
		return nil
	}
	mnt, err := m.tmpfs(attrs, "mode=0700", "size=8m")
	if err != nil {
		return fault.Wrap(err, "create honeytokens")
	}
	for i, d := range list {
		if err := m.point(Point{Path: d.At, File: true}); err != nil {
			return err
		}
		if err := m.decoy(mnt, strconv.Itoa(i), d); err != nil {
			return fault.Wrap(err, "create a honeytoken for %s", d.At)
		}
	}
	// Before 6.15, the kernel can move only attached mounts. Init later mounts its own file system there, after this
	// one is detached.
	top, err := m.place(pinsAt)
	if err == nil {
		err = m.attach(mnt, top)
	}
	if err != nil {
		return fault.Wrap(err, "mount honeytokens")
	}
	for i, d := range list {
		if err := m.showDecoy(mnt, strconv.Itoa(i), d, s); err != nil {
			return fault.Wrap(err, "mount a honeytoken at %s", d.At)
		}
	}
	return fault.Wrap(unix.Unmount(m.target+pinsAt, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW), "release honeytokens")
}

// decoy writes one file.
func (m *mounter) decoy(dir int, name string, d Decoy) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for rest := d.Text; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	if m.idmap > 0 {
		if err := unix.Fchown(fd, m.uid, m.gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, d.Mode&0o777); err != nil {
		return err
	}
	at := unix.NsecToTimespec(d.ModTime.UnixNano())
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

// showDecoy mounts one file at its path, and makes s hold it.
func (m *mounter) showDecoy(dir int, name string, d Decoy, s *Sources) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	s.decoys = append(s.decoys, fd)
	at, err := m.find(d.At, "a honeytoken")
	if err != nil {
		return err
	}
	mnt, err := m.clonePart(fd, unix.MountAttr{Attr_set: attrs | unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE})
	if err != nil {
		return err
	}
	return m.attach(mnt, at)
}
