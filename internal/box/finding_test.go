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

// fallbacks are calls of the keeper's by whose error a start learns that the host lacks a
// protection. The first mount_setattr(2) protects the program that init is executed from.
var fallbacks = []struct {
	protection string
	step       boxtest.Step
	errno      unix.Errno
}{
	{plan.ShiftedIDs, boxtest.Step{Role: "coppice-keeper", Call: unix.SYS_MOUNT_SETATTR, K: 2}, unix.EINVAL},
	{"landlock", boxtest.Step{Role: "coppice-keeper", Call: unix.SYS_LANDLOCK_CREATE_RULESET, K: 1}, unix.ENOSYS},
}

// TestFallback_IsDecidedOnceForAHome has the call that puts up a protection fail: with a home
// that knows nothing, and with one that knows that the host gives the protection.
func TestFallback_IsDecidedOnceForAHome(t *testing.T) {
	t.Parallel()
	c, calm := undisturbed(t)
	for _, f := range fallbacks {
		given, ok := about(calm.Enforced.Found, f.protection)
		if !ok || given.Lacks != "" || given.Kernel == "" {
			t.Logf("%s: the host does not give it: %+v", f.protection, given)
			continue
		}
		r, err := boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: c, Step: f.step, Errno: f.errno})
		lacks, _ := about(r.Enforced.Found, f.protection)
		if err != nil || r.Err != nil || r.Failed == "" || r.Enforced.State(f.protection) == plan.On || lacks.Lacks == "" ||
			lacks.On != given.On {
			t.Errorf("%s: a home that knows nothing: %+v, %v", f.protection, r, err)
		}
		knows := c
		knows.Known = calm.Enforced.Found
		r, err = boxtest.Disturb(t.Context(), boxtest.Disturbance{Config: knows, Step: f.step, Errno: f.errno})
		if err != nil || r.Err == nil || r.Err.Kind != string(fault.Unsupported) || r.Err.Hint == "" {
			t.Errorf("%s: a home that had it: %+v, %v", f.protection, r, err)
		}
	}
}

// TestFallback_TriesNothingThatTheHomeKnowsTheHostToLack starts boxes on a host that can
// shift ids, for homes that found with this kernel, or with another, that it cannot.
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
			t.Errorf("found with Linux %s: now it found %+v, %v", tt.kernel, found, tried)
		}
	}
}

// undisturbed starts a box, and returns it with the result of the start.
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
