//go:build linux && (amd64 || arm64)

package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// A start does without a protection for one reason only: the very system call that puts
// it up answers that the host does not have it. The call is made before any file of the
// sandbox is looked up, so that nothing in the sandbox decides how it ends.

// noCloneIntoCgroup reports whether err may say that clone3(2) cannot start a process in a
// control group here: the kernel or a seccomp filter does not have the call (ENOSYS, EPERM),
// or not the flag (EINVAL, E2BIG).
func noCloneIntoCgroup(err error) bool {
	return isOneOf(err, unix.ENOSYS, unix.EPERM, unix.EINVAL, unix.E2BIG)
}

// idMapError is the error of mount_setattr(2) with MOUNT_ATTR_IDMAP.
type idMapError struct{ error }

func (e *idMapError) Unwrap() error { return e.error }

// noIDMap reports whether err says that the kernel or the file system has no id-mapped
// mounts (mount_setattr(2), ERRORS).
func noIDMap(err error) bool {
	var e *idMapError
	return errors.As(err, &e) && isOneOf(e, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS)
}

// noLandlock reports whether err, of landlock_create_ruleset(2), says that the kernel does
// not have it (ENOSYS), does not use it (EOPNOTSUPP), or that a seccomp filter around us
// does not know the call (EPERM).
func noLandlock(err error) bool { return isOneOf(err, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM) }

func isOneOf(err error, all ...unix.Errno) bool {
	for _, e := range all {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// startShifted starts init, with the ids of facts or, where the host cannot shift them,
// with its own.
func (k *keeper) startShifted(ctx context.Context, facts *plan.Facts) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := k.startInit(*facts); err != nil || facts.Shift == 0 {
		return err
	}
	err := k.tryShift()
	if err == nil || k.config.Image != "" || !noIDMap(err) { // an image has its map of ids
		return err
	}
	fmt.Fprintln(os.Stderr, "coppice-keeper: without shifted ids:", err)
	k.forgetInit()
	facts.Shift = 0
	return k.startInit(*facts)
}

// forgetInit undoes startInit.
func (k *keeper) forgetInit() {
	if k.init != nil {
		_ = k.init.Kill()
		k.init.Wait()
		k.init = nil
	}
	if k.link != nil {
		k.link.Close()
		k.link = nil
	}
	if k.exe != nil {
		k.exe.Close()
		k.exe = nil
	}
}

// tryShift lays the id map of init's user namespace over a detached copy of one directory
// of each file system that the root stands on. It opens the directories themselves, which
// the host names, and nothing in them.
func (k *keeper) tryShift() error {
	ns, err := os.Open("/proc/" + strconv.Itoa(k.init.Pid) + "/ns/user")
	if err != nil {
		return fault.Wrap(err, "open init's user namespace")
	}
	defer ns.Close()
	tried := map[uint64]bool{}
	for _, dir := range standsOn(k.config.Spec) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || tried[st.Dev] {
			continue // mountRoot names a directory that is missing
		}
		tried[st.Dev] = true
		if err := shiftCopy(dir, int(ns.Fd())); err != nil {
			return fmt.Errorf("shift the ids of %s: %w", dir, err)
		}
	}
	return nil
}

// standsOn lists the directories of the host that a root is made of.
func standsOn(s rootspec.Spec) (dirs []string) {
	if s.Bind != "" {
		dirs = append(dirs, s.Bind)
	}
	for _, o := range s.Overlays {
		dirs = append(append(dirs, o.Upper), o.Lowers...)
	}
	return dirs
}

func shiftCopy(dir string, ns int) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return &idMapError{err}
	}
	return nil
}

// killWhenDone kills init when ctx ends, so that whatever waits for init goes on. The
// caller calls stop before it reaps init; stop may be called twice.
func (k *keeper) killWhenDone(ctx context.Context) (stop func()) {
	init, killed := k.init, make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(killed)
		_ = init.Kill()
	})
	stopped := false
	return func() {
		if !stopped && !unhook() {
			<-killed
		}
		stopped = true
	}
}
