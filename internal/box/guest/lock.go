//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/landlock"
	"github.com/coppice-dev/coppice/internal/plan"
)

// lock confines the launcher of a locked workspace; see plan.Lock. Only this thread makes the system calls, and so only
// commands are confined.
func (l *launcher) lock() error {
	g := l.guest.Lock
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fault.Wrap(err, "set no_new_privs")
	}
	open := seccomp.Options{Report: l.guest.Tell, Shared: g.Landlock > 0, NoInet: g.NoInet}
	give := seccomp.NotifyOptions{Connect: g.Landlock > 0, Terminals: g.Landlock > 0}
	if g.Inet != "" {
		if g.Landlock == 0 {
			return fault.New(fault.Unsupported, "rules for the network of a locked workspace need Landlock (Linux 5.13)")
		}
		open.NoInet, open.GateInet, give.Inet = true, true, true
	}
	if g.Landlock > 0 {
		if l.closed = notify.CanConnect(); l.closed != nil {
			give.Connect, give.Terminals, open.NoUnix = false, false, true
		}
		if err := landlockLock(g); err != nil {
			return err
		}
	}
	if g.Landlock >= landlock.ABIScopes { // otherwise init can be signalled by its own number
		open.Guard = uint32(unix.Gettid())
		if err := refusedOutside(); err != nil {
			return err
		}
		l.scoped = true
	}
	give.Refuse = open
	if err := dropHostCaps(); err != nil {
		return err
	}
	return l.filter(open, give)
}

// refusedOutside checks that the kernel refuses this thread a signal to the keeper, which has the same user and is
// outside of its Landlock domain. The thread sends signals to all processes that it can reach (signalAll), and without
// the domain those would be all of the user's, or of the machine.
func refusedOutside() error {
	keeper := unix.Getppid()
	if keeper < 1 {
		return fault.New(fault.Internal, "the keeper has no process id here")
	}
	if err := unix.Kill(keeper, 0); !errors.Is(err, unix.EPERM) {
		return fault.New(fault.Internal, "Landlock does not refuse a signal to process %d: %v", keeper, err)
	}
	return nil
}

// hostCaps are the capabilities that the commands of a locked workspace keep if the daemon has them: those of root in
// other tiers without MKNOD, for devices of the host are in reach.
func hostCaps() (keep uint64) {
	for _, c := range plan.RootCaps {
		if c != unix.CAP_MKNOD {
			keep |= 1 << c
		}
	}
	return keep
}

// dropHostCaps leaves this thread with those of hostCaps that it has. Because of no_new_privs, execve(2) adds none,
// also where the bounding set cannot be changed.
func dropHostCaps() error {
	keep := hostCaps()
	for c := range uint(64) {
		if keep&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) && c > leastLastCap {
			break // no CAP_SETPCAP; or there are no further capabilities
		} else if err != nil {
			return fault.Wrap(err, "drop capability %d", c)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fault.Wrap(err, "clear the ambient capabilities")
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return fault.Wrap(err, "read the capabilities")
	}
	for i := range have {
		have[i].Permitted &= uint32(keep >> (32 * i))
		have[i].Effective, have[i].Inheritable = have[i].Permitted, 0
	}
	_, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&have[0])), 0)
	if e != 0 {
		return fault.Wrap(e, "drop the capabilities")
	}
	return nil
}

// makeOwn makes the directories of a locked workspace. The home directory keeps its content, and has links to what the
// policy shows of the user's.
func makeOwn(l *plan.Lock) error {
	_ = os.RemoveAll(l.Tmp) // what cannot be removed, for the modes that it was given, is of no harm to its own sandbox
	for _, dir := range []string{l.Home, l.Tmp} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fault.Wrap(err, "make the directories of the sandbox")
		}
		if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
			return fault.New(fault.Invalid, "%s is not a directory", dir).Because(err).WithHint("remove it: rm %s", dir)
		}
	}
	if l.Inet != "" {
		if err := makePorts(filepath.Join(l.Inet, notify.InetPorts)); err != nil {
			return err
		}
	}
	if len(l.Links) == 0 {
		return nil
	}
	home, err := os.OpenRoot(l.Home) // commands may have put links there
	if err != nil {
		return fault.Wrap(err, "open the sandbox's home directory")
	}
	defer home.Close()
	for _, link := range l.Links {
		if _, err := home.Lstat(link.Name); err == nil {
			continue
		}
		err := home.MkdirAll(filepath.Dir(link.Name), 0o700)
		if err == nil {
			err = home.Symlink(link.To, link.Name)
		}
		if err != nil {
			return fault.New(fault.Invalid, "cannot link %s in the sandbox's home directory", link.To).Because(err).
				WithHint("remove what is there instead: ls -la %s", l.Home)
		}
	}
	return nil
}

// makePorts makes the directory of the sandbox's own ports, without those of an earlier init.
func makePorts(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	return fault.Wrap(err, "make the directory of the sandbox's ports")
}

// internet opens the network of a locked workspace with rules; nil for another. scan lists the workspace's processes.
func internet(l *plan.Lock, scan func() (procs.List, error)) (*notify.Internet, error) {
	if l.Inet == "" {
		return nil, nil
	}
	processes := func() ([]int, error) {
		all, err := scan()
		return all.InProc(), err
	}
	return notify.NewInternet(notify.Inet{Dir: l.Inet, Processes: processes,
		Own: []netip.Addr{link.Box4(), link.Box6()}})
}

// sockets returns the directories in which a locked workspace can connect to Unix sockets.
func sockets(l *plan.Lock) (dirs []string) {
	for _, dir := range slices.Concat(l.Own, l.Write) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dirs = append(dirs, real)
		}
	}
	return dirs
}
