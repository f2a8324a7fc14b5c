//go:build linux && (amd64 || arm64)

package box_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/plan"
)

// fallbacks are calls of the keeper whose error means that the host lacks a protection. The first mount_setattr(2)
// protects the program from which init is executed, so the second is made to fail.
var fallbacks = []struct {
	protection string
	step       boxtest.Step
	errno      unix.Errno
}{
	{plan.ShiftedIDs, boxtest.Step{Role: "coppice-keeper", Call: unix.SYS_MOUNT_SETATTR, K: 2}, unix.EINVAL},
	{"landlock", boxtest.Step{Role: "coppice-keeper", Call: unix.SYS_LANDLOCK_CREATE_RULESET, K: 1}, unix.ENOSYS},
}

// TestFallback_IsDecidedOnceForAHome makes the call that sets up a protection fail: for a home without findings, which
// falls back, and for a home that had the protection before, which refuses the start.
func TestFallback_IsDecidedOnceForAHome(t *testing.T) {
	t.Parallel()
	c, calm := undisturbed(t)
	for _, f := range fallbacks {
		given, ok := about(calm.Enforced.Found, f.protection)
		if !ok || given.Lacks != "" || given.Kernel == "" {
			t.Logf("%s: the host lacks it: %+v", f.protection, given)
			continue
		}
		r, err := boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: c, Step: f.step, Errno: f.errno})
		lacks, _ := about(r.Enforced.Found, f.protection)
		if err != nil || r.Err != nil || r.Failed == "" || r.Enforced.State(f.protection) == plan.On || lacks.Lacks == "" ||
			lacks.On != given.On {
			t.Errorf("%s: a home without findings: %+v, %v", f.protection, r, err)
		}
		knows := c
		knows.Known = calm.Enforced.Found
		r, err = boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: knows, Step: f.step, Errno: f.errno})
		if err != nil || r.Err == nil || r.Err.Kind != string(fault.Unsupported) || r.Err.Hint == "" {
			t.Errorf("%s: a home that had the protection: %+v, %v", f.protection, r, err)
		}
	}
}

// TestFallback_TriesNothingThatTheHomeKnowsTheHostToLack starts boxes on a host that can shift ids, for homes that
// recorded, with this kernel or with another, that it cannot. Only the same kernel is not tried again.
func TestFallback_TriesNothingThatTheHomeKnowsTheHostToLack(t *testing.T) {
	t.Parallel()
	c, calm := undisturbed(t)
	given, ok := about(calm.Enforced.Found, plan.ShiftedIDs)
	if !ok || given.Lacks != "" {
		t.Skip("needs real-root and idmap: the host shifts no ids")
	}
	lacks := given
	lacks.Lacks = "mount_setattr(2): invalid argument"
	for _, tt := range []struct{ kernel, state string }{{given.Kernel, plan.Weak}, {"5.4.0", plan.On}} {
		lacks.Kernel = tt.kernel
		c.Known = []plan.Finding{lacks}
		r, err := boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: c})
		found, tried := about(r.Enforced.Found, plan.ShiftedIDs)
		if err != nil || r.Err != nil || r.Enforced.State(plan.ShiftedIDs) != tt.state {
			t.Errorf("found with Linux %s: %+v, %v", tt.kernel, r, err)
		}
		if want := tt.state == plan.On; tried != want || tried && found != given {
			t.Errorf("found with Linux %s: the new finding is %+v, %v", tt.kernel, found, tried)
		}
	}
}

// undisturbed starts a box without a failing call, and returns its configuration with the result of the start.
func undisturbed(t *testing.T) (plan.Config, boxtest.Disturbed) {
	t.Helper()
	if looptest.Race {
		t.Skip("needs plain-build: the race detector's calls are not the program's")
	}
	c := config(t)
	c.ID = fmt.Sprintf("finding%08x", rand.Uint32())
	calm, err := boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: c})
	if err != nil || calm.Err != nil || calm.Trouble != "" {
		t.Fatalf("undisturbed: %+v, %v", calm, err)
	}
	return c, calm
}

func about(found []plan.Finding, protection string) (plan.Finding, bool) {
	for _, f := range found {
		if f.Protection == protection {
			return f, true
		}
	}
	return plan.Finding{}, false
}
