//go:build linux && (amd64 || arm64)

package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// profiled returns what a profile of list decides about a call.
func profiled(list []Refusal, c call) (do Action, ok bool) {
	for _, r := range list {
		if r.Call == c.nr && (r.Bits == 0 || uint32(c.args[r.Arg])&r.Bits != 0) {
			return Errno(r.Errno), true
		}
	}
	return Allow, false
}

// TestProfile_DecidesAsHardening compares the decisions: what the profile refuses, the filter of commands refuses with
// the same error. It need not refuse all that the filter does.
func TestProfile_DecidesAsHardening(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {Report: true}, {Netlink: true, Report: true}} {
		list, filter := Profile(o), Hardening(o)
		rapid.Check(t, func(t *rapid.T) {
			c := drawCall(t, lastKnownCall)
			want := answer(t, filter, c)
			if got, ok := profiled(list, c); ok && got != want {
				t.Fatalf("call %d %x: %#x, but the filter says %#x", c.nr, c.args, got, want)
			}
		})
		for _, r := range list {
			if r.Name == "" {
				t.Errorf("call %d has no name", r.Call)
			}
		}
		if len(list) == 0 {
			t.Errorf("%+v: nothing is refused", o)
		}
	}
}

// TestProfile_LeavesReportedCallsToTheListener checks that a refusal that is recorded is not taken from the listener.
func TestProfile_LeavesReportedCallsToTheListener(t *testing.T) {
	t.Parallel()
	for _, r := range Profile(Options{Report: true}) {
		if r.Call == unix.SYS_MOUNT || r.Call == unix.SYS_BPF || r.Call == unix.SYS_UNSHARE {
			t.Errorf("the profile refuses %s, so no refusal is recorded", r.Name)
		}
	}
}
