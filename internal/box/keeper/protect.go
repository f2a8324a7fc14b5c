//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mounttable"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// A start omits a protection for one reason only: the system call that sets it up reports that the host lacks it. The
// call is made before any file of the sandbox is looked up, so that nothing in the sandbox can influence its result. A
// protection that one start of a home had is never omitted by a later start (plan.Finding).

// noCloneIntoCgroup reports whether err may mean that clone3(2) cannot start a process in a control group here: the
// kernel or a seccomp filter does not support the call (ENOSYS, EPERM) or the flag (EINVAL, E2BIG).
func noCloneIntoCgroup(err error) bool {
	return isOneOf(err, unix.ENOSYS, unix.EPERM, unix.EINVAL, unix.E2BIG)
}

// idMapError is the error of mount_setattr(2) with MOUNT_ATTR_IDMAP.
type idMapError struct{ error }

func (e *idMapError) Unwrap() error { return e.error }

// noIDMap reports whether err means that the kernel or the file system does not support id-mapped mounts
// (mount_setattr(2), ERRORS).
func noIDMap(err error) bool {
	var e *idMapError
	return errors.As(err, &e) && isOneOf(e, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS)
}

// noLandlock reports whether err, from landlock_create_ruleset(2), means that the kernel lacks Landlock (ENOSYS), has
// disabled it (EOPNOTSUPP), or that a seccomp filter on this process does not know the call (EPERM).
func noLandlock(err error) bool { return isOneOf(err, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM) }

func isOneOf(err error, all ...unix.Errno) bool {
	for _, e := range all {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// startShifted starts init with the ids of facts or, if the host cannot shift them, with unshifted ids. It returns its
// findings about the host.
func (k *keeper) startShifted(ctx context.Context, facts *plan.Facts) (found []plan.Finding, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	image := k.config.Image != "" // an image determines its id map
	var on []standing
	if facts.Shift != 0 {
		if on, err = standsOn(k.config.Spec); err != nil {
			return nil, err
		}
		if f, lacks := knownLack(on, k.config.Known, facts.Kernel); lacks && !image {
			fmt.Fprintln(os.Stderr, "coppice-keeper: ids are not shifted, as found before:", f.Lacks)
			facts.Shift = 0
		}
	}
	if err := k.startInit(*facts); err != nil || facts.Shift == 0 {
		return nil, err
	}
	found, err = k.tryShift(on, facts.Kernel)
	if err == nil || image || !noIDMap(err) {
		return found, err
	}
	if err := errMissed(plan.Missed(slices.Concat(k.config.Known, found), found)); err != nil {
		return nil, err
	}
	fmt.Fprintln(os.Stderr, "coppice-keeper: ids are not shifted:", err)
	k.forgetInit()
	facts.Shift = 0
	return found, k.startInit(*facts)
}

// knownLack returns the finding that one of the file systems of a root cannot shift ids. A finding of another kernel
// does not count.
func knownLack(on []standing, known []plan.Finding, kernel string) (plan.Finding, bool) {
	for _, s := range on {
		if f, ok := plan.FindingOf(known, plan.ShiftedIDs, s.fs); ok && f.Lacks != "" && f.Kernel == kernel {
			return f, true
		}
	}
	return plan.Finding{}, false
}

// errMissed returns the error for a start that lacks a protection that the host has provided to the home before.
func errMissed(missed []plan.Finding) error {
	if len(missed) == 0 {
		return nil
	}
	names, needs := plan.Describe(missed)
	return fault.New(fault.Unsupported,
		"this host no longer provides protections that it has provided for this home: %s", names).
		WithHint("give the daemon %s again, and see what is missing: coppice system probe; "+
			"or use another home: COPPICE_HOME=DIR coppice create", needs)
}

// tryShift sets the id map of init's user namespace on a detached copy of one directory of each file system of the
// root. It opens the directories themselves, which the host names, and nothing in them.
func (k *keeper) tryShift(on []standing, kernel string) (found []plan.Finding, err error) {
	ns, err := os.Open("/proc/" + strconv.Itoa(k.init.Pid) + "/ns/user")
	if err != nil {
		return nil, fault.Wrap(err, "open init's user namespace")
	}
	defer ns.Close()
	for _, s := range on {
		f := plan.Finding{Protection: plan.ShiftedIDs, On: s.fs, Kernel: kernel}
		err := shiftCopy(s.dir, int(ns.Fd()))
		if noIDMap(err) {
			f.Lacks = "mount_setattr(2): " + err.Error()
		}
		if err == nil || f.Lacks != "" {
			found = append(found, f)
		}
		if err != nil {
			return found, fault.Wrap(err, "shift the ids of %s", s.dir)
		}
	}
	return found, nil
}

// standing is a directory of a file system of which a root is made.
type standing struct {
	dir string
	fs  string // the file system's type, such as ext4
}

// standsOn returns one directory of each file system of which a root is made. It skips missing directories, which
// mountRoot reports.
func standsOn(s rootspec.Spec) (on []standing, err error) {
	var dirs []string
	if s.Bind != "" {
		dirs = append(dirs, s.Bind)
	}
	for _, o := range s.Overlays {
		dirs = append(append(dirs, o.Upper), o.Lowers...)
	}
	mounted, err := mounttable.List(nil)
	if err != nil {
		return nil, fault.Wrap(err, "find the file systems of the root")
	}
	tried := map[uint64]bool{}
	for _, dir := range dirs {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &st)
		dev := unix.Mkdev(st.Dev_major, st.Dev_minor)
		if errors.Is(err, unix.ENOENT) || tried[dev] {
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, "find the file system of %s", dir)
		}
		tried[dev] = true
		on = append(on, standing{dir, typeOfMount(mounted, st.Mnt_id)})
	}
	return on, nil
}

// typeOfMount returns the file system type of a mount, or "" if the mount is not listed. That is so before Linux 5.8,
// where statx(2) reports no mount ID and id-mapped mounts do not exist.
func typeOfMount(mounted []*mountinfo.Info, id uint64) string {
	for _, m := range mounted {
		if uint64(m.ID) == id {
			return m.FSType
		}
	}
	return ""
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

// weaker refuses a strong box if some of its protections and limits are weaker than they should be. No program of the
// sandbox has run in it yet.
func weaker(c plan.Config, e plan.Enforced) error {
	lacks := e.Lacks()
	if !c.Strong || len(lacks) == 0 {
		return nil
	}
	var told []string
	for _, i := range lacks {
		told = append(told, i.Name+" is "+i.State+" ("+i.Detail+")")
	}
	return fault.New(fault.Unsupported, "the policy requires strong protections, which this host does not enforce: %s",
		strings.Join(told, "; ")).
		WithHint("see how to enable them: coppice system probe; or create a sandbox without them, or without strong")
}

// without refuses a box that lacks a protection with which the sandbox has run before, or which the host has provided
// to the home before. No program of the sandbox has run in it yet.
func without(c plan.Config, e plan.Enforced) error {
	lost := e.Lost(c.Require)
	if len(lost) == 0 {
		return errMissed(plan.Missed(c.Known, e.Found))
	}
	return fault.New(fault.Unsupported, "this host no longer provides protections that the sandbox has had: %s",
		strings.Join(lost, ", ")).
		WithHint("give the daemon %s again; or copy its files to a sandbox in another home: "+
			"coppice cp, COPPICE_HOME=DIR coppice create", strings.Join(plan.Needs(lost), ", and "))
}
