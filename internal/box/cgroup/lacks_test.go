//go:build linux && (amd64 || arm64)

package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/plan"
)

// TestDelegated_DistinguishesLackFromFailure lists every errno that means that the host has no delegated groups,
// without which a start continues, and some that are failures.
func TestDelegated_DistinguishesLackFromFailure(t *testing.T) {
	t.Parallel()
	for _, e := range []unix.Errno{unix.ENOENT, unix.EACCES, unix.EPERM, unix.EROFS, unix.EOPNOTSUPP, unix.ENODEV,
		unix.EBUSY, unix.EINVAL} {
		if ours, err := delegated(&os.PathError{Op: "write", Path: "x", Err: e}); ours || err != nil {
			t.Errorf("%v is not taken for a lack: %v", e, err)
		}
	}
	for _, e := range []unix.Errno{unix.EEXIST, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR, unix.EIO,
		unix.ENOSPC, unix.ENAMETOOLONG, unix.EFAULT} {
		if _, err := delegated(fmt.Errorf("write: %w", e)); err == nil {
			t.Errorf("%v is taken for a lack", e)
		}
	}
	if ours, err := delegated(nil); !ours || err != nil {
		t.Errorf("no error is taken for a lack: %v", err)
	}
}

// ownGroups creates the groups of a box. The test removes them when it ends.
func ownGroups(t *testing.T, c plan.Config) (*Group, Shares) {
	t.Helper()
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Remove)
	all, err := NewShares(c, plan.CgroupFacts{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.Remove)
	if g == nil && len(all) == 0 {
		t.Skip("needs cgroup: no control group can be made here")
	}
	return g, all
}

// limited is a box with a limit that every host with control groups can enforce.
func limited(name string) plan.Config {
	return plan.Config{ID: name + strconv.FormatInt(time.Now().UnixNano(), 36),
		Caller: plan.Caller{Root: os.Getuid() == 0}, Limits: plan.Limits{MilliCPUs: 1000}}
}

// TestGroup_ReusesNameOfLeftGroup covers a monitor that was killed: its groups remain, and another monitor may get its
// PID.
func TestGroup_ReusesNameOfLeftGroup(t *testing.T) {
	c := limited("left")
	ownGroups(t, c)
	ownGroups(t, c)
}

// TestGroup_FailsWhenNameIsInUse checks that a group whose name is in use is an error, and is not taken for a lack of
// control groups.
func TestGroup_FailsWhenNameIsInUse(t *testing.T) {
	c := limited("lacks")
	g, all := ownGroups(t, c)
	inside := exec.Command("sleep", "1000")
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inside.Process.Kill(); _ = inside.Wait() }() // it was killed
	if g != nil {
		if err := g.Take(inside.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := all.Take(inside.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if again, err := New(c); g != nil && (again != nil || err == nil) {
		t.Errorf("version 2: %v, %v", again, err)
	}
	if again, err := NewShares(c, plan.CgroupFacts{}); len(all) > 0 && (len(again) > 0 || err == nil) {
		t.Errorf("version 1: %v, %v", again, err)
	}
}
