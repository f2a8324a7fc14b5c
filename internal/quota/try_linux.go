package quota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// The limit of a test, and how much it writes.
const (
	tryLimit = 1 << 20
	tryWrite = 4 << 20
)

// TryProject tests whether the limit of a project in dir stops a command. If not, it returns a fault that names what
// is missing, with a hint. It leaves nothing behind. The caller must be real root.
func TryProject(dir string) error {
	f, err := state(dir)
	if err != nil {
		return err
	}
	if !f.Counts || !f.Holds {
		return Lack(f)
	}
	p, inherited, err := Of(dir)
	if err != nil {
		return err
	}
	if p != 0 && inherited {
		return fault.New(fault.Unsupported,
			"cannot enforce a disk limit: %s already belongs to project %d", dir, p).
			WithHint("drop disk= from --limit: the quota of that project applies; or set COPPICE_HOME to a directory " +
				"outside it")
	}
	if f.Err = tryProject(dir); f.Err != nil {
		return Lack(f)
	}
	return nil
}

// Try calls TryProject or TrySubvolume, depending on the file system of dir. by names what enforces the limit, for
// display.
func Try(dir string) (by string, err error) {
	switch fs := fileSystem(dir); fs {
	case "btrfs":
		return "qgroups of btrfs, for driver btrfs", TrySubvolume(dir)
	default:
		return "project quotas of " + fs + ", for driver overlay", TryProject(dir)
	}
}

func tryProject(dir string) (err error) {
	tmp, err := os.MkdirTemp(dir, ".coppice-probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	p, err := Claim(tmp, tryLimit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, Limit(dir, p, 0)) }()
	return stopped(filepath.Join(tmp, "f"))
}

// stopped writes a file until a limit stops it, and removes the file.
func stopped(name string) error {
	var werr error
	if err := asCommand(func() {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			werr = err
			return
		}
		buf := make([]byte, 64<<10)
		for n := 0; n < tryWrite && err == nil; n += len(buf) {
			_, err = f.Write(buf)
		}
		werr = err
		_ = f.Close()
	}); err != nil {
		return err
	}
	_ = os.Remove(name)
	switch {
	case werr == nil:
		return fmt.Errorf("%d bytes exceeded a limit of %d", tryWrite, tryLimit)
	case errors.Is(werr, unix.EDQUOT), errors.Is(werr, unix.ENOSPC): // xfs returns ENOSPC
		return nil
	}
	return werr
}

// asCommand calls fn on a new thread without CAP_SYS_RESOURCE, which exempts from quotas and which no command has.
// The thread exits afterwards.
func asCommand(fn func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&hdr, &data[0])
		if err == nil {
			data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			err = unix.Capset(&hdr, &data[0])
		}
		if err == nil {
			fn()
		}
		done <- err
	}()
	return <-done
}
