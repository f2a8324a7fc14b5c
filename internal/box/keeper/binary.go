//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
)

// ownProgram is the path of the keeper's own program, coppice-init. It stays valid if another file replaces the
// program.
const ownProgram = "/proc/self/exe"

// helpers are the helper programs that the keeper starts in addition to its own.
type helpers struct {
	gate   *os.File // nil unless the box has a gate
	sentry *os.File // nil except in tier gvisor
	client *os.File // nil unless the sandbox shows it
}

// takeHelpers takes over the programs that Start passed.
func takeHelpers(c plan.Config) (p helpers, err error) {
	if c.Gated() {
		if p.gate, err = program.Executable(os.NewFile(protocol.GateFD, string(program.Gate))); err != nil {
			return p, err
		}
	}
	if c.Tier == plan.TierGvisor {
		if p.sentry, err = program.Executable(os.NewFile(protocol.SentryFD, string(program.Sentry))); err != nil {
			return p, err
		}
	}
	if c.Client {
		p.client, err = program.Executable(os.NewFile(protocol.ClientFD, "coppice"))
	}
	return p, err
}

// init returns the path of the program that is init in a tier.
func (p helpers) init(tier string) string {
	if tier == plan.TierGvisor {
		return program.Path(p.sentry)
	}
	return ownProgram
}

// readOnly opens the program at path, a magic link of /proc, through a detached read-only mount, or, if there is none,
// as a file in memory with a name. A sandbox that gets hold of it, for example by /proc/PID/exe of init, cannot write
// to the host's file (CVE-2019-5736).
func readOnly(name, path string) (*os.File, error) {
	f, src, err := detached(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if f != nil {
		return program.Executable(f)
	}
	// The program in memory is shared by all sandboxes, which must not be able to change it: see program.Sealed.
	f, err = program.Sealed(name, func(w io.Writer) error {
		_, err := io.Copy(w, src)
		return err
	})
	if err != nil {
		return nil, fault.Wrap(err, "copy the program %s", src.Name())
	}
	return program.Executable(f)
}

// detached opens the program at path, a magic link of /proc, and makes a detached read-only mount of it, from which it
// can be executed. mount is nil if there is none: the program is in memory, was replaced since, is on a file system
// without programs (noexec), or cannot be mounted (tier workspace). The caller closes both.
func detached(path string) (mount, src *os.File, err error) {
	if src, err = os.Open(path); err != nil {
		return nil, nil, fault.Wrap(err, "open a program to be shown inside")
	}
	name, err := os.Readlink(path)
	var is unix.Stat_t
	var fs unix.Statfs_t
	if err == nil {
		err = errors.Join(unix.Fstat(int(src.Fd()), &is), unix.Fstatfs(int(src.Fd()), &fs))
	}
	if err != nil {
		src.Close()
		return nil, nil, fault.Wrap(err, "find a program to be shown inside")
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return nil, src, nil
	}
	return mountOf(name, is), src, nil
}

// mountOf makes a detached read-only mount of the file at path name; nil if that is impossible, or if it is not the
// file is.
func mountOf(name string, is unix.Stat_t) *os.File {
	fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil
	}
	mount := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	const bare = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if unix.Fstat(fd, &st) == nil && st.Dev == is.Dev && st.Ino == is.Ino &&
		unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: bare}) == nil {
		return mount
	}
	mount.Close()
	return nil
}
