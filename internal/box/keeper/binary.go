//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"io"
	"os"
	"strconv"

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
}

// takeHelpers takes over the programs that Start passed.
func takeHelpers(c plan.Config) (p helpers, err error) {
	if c.Gated() {
		if p.gate, err = program.Executable(os.NewFile(protocol.GateFD, string(program.Gate))); err != nil {
			return p, err
		}
	}
	if c.Tier == plan.TierGvisor {
		p.sentry, err = program.Executable(os.NewFile(protocol.SentryFD, string(program.Sentry)))
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

// readOnly opens the program at path, a magic link of /proc, through a detached read-only mount. Init is executed from
// it: a sandbox that opens /proc/PID/exe of init cannot write to the host's file (CVE-2019-5736).
func readOnly(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, "open the program of init")
	}
	defer src.Close()
	name, err := os.Readlink(path)
	if err != nil {
		return nil, fault.Wrap(err, "find the program of init")
	}
	var is, st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &is); err != nil {
		return nil, fault.Wrap(err, "find the program of init")
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		f := os.NewFile(uintptr(fd), name)
		if err = unix.Fstat(fd, &st); err == nil && st.Dev == is.Dev && st.Ino == is.Ino {
			if err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH,
				&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err == nil {
				return program.Executable(f)
			}
		}
		f.Close()
	}
	// The program is in memory, was replaced since, or cannot be mounted (workspace). The program in memory
	// is shared by all sandboxes, which must not be able to change it: see program.Sealed.
	f, err := sealedCopy(src)
	if err != nil {
		return nil, fault.Wrap(err, "copy the program of init")
	}
	return program.Executable(f)
}

// sealedCopy copies a program into memory, for one sandbox.
func sealedCopy(src io.Reader) (*os.File, error) {
	return program.Sealed(string(program.Init), func(w io.Writer) error {
		_, err := io.Copy(w, src)
		return err
	})
}

// innerProgram is the program that is PID 1 in a sandbox's own kernel: that of its image, or the keeper's own. A memory
// image can be resumed only with that same program, even after coppice was replaced.
type innerProgram struct {
	kept *os.File // the program of the image, locked; nil for the keeper's own
	was  state
}

// state detects that a program was overwritten in place.
type state struct{ size, seconds, nanos int64 }

func stateOf(fd int) (state, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return state{st.Size, st.Mtim.Sec, st.Mtim.Nsec}, err
}

// openInner opens the program for reading. The caller closes it.
func (k *keeper) openInner() (*os.File, error) {
	at := ownProgram
	if kept := k.inner.kept; kept != nil {
		at = "/proc/self/fd/" + strconv.Itoa(int(kept.Fd()))
	}
	f, err := os.Open(at)
	if err != nil {
		return nil, fault.Wrap(err, "open the program of the sandbox's init")
	}
	now, err := stateOf(int(f.Fd()))
	if err == nil && now != k.inner.was {
		err = fault.New(fault.Conflict,
			"the program of the sandbox's init was overwritten while it ran, so its memory cannot be resumed").
			WithHint("restart the sandbox: coppice stop %s; replace coppice by renaming a new file into place",
				k.config.Name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// showInner returns the program as a descriptor that the conductor can mount: a detached read-only mount, or a file in
// memory. The caller closes it.
func (k *keeper) showInner() (fd int, err error) {
	if k.config.Init == "" {
		self, err := os.Open(ownProgram)
		if err == nil {
			k.inner.was, err = stateOf(int(self.Fd()))
			self.Close()
		}
		if err != nil {
			return -1, fault.Wrap(err, "open the program of the sandbox's init")
		}
		f, err := readOnly(ownProgram)
		if err != nil {
			return -1, err
		}
		defer f.Close()
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		return fd, fault.Wrap(err, "expose the program of the sandbox's init")
	}
	if err := k.inner.open(k.config.Init); err != nil {
		return -1, fault.Wrap(err, "open the init of the memory image")
	}
	var mount unix.Statfs_t
	at := int(k.inner.kept.Fd())
	if err := unix.Fstatfs(at, &mount); err == nil && mount.Flags&unix.ST_NOEXEC == 0 {
		fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err == nil {
			const bare = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
			if err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: bare}); err == nil {
				return fd, nil
			}
			unix.Close(fd)
		}
	}
	// The store's mount is noexec.
	f, err := sealedCopy(io.NewSectionReader(k.inner.kept, 0, k.inner.was.size))
	if err != nil {
		return -1, fault.Wrap(err, "copy the init of the memory image")
	}
	defer f.Close()
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	return fd, fault.Wrap(err, "expose the init of the memory image")
}

// open opens the program of an image, and locks it: the store keeps a locked program until the keeper exits.
func (i *innerProgram) open(name string) error {
	i.close() // left from a failed attempt
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	i.kept = os.NewFile(uintptr(fd), name)
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if err == nil {
		i.was, err = stateOf(fd)
	}
	return err
}

func (i *innerProgram) close() {
	if i.kept != nil {
		i.kept.Close()
		i.kept = nil
	}
}
