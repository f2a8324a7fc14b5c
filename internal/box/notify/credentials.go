//go:build linux && (amd64 || arm64)

package notify

import (
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/thread"
)

// credentials are those by which the kernel checks a caller's file accesses.
type credentials struct {
	fsuid, fsgid uint32
	groups       []uint32
	caps         uint64 // effective capabilities
}

// credentials reads the caller's credentials from /proc/TID/status (proc_pid_status(5): the last of the four ids is
// that for the file system).
func (c caller) credentials() (credentials, error) {
	f, err := c.status()
	if err != nil {
		return credentials{}, err
	}
	var out credentials
	ids := func(key string) []uint32 {
		var list []uint32
		for _, w := range strings.Fields(f[key]) {
			n, perr := strconv.ParseUint(w, 10, 32)
			if perr != nil {
				err = perr
			}
			list = append(list, uint32(n))
		}
		return list
	}
	uid, gid := ids("Uid"), ids("Gid")
	out.groups = ids("Groups")
	if err != nil || len(uid) != 4 || len(gid) != 4 {
		return credentials{}, unix.EIO
	}
	out.fsuid, out.fsgid = uid[3], gid[3]
	out.caps, err = strconv.ParseUint(f["CapEff"], 16, 64)
	return out, err
}

func (w *credentials) owns(st *unix.Statx_t) bool { return st.Uid == w.fsuid }
func (w *credentials) has(capability int) bool    { return w.caps&(1<<capability) != 0 }

// do runs fn in a new thread with these credentials for file access; the thread exits afterwards. Groups that cannot be
// set here (setgroups is denied in a user namespace of one id, where they are never mapped) remain those of this
// process.
func (w *credentials) do(fn func() error) (err error) {
	thread.OnOwn(func() {
		err = func() error {
			if len(w.groups) > 0 {
				_, _, _ = unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(w.groups)), uintptr(unsafe.Pointer(&w.groups[0])), 0)
			} else {
				_, _, _ = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
			}
			_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(w.fsgid), 0, 0)
			_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(w.fsuid), 0, 0)
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var have [2]unix.CapUserData
			if err := unix.Capget(&head, &have[0]); err != nil {
				return err
			}
			for i := range have {
				have[i].Effective = have[i].Permitted & uint32(w.caps>>(32*i))
			}
			if err := unix.Capset(&head, &have[0]); err != nil {
				return err
			}
			return fn()
		}()
	})
	return err
}

func ptr(s string) unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(s)) }
