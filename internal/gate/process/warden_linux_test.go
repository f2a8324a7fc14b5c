//go:build linux && (amd64 || arm64)

package process

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policy"
)

func TestRest(t *testing.T) {
	t.Parallel()
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	phases := []phase{{digest: "a", until: t0}, {digest: "b", until: t0.Add(time.Minute)}, {digest: "c"}}
	for after, want := range map[time.Duration]string{-time.Hour: "a", -1: "a", 0: "b", time.Second: "b", time.Minute: "c",
		time.Hour: "c"} {
		if got := rest(phases, t0.Add(after))[0]; got.digest != want {
			t.Errorf("after %v: %s, want %s", after, got.digest, want)
		}
	}
}

// TestDropped_IsTheReasonOfClients checks that the journal has the reason by which the audit log recognizes drops.
func TestDropped_IsTheReasonOfClients(t *testing.T) {
	t.Parallel()
	if gate.Dropped != wire.NetDropped {
		t.Errorf("%q, %q", gate.Dropped, wire.NetDropped)
	}
}

func TestParse_RefusesInvalid(t *testing.T) {
	t.Parallel()
	p, err := policy.Merge()
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := p.Digest()
	if err != nil {
		t.Fatal(err)
	}
	good := plan.Phase{Policy: string(text), Digest: digest}
	ends := good
	ends.Until = time.Now().Add(time.Hour)
	if _, err := parse([]plan.Phase{ends, good}); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		phases []plan.Phase
		want   fault.Kind
	}{
		"none":                       {nil, fault.Internal},
		"all phases expire":          {[]plan.Phase{ends}, fault.Internal},
		"no policy":                  {[]plan.Phase{{Digest: digest}}, fault.Corrupt},
		"another digest":             {[]plan.Phase{{Policy: string(text), Digest: "sha256:00"}}, fault.Corrupt},
		"a changed policy":           {[]plan.Phase{{Policy: string(text) + " ", Digest: digest}}, fault.Corrupt},
		"the last policy is invalid": {[]plan.Phase{ends, {Policy: "{}", Digest: digest}}, fault.Corrupt},
	} {
		if _, err := parse(c.phases); !fault.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// ward is a warden whose clock the test controls, and whose journal can be moved away.
type ward struct {
	*warden
	t   *testing.T
	dir string
	at  time.Time
}

func newWard(t *testing.T, phases ...plan.Phase) *ward {
	t.Helper()
	w := &ward{t: t, dir: filepath.Join(t.TempDir(), "journal"), at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(journal.Place{Dir: w.dir})
	if err != nil {
		t.Fatal(err)
	}
	w.warden = &warden{journal: j, clock: func() time.Time { return w.at }, stop: make(chan struct{}),
		changed: make(chan struct{}, 1)}
	if err := w.take(phases); err != nil {
		t.Fatal(err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(ends[1]) })
	if w.gate, err = gate.New(t.Context(),
		gate.Options{FD: os.NewFile(uintptr(ends[0]), "packets"), Report: w.report}); err != nil {
		t.Fatal(err)
	}
	w.step()
	return w
}

func (w *ward) move(from, to string) {
	w.t.Helper()
	if err := os.Rename(from, to); err != nil {
		w.t.Fatal(err)
	}
}

// ends returns the digests of the policies in the journal's records of expired rules.
func (w *ward) ends() (left []string) {
	w.t.Helper()
	evs, err := journal.Read(journal.Place{Dir: w.dir}, journal.Query{Kinds: []string{wire.NetPolicy}})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, ev := range evs {
		if ev.Reason == wire.NetRulesEnded && ev.Time.Equal(w.at) {
			left = append(left, ev.Policy)
		}
	}
	return left
}

func (w *ward) want(left ...string) {
	w.t.Helper()
	if got := w.ends(); !slices.Equal(got, left) {
		w.t.Errorf("the recorded expiries left the policies %q, want %q", got, left)
	}
}

// said returns a phase with a policy that allows a host.
func said(t *testing.T, host string) plan.Phase {
	t.Helper()
	d, err := policy.Parse("test", []byte("version: 1\ntier: supervised\nnetwork:\n  allow: ["+host+"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Merge(policy.Layer{Level: policy.Flags, Document: d})
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	return plan.Phase{Policy: string(text), Digest: policy.DigestOf(text)}
}

// TestRuleExpiry_IsReportedOnce checks that the expiry of a rule is reported once, whatever notices it first: the time,
// another policy, or the close of the gate.
func TestRuleExpiry_IsReportedOnce(t *testing.T) {
	t.Parallel()
	a, b, c := said(t, "a.example"), said(t, "b.example"), said(t, "c.example")
	a.Until = time.Date(2026, 1, 2, 3, 5, 5, 0, time.UTC)
	for name, act := range map[string]func(*ward){
		"time": func(w *ward) { w.look() },
		"another policy": func(w *ward) {
			if err := w.keepTo([]plan.Phase{c}); err != nil || w.force != c.Digest {
				w.t.Errorf("%s is in force, %v", w.force, err)
			}
		},
		"the same rules for longer": func(w *ward) {
			again := a
			again.Until = a.Until.Add(time.Minute)
			if err := w.keepTo([]plan.Phase{again, b}); err != nil || w.force != a.Digest {
				w.t.Errorf("%s is in force, %v", w.force, err)
			}
		},
		"a journal that is away": func(w *ward) {
			w.move(w.dir, w.dir+".away")
			for range 3 {
				w.look()
			}
			if w.force != "" || !w.blind.Load() {
				w.t.Errorf("%q is in force without a journal", w.force)
			}
			w.move(w.dir+".away", w.dir)
			w.look()
		},
		"a journal that was away before": func(w *ward) {
			w.at = w.at.Add(-time.Second)
			w.move(w.dir, w.dir+".away")
			w.report(gate.Event{Kind: gate.KindDNS})
			w.look()
			w.at = w.at.Add(time.Second)
			w.look()
			w.move(w.dir+".away", w.dir)
			w.look()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWard(t, a, b)
			w.look()
			w.want()
			w.at = a.Until
			act(w)
			w.want(b.Digest)
			w.look()
			w.close()
			w.want(b.Digest)
		})
	}
	t.Run("the gate's end", func(t *testing.T) {
		t.Parallel()
		w := newWard(t, a, b)
		w.at = a.Until
		w.close()
		w.want(b.Digest)
	})
}

// TestRuleExpiry_BeforeStartIsReported covers a rule that expires before its policy reaches the gate: its expiry is
// reported, although it was never in force there.
func TestRuleExpiry_BeforeStartIsReported(t *testing.T) {
	t.Parallel()
	a, b := said(t, "a.example"), said(t, "b.example")
	w := newWard(t, b)
	a.Until = w.at
	if err := w.keepTo([]plan.Phase{a, b}); err != nil || w.force != b.Digest {
		t.Errorf("%s is in force, %v", w.force, err)
	}
	w.want(b.Digest)
	w.close()
}
