package boxfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// IDMap is one line of a uid or gid map.
type IDMap struct {
	Inside  uint32
	Outside uint32 // as this process sees it
	Size    uint32
}

// User is the user to act as. The IDs are those seen in the root.
type User struct {
	UID    uint32
	GID    uint32
	Groups []uint32
	UIDs   []IDMap
	GIDs   []IDMap
}

// nobody is the overflow ID: the kernel reports it in place of an ID that is not mapped (user_namespaces(7)).
const nobody = 65534

// Outside returns the user's UID as this process sees it; ok is false if it is not mapped.
func (u User) Outside() (uid uint32, ok bool) { return outside(u.UIDs, u.UID) }

// outside maps an inside ID to the one that this process sees.
func outside(m []IDMap, id uint32) (uint32, bool) {
	for _, l := range m {
		if id >= l.Inside && id-l.Inside < l.Size {
			return l.Outside + (id - l.Inside), true
		}
	}
	return 0, false
}

// inside is the reverse of outside.
func inside(m []IDMap, id uint32) uint32 {
	for _, l := range m {
		if id >= l.Outside && id-l.Outside < l.Size {
			return l.Inside + (id - l.Outside)
		}
	}
	return nobody
}

// rootCaps are the capabilities that a root user keeps: those of its own processes that concern files. They have no
// effect outside the root, since only files in it are opened.
const rootCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// actor is a User with the IDs that this process sees.
type actor struct {
	uid, gid int
	groups   []uint32
	caps     uint64
}

func (u User) actor() (actor, error) {
	uid, ok1 := outside(u.UIDs, u.UID)
	gid, ok2 := outside(u.GIDs, u.GID)
	if !ok1 || !ok2 {
		return actor{}, fault.New(fault.Internal, "user %d:%d has no ids outside the sandbox", u.UID, u.GID)
	}
	a := actor{uid: int(uid), gid: int(gid)}
	for _, g := range u.Groups {
		if id, ok := outside(u.GIDs, g); ok {
			a.groups = append(a.groups, id)
		}
	}
	if u.UID == 0 {
		a.caps = rootCaps
	}
	return a, nil
}

// act runs fn on a thread with the file-system IDs, groups and capabilities of the user. If these cannot be set, it
// does not run fn. Goroutines that fn starts act as this process.
func (a actor) act(fn func() error) error {
	runtime.LockOSThread()
	was, err := a.enter()
	if err == nil {
		err = fn()
	}
	if lerr := was.leave(); lerr != nil {
		// The thread must not be used for anything else. It stays locked, and so exits with this goroutine.
		return errors.Join(err, lerr)
	}
	runtime.UnlockOSThread()
	return err
}

// before is the state of a thread before act.
type before struct {
	head   unix.CapUserHeader
	caps   [2]unix.CapUserData
	groups []uint32
	known  bool
}

func (a actor) enter() (was before, err error) {
	was.head = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&was.head, &was.caps[0]); err != nil {
		return was, fault.Wrap(err, "read the capabilities of the thread")
	}
	groups, err := unix.Getgroups()
	if err != nil {
		return was, fault.Wrap(err, "read the groups of the thread")
	}
	for _, g := range groups {
		was.groups = append(was.groups, uint32(g))
	}
	was.known = true
	// If only one ID is mapped, setgroups(2) is permanently denied, and the processes inside have kept these groups
	// as well.
	same := a.uid == os.Geteuid() && a.gid == os.Getegid() && len(a.groups) == 0
	if e := setgroups(a.groups); e != nil && (!errors.Is(e, unix.EPERM) || !same) {
		return was, fault.Wrap(e, "set the user's groups")
	}
	if err := setFSIDs(a.uid, a.gid); err != nil {
		return was, err
	}
	caps := was.caps
	for i := range caps {
		caps[i].Effective = caps[i].Permitted & uint32(a.caps>>(32*i))
		caps[i].Inheritable = 0
	}
	return was, fault.Wrap(unix.Capset(&was.head, &caps[0]), "set the user's capabilities")
}

func (was *before) leave() error {
	if !was.known {
		return nil
	}
	err := unix.Capset(&was.head, &was.caps[0])
	if err == nil {
		err = setFSIDs(os.Geteuid(), os.Getegid())
	}
	if err == nil {
		if err = setgroups(was.groups); errors.Is(err, unix.EPERM) {
			err = was.sameGroups()
		}
	}
	if err == nil {
		err = unix.Capset(&was.head, &was.caps[0]) // setfsuid(2) also sets some
	}
	return fault.Wrap(err, "restore the thread's identity")
}

// sameGroups checks that the groups are unchanged where setgroups(2) is denied.
func (was *before) sameGroups() error {
	now, err := unix.Getgroups()
	if err != nil {
		return err
	}
	if !slices.EqualFunc(now, was.groups, func(a int, b uint32) bool { return uint32(a) == b }) {
		return unix.EPERM
	}
	return nil
}

// setgroups sets the groups of only this thread.
func setgroups(g []uint32) error {
	var first unsafe.Pointer
	if len(g) > 0 {
		first = unsafe.Pointer(&g[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(g)), uintptr(first), 0); e != 0 {
		return e
	}
	return nil
}

// setFSIDs sets the file-system IDs of this thread. The system calls return the previous IDs and report no errors, so
// they are called again to check.
func setFSIDs(uid, gid int) error {
	_, _ = unix.SetfsgidRetGid(gid)
	_, _ = unix.SetfsuidRetUid(uid)
	g, err1 := unix.SetfsgidRetGid(-1)
	u, err2 := unix.SetfsuidRetUid(-1)
	if err := errors.Join(err1, err2); err != nil {
		return fault.Wrap(err, "set the user's file-system ids")
	}
	if u != uid || g != gid {
		return fault.New(fault.Internal, "set the user's file-system ids").
			Because(fmt.Errorf("file-system ids are %d:%d, not %d:%d", u, g, uid, gid))
	}
	return nil
}
