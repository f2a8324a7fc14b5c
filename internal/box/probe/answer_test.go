//go:build linux && (amd64 || arm64)

package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAnswer_DistinguishesMissingFromUnknown(t *testing.T) {
	t.Parallel()
	no := []unix.Errno{
		unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOTTY, unix.EXDEV, unix.ENODEV, unix.ENXIO,
		unix.ENOENT, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EROFS, unix.EBUSY, unix.EIO,
	}
	for e := unix.Errno(1); e < 134; e++ {
		want := Unknown
		if slices.Contains(no, e) {
			want = Missing
		}
		if got := answer(fmt.Errorf("try it: %w", e)); got != want {
			t.Errorf("%s: %s, want %s", unix.ErrnoName(e), got, want)
		}
	}
	for name, tt := range map[string]struct {
		err  error
		want State
	}{
		"no error":           {nil, OK},
		"a timeout":          {context.DeadlineExceeded, Unknown},
		"a cancelled caller": {errors.Join(context.Canceled, unix.EPERM), Unknown},
		"no errno":           {errors.New("signal: killed"), Unknown},
	} {
		if got := answer(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestTiers_ChooseStrongest(t *testing.T) {
	t.Parallel()
	all := []string{UserNamespaces, Seccomp, Devpts, FreshProc, SeccompNotify, Landlock, GateLink}
	for _, failed := range all {
		for _, state := range []State{OK, Weak, Missing, Unknown} {
			var r Report
			for _, name := range all {
				it := Item{Group: Features, Name: name, State: OK}
				if name == failed {
					it.State = state
				}
				r.Items = append(r.Items, it)
			}
			judged := tiers(&r, host{})
			want, basic := TierSupervised, slices.Contains([]string{UserNamespaces, Seccomp, Devpts, FreshProc}, failed)
			switch {
			case state == Unknown, state == Missing && basic:
				want = ""
			case state == Missing && failed != Landlock:
				want = TierProcess
			}
			if r.Tier != want {
				t.Errorf("%s is %s: tier %q, want %q", failed, state, r.Tier, want)
			}
			if state == Unknown && judged[0].State != Unknown {
				t.Errorf("%s is unknown: supervised is %s", failed, judged[0].State)
			}
			if (judged[0].State == OK || judged[0].State == Weak) != (want == TierSupervised) {
				t.Errorf("%s is %s: supervised is %s", failed, state, judged[0].State)
			}
			if want == "" && failed != GateLink && judged[1].State != state {
				t.Errorf("%s is %s: process is %s", failed, state, judged[1].State)
			}
		}
	}
}

func TestProbe_UnknownWhenCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := Probe(ctx, Options{Home: t.TempDir(), Root: os.Getuid() == 0, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	if it, _ := r.Item(Tiers, TierProcess); r.Tier != "" || it.State != Unknown {
		t.Errorf("tier %q, process is %s", r.Tier, it.State)
	}
}

// TestProbe_UnknownWithFewDescriptors runs with few free descriptors, from none to enough, in
// a separate process, since the limit belongs to the process.
func TestProbe_UnknownWithFewDescriptors(t *testing.T) {
	const inner = "COPPICE_TEST_FEW_DESCRIPTORS"
	if os.Getenv(inner) == "" {
		t.Parallel()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestProbe_UnknownWithFewDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), inner+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		t.Logf("%s", out)
		return
	}
	o := Options{Home: t.TempDir(), Root: os.Getuid() == 0, Quick: true}
	full, err := Probe(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if full.Tier != TierSupervised {
		t.Skip("needs gate-link: tier supervised does not work here")
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for n := uint64(4); n <= 64; n++ {
		few := was
		few.Cur = n
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		r, err := Probe(t.Context(), o)
		if err != nil {
			failed++
			continue
		}
		it, _ := r.Item(Tiers, TierSupervised)
		if r.Tier == "" {
			failed++
		}
		if r.Tier != "" && r.Tier != TierSupervised || it.State == Missing || (r.Tier == "") != (it.State == Unknown) {
			t.Errorf("%d descriptors: tier %q, supervised is %s: %s", n, r.Tier, it.State, it.Detail)
		}
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if failed == 0 {
		t.Error("no probe ran out of descriptors")
	}
	t.Logf("%d of 61 failed", failed)
}

// TestContainer_GivesEachRuntimeItsTime checks that a runtime that hangs takes nothing from the next.
func TestContainer_GivesEachRuntimeItsTime(t *testing.T) {
	t.Parallel()
	var ends []time.Time
	try := func(err error) func(context.Context) error {
		return func(ctx context.Context) error {
			end, _ := ctx.Deadline()
			ends = append(ends, end)
			time.Sleep(time.Millisecond)
			return err
		}
	}
	it := container(t.Context(), nil, []Runtime{{"hangs", try(context.DeadlineExceeded)}, {"works", try(nil)}})
	if it.State != OK || !strings.Contains(it.Detail, "in a container of works") || len(ends) != 2 ||
		!ends[1].After(ends[0]) {
		t.Errorf("%+v, %v", it, ends)
	}
	if it = container(t.Context(), nil, []Runtime{{"hangs", try(context.DeadlineExceeded)}}); it.State != Unknown {
		t.Errorf("%+v", it)
	}
}
