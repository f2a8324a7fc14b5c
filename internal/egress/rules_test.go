//go:build linux

package egress

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// fakeCore is an engine with one live sandbox, its box, its record and its ledger. It records the steps of a change of
// the rules.
type fakeCore struct {
	Sandboxes // only the methods below are implemented
	Box       // likewise

	rec   meta.Sandbox
	first string // digest of the policy before the first change
	lock  *sandbox.Sandbox
	dir   string // directory of the journal
	steps []string

	ledgerErr, keeperErr error // results of Do and of SetPolicy
}

// fakeHeld is the locked sandbox of a fakeCore.
type fakeHeld struct {
	*fakeCore
	proof *sandbox.Held
}

func (h fakeHeld) Proof() *sandbox.Held { return h.proof }
func (h fakeHeld) Box() Box             { return h.fakeCore }
func (h fakeHeld) Unlock()              { h.proof.Unlock(); h.step("unlock") }
func (h fakeHeld) StartAgain(context.Context, *meta.Sandbox) (Box, *fault.Error, error) {
	return nil, nil, errors.New("it has a box")
}

func (f *fakeCore) step(text string) { f.steps = append(f.steps, text) }

func (f *fakeCore) Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error) {
	f.step("lock")
	h, err := f.lock.Lock(ctx, name, what)
	return fakeHeld{f, h}, f.rec, err
}

func (f *fakeCore) Journal(timeline.SandboxID) journal.Place {
	f.step("journal")
	return journal.Place{Dir: f.dir, Key: make([]byte, 32), FS: vfs.OS()}
}

func (f *fakeCore) Net(context.Context) (wire.NetNow, error) { return wire.NetNow{}, nil }

func (f *fakeCore) SetPolicy(_ context.Context, phases []policies.Phase) error {
	f.step("keeper: " + f.which(phases[0].Digest))
	return f.keeperErr
}

func (f *fakeCore) Sandbox(context.Context, string) (meta.Sandbox, error) { return f.rec, nil }

func (f *fakeCore) Policy(context.Context, string) (string, error) { return f.rec.PolicyText, nil }

func (f *fakeCore) BaseKey(context.Context, string) (string, error) { return "", nil }

func (f *fakeCore) UpdateSandbox(_ context.Context, _ timeline.SandboxID, change func(*meta.Sandbox) error) error {
	err := change(&f.rec)
	f.step("record: " + f.which(f.rec.Policy))
	return err
}

// which returns "old" for the digest of the policy before the first change, else "new".
func (f *fakeCore) which(digest string) string {
	if digest == f.first {
		return "old"
	}
	return "new"
}

func (f *fakeCore) Drafts(context.Context, *meta.Sandbox, ...audit.Statement) []ledger.Draft {
	return nil
}

func (f *fakeCore) Record(context.Context, *meta.Sandbox, ...audit.Statement) error { return nil }

func (f *fakeCore) Do(ctx context.Context, _ []ledger.Draft, fn func(context.Context) error) error {
	f.step("ledger")
	if f.ledgerErr != nil {
		return f.ledgerErr
	}
	err := fn(ctx)
	if err != nil {
		f.step("ledger: undone")
	}
	return err
}

// newFake returns a Control over a fakeCore whose sandbox may connect to one.example.
func newFake(t *testing.T) (*Control, *fakeCore) {
	t.Helper()
	book, _, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() })
	text := "version: 1\ntier: supervised\nnetwork: {allow: [one.example]}\n"
	p, _, err := policies.Ask(wire.CreateRequest{
		Policy: []wire.PolicyFile{{Level: wire.PolicyUser, Name: "/p.yaml", Text: text}},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeCore{rec: meta.Sandbox{ID: "0123456789ab", Name: "a"}, lock: sandbox.New("0123456789ab"), dir: t.TempDir()}
	f.rec.Tier = string(policy.Supervised)
	if err := policies.Pin(&f.rec, p); err != nil {
		t.Fatal(err)
	}
	f.first = f.rec.Policy
	log := slog.New(slog.DiscardHandler)
	return New(Config{
		Sandboxes: f, Records: f, Recorder: f, Feed: events.NewBus(time.Now, f), FS: vfs.OS(), Now: time.Now, Log: log,
		Policies: policies.New(policies.Config{Records: f, Now: time.Now, Log: log}),
		Cleaners: audit.NewCleaners(audit.CleanersConfig{Ledger: book, Logger: log}),
		EndTrial: func(timeline.SandboxID, string) { f.step("end trial") },
		Caller:   func(context.Context) string { return "" },
	}), f
}

// TestAllow_RecordsBeforeEnforcing checks that a change of the rules is recorded before it is in force, and is undone
// if the keeper does not accept it.
func TestAllow_RecordsBeforeEnforcing(t *testing.T) {
	failed := errors.New("it failed")
	for name, c := range map[string]struct {
		ledger, keeper error
		want           []string
	}{
		"done": {want: []string{"lock", "ledger", "journal", "record: new", "end trial", "keeper: new", "unlock"}},
		"the ledger is full": {ledger: failed,
			want: []string{"lock", "ledger", "unlock"}},
		"the keeper does not take it": {keeper: failed,
			want: []string{"lock", "ledger", "journal", "record: new", "end trial", "keeper: new", "keeper: old",
				"record: old", "ledger: undone", "journal", "unlock"}},
	} {
		t.Run(name, func(t *testing.T) {
			control, core := newFake(t)
			core.ledgerErr, core.keeperErr = c.ledger, c.keeper
			res, err := control.Allow(t.Context(), "a", wire.AllowRequest{Allow: []string{"two.example"}})
			if want := c.ledger != nil || c.keeper != nil; errors.Is(err, failed) != want || res.Live == want {
				t.Errorf("%+v, %v", res, err)
			}
			if !slices.Equal(core.steps, c.want) {
				t.Errorf("%q, want %q", core.steps, c.want)
			}
		})
	}
}
