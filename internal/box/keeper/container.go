//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
)

// openContainer opens the programs that the conductor of a container needs: that of its PID 1, and the OCI runtime.
func (b *building) openContainer() error {
	// The daemon has checked who can change this path, which has no links; one that has appeared since was not checked.
	fd, err := unix.Openat2(unix.AT_FDCWD, b.config.Runtime,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return fault.New(fault.Unsupported, "cannot open the OCI runtime %s", b.config.Runtime).Because(err).
			WithHint("choose another with --runtime, or see what this host supports: coppice system probe")
	}
	runtime := os.NewFile(uintptr(fd), b.config.Runtime)
	defer runtime.Close()
	for _, at := range []string{ownProgram, program.Path(runtime)} {
		mount, src, err := detached(at)
		if err != nil {
			return err
		}
		if mount == nil {
			mount = src
		} else if err := src.Close(); err != nil {
			return errors.Join(fault.Wrap(err, "open a program of the container"), mount.Close())
		}
		b.onReturn(func() { mount.Close() })
		b.fds = append(b.fds, int(mount.Fd()))
	}
	return nil
}
