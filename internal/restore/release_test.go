//go:build linux

package restore

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// fakeCore is an engine with one live sandbox, its box, its record and its ledger. It records the steps of a release.
type fakeCore struct {
	Box // except the methods below

	rec   meta.Sandbox
	hooks []wire.FileInfo
	steps []string
	most  int64 // the time limit of the last command, in milliseconds

	acquired func() // called by Acquire; nil: nothing
	exec     func() // called by Exec
	openErr  error  // the error of opening the gate
	other    Box    // a box that has replaced this one; nil: none
}

// step records a step.
func (f *fakeCore) step(text string) { f.steps = append(f.steps, text) }

func (f *fakeCore) Acquire(context.Context, string, string) (Held, meta.Sandbox, error) {
	if f.acquired != nil {
		f.acquired()
	}
	return fakeHeld{f: f}, f.rec, nil
}

func (f *fakeCore) Snapshot(context.Context, *meta.Sandbox, timeline.SnapshotID) (s timeline.Snapshot, err error) {
	return s, errors.New("it has a box")
}

func (f *fakeCore) Exec(_ context.Context, _ string, req wire.ExecRequest, _ io.ReadWriter) (wire.Exit, error) {
	f.exec()
	f.most = req.TimeoutMS
	f.step("exec " + req.Cmd[0])
	return wire.Exit{}, nil
}

func (f *fakeCore) Files(context.Context, string) (Files, error) { return fakeFiles{f}, nil }

func (f *fakeCore) Describe(_ context.Context, rec *meta.Sandbox) wire.Sandbox {
	return wire.Sandbox{Name: rec.Name}
}

func (f *fakeCore) Sandbox(context.Context, string) (meta.Sandbox, error) { return f.rec, nil }

func (f *fakeCore) UpdateSandbox(_ context.Context, _ timeline.SandboxID, change func(*meta.Sandbox) error) error {
	return change(&f.rec)
}

func (f *fakeCore) Rekey(context.Context, string, []byte) ([]Step, error) {
	f.step("reseal")
	return []Step{{Name: "hostname"}}, nil
}

func (f *fakeCore) Release(context.Context) error {
	f.step("open")
	return f.openErr
}

func (f *fakeCore) Gone() <-chan struct{} { return nil }

// fakeHeld is the sandbox of a fakeCore with its lock held.
type fakeHeld struct {
	Held // except the methods below
	f    *fakeCore
}

func (h fakeHeld) Box() Box {
	if h.f.other != nil {
		return h.f.other
	}
	return h.f
}

func (h fakeHeld) Unlock() {}

func (h fakeHeld) Start(context.Context, *meta.Sandbox, *images.Image) (Box, func() error, error) {
	h.f.step("start")
	return h.f, func() error { return nil }, nil
}

func (h fakeHeld) Adopt(context.Context, *meta.Sandbox, string) ([]string, error) { return nil, nil }

// fakeFiles are the files of a fakeCore.
type fakeFiles struct{ f *fakeCore }

func (x fakeFiles) List(_ context.Context, dir string, _ int) (l wire.FileList, err error) {
	if dir == HooksDir {
		l.Files = x.f.hooks
	}
	return l, nil
}

func (x fakeFiles) Context() context.Context { return context.Background() }
func (x fakeFiles) Close() error             { return nil }

// fakeBook is the ledger of a fakeCore.
type fakeBook struct{ f *fakeCore }

func (b fakeBook) Drafts(context.Context, *meta.Sandbox, ...audit.Statement) []ledger.Draft {
	return nil
}
func (b fakeBook) Record(context.Context, *meta.Sandbox, ...audit.Statement) error { return nil }
func (b fakeBook) Note(context.Context, *meta.Sandbox, ...audit.Statement)         { b.f.step("note") }

func (b fakeBook) Do(ctx context.Context, _ []ledger.Draft, fn func(context.Context) error) error {
	b.f.step("record")
	return fn(ctx)
}

// newFake makes a Restorer over a fakeCore, whose sandbox is quarantined and has a hook.
func newFake(t *testing.T) (*Restorer, *fakeCore) {
	t.Helper()
	book, _, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() })
	f := &fakeCore{rec: meta.Sandbox{ID: "0123456789ab", Name: "a"}, exec: func() {},
		hooks: []wire.FileInfo{{Path: HooksDir + "/10-hook", Type: "file", Mode: 0o755}, {Path: "README", Type: "file"}}}
	f.rec.Quarantine = Quarantine(time.Now(), "aaaaaaaaaaaa")
	log := slog.New(slog.DiscardHandler)
	return New(Config{
		Sandboxes: f, Records: f, Recorder: fakeBook{f}, Feed: events.NewBus(time.Now, nil), Rand: rand.Reader, Now: time.Now,
		Log: log, Images: images.New(images.Config{Go: func(func(context.Context)) {}}),
		Cleaners: audit.NewCleaners(audit.CleanersConfig{
			Ledger: book, Logger: log, DecoyTokens: func(*meta.Sandbox) ([]string, error) { return nil, nil },
			Evidence: func(context.Context, *meta.Sandbox) (policy.Evidence, error) { return policy.DefaultEvidence(), nil },
		}),
	}), f
}

// TestRelease_OpensTheGateLast checks that the gate opens last, after it is recorded. If that fails, the sandbox
// stays quarantined with the reason. A sandbox that is not quarantined is not changed.
func TestRelease_OpensTheGateLast(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	f.openErr = errors.New("the gate is stuck")
	if err := r.Release(t.Context(), "a"); !errors.Is(err, f.openErr) {
		t.Error(err)
	}
	order := []string{"reseal", "exec " + HooksDir + "/10-hook", "record", "open"}
	if want := append(slices.Clone(order), "note"); !slices.Equal(f.steps, want) {
		t.Errorf("%q, want %q", f.steps, want)
	}
	if q := f.rec.Quarantine; q == nil || q.Step != StepGate || q.Reason != "the gate is stuck" {
		t.Errorf("%+v", q)
	}
	f.openErr = nil
	for range 2 {
		f.steps = nil
		if err := r.Release(t.Context(), "a"); err != nil || f.rec.Quarantine != nil {
			t.Errorf("%+v, %v", f.rec.Quarantine, err)
		}
		if !slices.Equal(f.steps, order) {
			t.Errorf("%q, want %q", f.steps, order)
		}
		order = nil
	}
}

// TestRelease_HasOneCaller checks that one caller at a time releases a sandbox.
func TestRelease_HasOneCaller(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	var second error
	f.exec = func() { second = r.Release(t.Context(), "a") }
	if err := r.Release(t.Context(), "a"); err != nil || !fault.Is(second, fault.Conflict) {
		t.Errorf("the first caller: %v; the concurrent one: %v", err, second)
	}
}

// TestRelease_OpensGateOnlyOfRekeyedProcesses covers a sandbox that is rewound to the memory of another sandbox while
// its hooks run, since no lock is held then. These processes do not have their own identity yet, and their gate stays
// closed.
func TestRelease_OpensGateOnlyOfRekeyedProcesses(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	_, other := newFake(t)
	f.exec = func() { f.other, f.rec.Quarantine = other, Quarantine(time.Now(), "bbbbbbbbbbbb") }
	if err := r.Release(t.Context(), "a"); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
	if slices.Contains(f.steps, "open") || slices.Contains(other.steps, "open") {
		t.Errorf("steps %q; of the other box: %q", f.steps, other.steps)
	}
	if q := f.rec.Quarantine; q == nil || q.Step != StepGate || q.At != "bbbbbbbbbbbb" {
		t.Errorf("%+v", q)
	}
}

// TestRelease_IgnoresReleasedSandbox covers a sandbox that another client releases first.
func TestRelease_IgnoresReleasedSandbox(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	f.acquired = func() { f.rec.Quarantine = nil }
	if err := r.Release(t.Context(), "a"); err != nil || len(f.steps) != 0 {
		t.Errorf("%q, %v", f.steps, err)
	}
}

// TestRestore_OwnProcessesEndQuarantine covers a sandbox that was quarantined with the processes of another one and
// is rewound to its own: its quarantine ends when its gate opens. No release follows, which would run its hooks and
// could fail.
func TestRestore_OwnProcessesEndQuarantine(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	rec := f.rec
	img := &images.Image{Memory: &timeline.Memory{}, Release: func() {}}
	if _, err := r.Restore(t.Context(), fakeHeld{f: f}, &rec, img, false); err != nil {
		t.Fatal(err)
	}
	if want := []string{"start", "open"}; !slices.Equal(f.steps, want) {
		t.Errorf("%q, want %q", f.steps, want)
	}
	if rec.Quarantine != nil || f.rec.Quarantine != nil {
		t.Errorf("the gate is open, and the sandbox is quarantined: %+v", f.rec.Quarantine)
	}
}

// TestRestore_QuarantinesForeignProcesses checks that a quarantine for processes of another sandbox starts now, also
// if the sandbox was quarantined before.
func TestRestore_QuarantinesForeignProcesses(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	rec := f.rec
	rec.Head = "bbbbbbbbbbbb"
	img := &images.Image{Memory: &timeline.Memory{}, Release: func() {}}
	if _, err := r.Restore(t.Context(), fakeHeld{f: f}, &rec, img, true); err != nil {
		t.Fatal(err)
	}
	if want := []string{"start"}; !slices.Equal(f.steps, want) {
		t.Errorf("%q, want %q", f.steps, want)
	}
	if q := f.rec.Quarantine; q == nil || q.At != rec.Head || rec.Quarantine != q {
		t.Errorf("%+v", q)
	}
}

// TestRekeyFork_IsBounded checks that programs of the sandbox get no more time than a fork has, and how many there are.
func TestRekeyFork_IsBounded(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	f.rec.Quarantine, f.rec.Unkeyed = nil, true
	f.hooks = append(f.hooks, wire.FileInfo{Path: HooksDir + "/20-hook", Type: "file", Mode: 0o755})
	within, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	short, end := context.WithTimeout(t.Context(), 5*time.Second)
	defer end()
	for name, c := range map[string]struct {
		ctx  context.Context
		most int64
	}{"long": {within, hookTime}, "short": {short, 5_001}} {
		f.rec.Unkeyed, f.steps = true, nil
		if err := r.RekeyWithin(c.ctx, f.rec.ID); err != nil || f.rec.Unkeyed || len(f.steps) != 2 {
			t.Errorf("%s: %q, %v", name, f.steps, err)
		}
		if f.most <= 0 || f.most > c.most || name == "long" && f.most != c.most {
			t.Errorf("%s: %d ms, at most %d", name, f.most, c.most)
		}
	}
	f.rec.Unkeyed, f.steps, f.exec = true, nil, end // it ends while the first hook runs
	if err := r.RekeyWithin(short, f.rec.ID); !errors.Is(err, context.Canceled) || !f.rec.Unkeyed || len(f.steps) != 1 {
		t.Errorf("ended: %q, %v", f.steps, err)
	}
	f.steps, f.exec = nil, func() {}
	for range limit.RekeyHooks - 1 {
		f.hooks = append(f.hooks, f.hooks[0])
	}
	if err := r.RekeyFork(t.Context(), f.rec.ID); !fault.Is(errors.Unwrap(err), fault.Invalid) || len(f.steps) != 0 {
		t.Errorf("too many: %q, %v", f.steps, err)
	}
}
