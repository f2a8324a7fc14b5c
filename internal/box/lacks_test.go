//go:build linux && (amd64 || arm64)

package box

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
)

// TestLacking_TellsTheHostFromAFailure has the errno of everything that a start may do without.
func TestLacking_TellsTheHostFromAFailure(t *testing.T) {
	t.Parallel()
	failures := []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR, unix.EIO, unix.ENOSPC, unix.ENAMETOOLONG, unix.EFAULT}
	undelegated := func(err error) bool {
		ours, err := delegated(err)
		return !ours && err == nil
	}
	for _, tt := range []struct {
		name   string
		lacks  func(error) bool
		missed []unix.Errno
		failed []unix.Errno
	}{
		{"a control group", undelegated, []unix.Errno{unix.ENOENT, unix.EACCES, unix.EPERM, unix.EROFS, unix.EOPNOTSUPP, unix.ENODEV, unix.EBUSY, unix.EINVAL}, []unix.Errno{unix.EEXIST}},
		{"Landlock", noLandlock, []unix.Errno{unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM}, []unix.Errno{unix.EINVAL}},
		{"id maps", func(err error) bool { return err != nil && noIDMap(&idMapError{err}) }, []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS}, []unix.Errno{unix.EPERM}},
	} {
		for _, e := range tt.missed {
			if !tt.lacks(&os.PathError{Op: "write", Path: "x", Err: e}) {
				t.Errorf("%s: %v does not say that the host lacks it", tt.name, e)
			}
		}
		for _, e := range append(tt.failed, failures...) {
			if tt.lacks(fmt.Errorf("write: %w", e)) {
				t.Errorf("%s: %v says that the host lacks it", tt.name, e)
			}
		}
		if tt.lacks(nil) {
			t.Errorf("%s: no error says that the host lacks it", tt.name)
		}
	}
}

// ownGroups makes the groups of a box, which are removed when the test has ended.
func ownGroups(t *testing.T, c plan.Config) (*cgroup, shares) {
	t.Helper()
	g, err := newCgroup(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.remove)
	all, err := newShares(c, plan.CgroupFacts{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.remove)
	if g == nil && len(all) == 0 {
		t.Skip("needs cgroup: no control group can be made here")
	}
	return g, all
}

// limited is a box with a limit for which each host has a group, if it has groups.
func limited(name string) plan.Config {
	return plan.Config{ID: name + strconv.FormatInt(time.Now().UnixNano(), 36), Caller: plan.Caller{Root: os.Getuid() == 0}, Limits: plan.Limits{MilliCPUs: 1000}}
}

// A keeper that is killed leaves its groups, and another one may get its number.
func TestGroup_TakesTheNameOfOneThatWasLeft(t *testing.T) {
	c := limited("left")
	ownGroups(t, c)
	ownGroups(t, c)
}

// TestGroup_FailsForWhatSaysNothingOfTheHost makes groups where there is one of that name:
// the host has groups all the same.
func TestGroup_FailsForWhatSaysNothingOfTheHost(t *testing.T) {
	c := limited("lacks")
	g, all := ownGroups(t, c)
	inside := exec.Command("sleep", "1000")
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inside.Process.Kill(); _ = inside.Wait() }() // it was killed
	if g != nil {
		if err := g.take(inside.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := all.take(inside.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if again, err := newCgroup(c); g != nil && (again != nil || err == nil) {
		t.Errorf("version 2: %v, %v", again, err)
	}
	if again, err := newShares(c, plan.CgroupFacts{}); len(all) > 0 && (len(again) > 0 || err == nil) {
		t.Errorf("version 1: %v, %v", again, err)
	}
}
