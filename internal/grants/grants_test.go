//go:build linux

package grants

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// pat is a value with the shape of a token of GitHub.
const pat = "ghp_abcdefghijklmnopqrstuvwxyz012312AQNd"

// world is an engine with a database, a ledger that lists its records, a broker and boxes. It records the steps.
type world struct {
	*Grants
	t   *testing.T
	db  *meta.DB
	dir string

	mu         sync.Mutex
	now        time.Time
	steps      []string
	boxes      map[timeline.SandboxID]bool
	set        map[timeline.SandboxID]plan.Secrets
	registered map[string]client.Registration
	boot       string
	asking     []wire.NetQuestion // pending requests of every box
	brokerErr  error              // of every call to the broker
	boxErr     error              // of SetSecrets
	ledgerErr  error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	db, err := meta.Open(t.Context(), filepath.Join(dir, "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	w := &world{t: t, db: db, dir: dir, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), boot: "1",
		boxes: map[timeline.SandboxID]bool{}, set: map[timeline.SandboxID]plan.Secrets{},
		registered: map[string]client.Registration{}}
	w.Grants = New(Config{Sandboxes: w, Store: db, Broker: brokerOf{w}, Recorder: w, Socket: "/broker", Key: make([]byte, 32),
		Rand: rand.Reader, Now: w.clock, Log: slog.New(slog.DiscardHandler),
		Caller: func(context.Context) string { return "me" }, Clean: func(s string) string { return s }})
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) step(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, text)
}

// took returns the steps since the last call.
func (w *world) took() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.steps, ", ")
	w.steps = nil
	return all
}

// add adds a sandbox; live says whether it has a box.
func (w *world) add(name, tier string, live bool) meta.Sandbox {
	w.t.Helper()
	id, err := timeline.NewSandboxID(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	snap, err := timeline.NewSnapshotID(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	rec := meta.Sandbox{ID: id, Name: name, Created: w.now, Head: snap, MountTop: snap, Gen: 1,
		Config: meta.Config{From: "host", Driver: "copy", Tier: tier, Net: "rules"}}
	first := timeline.Snapshot{ID: snap, Sandbox: id, Cause: timeline.CauseImport, Created: w.now}
	if err := w.db.CreateSandbox(w.t.Context(), rec, first); err != nil {
		w.t.Fatal(err)
	}
	w.boxes[id] = live
	return rec
}

// use writes requests of a sandbox to its journal, as the gate does.
func (w *world) use(rec meta.Sandbox, grants ...string) {
	w.t.Helper()
	place := w.Journal(rec.ID)
	if err := vfs.MkdirAll(vfs.OS(), place.Dir); err != nil {
		w.t.Fatal(err)
	}
	j, err := journal.Open(place)
	if err != nil {
		w.t.Fatal(err)
	}
	defer j.Close()
	for _, name := range grants {
		ev := wire.NetEvent{Time: w.clock(), Kind: wire.NetHTTP, Name: "api.github.com", Grants: []string{name}}
		if err := j.Append(ev); err != nil {
			w.t.Fatal(err)
		}
	}
}

// one returns the only grant of a sandbox.
func (w *world) one(name string) wire.Grant {
	w.t.Helper()
	res, err := w.ListGrants(w.t.Context(), name)
	if err != nil || len(res.Grants) != 1 {
		w.t.Fatalf("%+v, %v", res, err)
	}
	return res.Grants[0]
}

type lockedBox struct {
	w  *world
	id timeline.SandboxID
}

func (b lockedBox) Unlock() {}
func (b lockedBox) Box() Box {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	if b.w.boxes[b.id] {
		return b
	}
	return nil
}

func (b lockedBox) Net(context.Context) (wire.NetNow, error) {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	return wire.NetNow{Asking: b.w.asking}, nil
}

func (b lockedBox) SetSecrets(_ context.Context, s plan.Secrets) error {
	text := "box"
	for _, g := range s.Grants {
		text += " " + g.Name
		if g.Revoked {
			text += "!"
		}
	}
	b.w.step(text)
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.w.set[b.id] = s
	return b.w.boxErr
}

func (w *world) Acquire(ctx context.Context, name, _ string) (Held, meta.Sandbox, error) {
	rec, err := w.db.Sandbox(ctx, name)
	return lockedBox{w, rec.ID}, rec, err
}

func (w *world) Journal(id timeline.SandboxID) journal.Place {
	return journal.Place{Dir: filepath.Join(w.dir, string(id)), Key: make([]byte, 32), FS: vfs.OS()}
}

func (w *world) Shape(_ context.Context, secret string) (grant.Shape, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if secret == "missing" {
		return grant.Shape{}, fault.New(fault.NotFound, "no secret %s", secret)
	}
	return grant.KindOf(pat), w.brokerErr
}

func (w *world) Register(_ context.Context, r client.Registration) error {
	text := "register"
	for _, g := range r.Grants {
		text += " " + g.Name
	}
	w.step(text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.brokerErr == nil {
		w.registered[r.Sandbox] = r
	}
	return w.brokerErr
}

// Withdraw hides that of Grants, which the tests call by that name.
func (b brokerOf) Withdraw(_ context.Context, sandbox string) error {
	b.step("withdraw")
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.registered, sandbox)
	return b.brokerErr
}

type brokerOf struct{ *world }

func (w *world) Status(context.Context) (client.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return client.Status{Boot: w.boot}, w.brokerErr
}

func (w *world) Drafts(_ context.Context, _ *meta.Sandbox, all ...audit.Statement) (out []ledger.Draft) {
	for _, s := range all {
		out = append(out, ledger.Draft{Body: s.Body})
	}
	return out
}

func (w *world) Do(ctx context.Context, drafts []ledger.Draft, fn func(context.Context) error) error {
	for _, d := range drafts {
		b, ok := d.Body.(*format.Grant)
		if !ok {
			return errors.New("not a record of a grant")
		}
		w.step("record " + b.Event + " " + b.Grant)
	}
	if w.ledgerErr != nil {
		return w.ledgerErr
	}
	return fn(ctx)
}

var github = wire.GrantSpec{Secret: "pat", Preset: "github"}

func TestGive_RecordsStoresRegistersAndSets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.add("a", "supervised", true)
	g, err := w.GiveGrant(t.Context(), "a", "github", github)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.took(); got != "record given github, register github, box github" {
		t.Error(got)
	}
	if g.State != wire.GrantLive || g.Secret != "pat" || len(g.Placeholder) != len(pat) || g.Placeholder == pat ||
		!strings.HasPrefix(g.Placeholder, "ghp_") {
		t.Errorf("%+v", g)
	}
	set, reg := w.set[rec.ID], w.registered[string(rec.ID)]
	if len(set.Ticket) != ticketBytes || !bytes.Equal(set.Ticket, reg.Ticket) || set.Socket != "/broker" {
		t.Errorf("%+v, %+v", set, reg)
	}
	if want := []string{"GH_TOKEN=" + g.Placeholder, "GITHUB_TOKEN=" + g.Placeholder}; !slices.Equal(set.Env, want) {
		t.Errorf("%q", set.Env)
	}
	if !slices.Contains(reg.Grants[0].Hosts, "api.github.com") || reg.Grants[0].Secret != "pat" {
		t.Errorf("%+v", reg)
	}

	// Other terms keep the placeholder, which processes have.
	more := github
	more.For = "1h"
	again, err := w.GiveGrant(t.Context(), "a", "github", more)
	if err != nil || again.Placeholder != g.Placeholder || again.Until == nil {
		t.Errorf("%+v, %v", again, err)
	}
	// A second revocation does nothing. A grant that is given again has another placeholder, and the old one as alias.
	w.took()
	for range 2 {
		if err := w.RevokeGrant(t.Context(), "a", "github"); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.took(); got != "record revoked github, withdraw, box github!" {
		t.Error(got)
	}
	if len(w.set[rec.ID].Env) != 0 {
		t.Errorf("%q", w.set[rec.ID].Env)
	}
	again, err = w.GiveGrant(t.Context(), "a", "github", github)
	if err != nil || again.Placeholder == g.Placeholder ||
		!slices.Equal(w.set[rec.ID].Grants[0].Aliases, []string{g.Placeholder}) {
		t.Errorf("%+v, %v, %+v", again, err, w.set[rec.ID])
	}
	if err := w.RevokeGrant(t.Context(), "a", "other"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestGive_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("a", "supervised", true)
	w.add("p", "process", true)
	for name, c := range map[string]struct {
		box  string
		spec wire.GrantSpec
		kind fault.Kind
	}{
		"no such secret": {"a", wire.GrantSpec{Secret: "missing", Preset: "github"}, fault.NotFound},
		"no gate":        {"p", github, fault.Unsupported},
		"all bodies": {"a", wire.GrantSpec{Hosts: []string{"a.example"}, Sites: []wire.GrantSite{{In: "json", Pointer: "/t",
			Methods: []string{"POST"}}}}, fault.Invalid},
		"a server of databases": {"a", wire.GrantSpec{Hosts: []string{"a.example"}, Sites: []wire.GrantSite{{In: "postgres",
			Name: "user", Part: "db"}}}, fault.Unsupported},
		"no access key": {"a", wire.GrantSpec{Preset: "aws"}, fault.Invalid},
		"no host":       {"a", wire.GrantSpec{Sites: []wire.GrantSite{{In: "bearer"}}}, fault.Invalid},
		"no preset":     {"a", wire.GrantSpec{Preset: "gitub"}, fault.Invalid},
		"no box":        {"missing", github, fault.NotFound},
	} {
		_, err := w.GiveGrant(t.Context(), c.box, "g", c.spec)
		if !fault.Is(err, c.kind) || fault.HintOf(err) == "" && c.kind != fault.NotFound {
			t.Errorf("%s: %v (%s)", name, err, fault.HintOf(err))
		}
	}
	if got := w.took(); got != "" {
		t.Errorf("refused grants led to %s", got)
	}
}

// TestGive_RevertsWhatIsNotAccepted checks that a grant that the broker or the gate does not accept is not stored, and
// that an earlier one of that name is in force again.
func TestGive_RevertsWhatIsNotAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.add("a", "supervised", true)
	w.boxErr = fault.New(fault.Conflict, "no authority")
	if _, err := w.GiveGrant(t.Context(), "a", "github", github); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
	if got := w.took(); got != "record given github, register github, box github, withdraw, box" {
		t.Error(got)
	}
	if rows, err := w.db.Grants(t.Context(), rec.ID); len(rows) != 0 {
		t.Errorf("%+v, %v", rows, err)
	}
	w.boxErr = nil
	if _, err := w.GiveGrant(t.Context(), "a", "github", github); err != nil {
		t.Fatal(err)
	}
	w.boxErr = fault.New(fault.Unavailable, "no line")
	other := wire.GrantSpec{Secret: "pat", Preset: "github", Uses: 3}
	if _, err := w.GiveGrant(t.Context(), "a", "github", other); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	if g := w.one("a"); g.Uses != 0 {
		t.Errorf("%+v", g)
	}
	w.ledgerErr = fault.New(fault.NoSpace, "full")
	w.boxErr = nil
	w.took()
	if _, err := w.GiveGrant(t.Context(), "a", "github", other); !fault.Is(err, fault.NoSpace) {
		t.Error(err)
	}
	if got := w.took(); got != "record given github" {
		t.Errorf("without a record: %s", got)
	}
}

// TestRevoke_HoldsWithoutBrokerAndGate checks that a grant stays revoked, although neither answers.
func TestRevoke_HoldsWithoutBrokerAndGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("a", "supervised", true)
	if _, err := w.GiveGrant(t.Context(), "a", "github", github); err != nil {
		t.Fatal(err)
	}
	w.brokerErr, w.boxErr = fault.New(fault.Unavailable, "broker"), fault.New(fault.Unavailable, "gate")
	w.took()
	if err := w.RevokeGrant(t.Context(), "a", "github"); err != nil {
		t.Error(err)
	}
	if got := w.took(); got != "record revoked github, withdraw, box github!" {
		t.Error(got)
	}
	if g := w.one("a"); g.State != wire.GrantRevoked {
		t.Errorf("%+v", g)
	}
}

func TestRemoving_RecordsTheEndOfGrants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.add("a", "supervised", false)
	for _, name := range []string{"github", "other"} {
		spec := github
		spec.Secret = "github"
		if _, err := w.GiveGrant(t.Context(), "a", name, spec); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.RevokeGrant(t.Context(), "a", "other"); err != nil {
		t.Fatal(err)
	}
	w.took()
	for range 2 { // a removal that failed is repeated
		if err := w.Removing(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.took(); got != "record revoked github" {
		t.Error(got)
	}
}

func TestUses_AreCountedFromJournal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.add("a", "gvisor", true)
	w.use(rec, "github") // before the grant
	w.now = w.now.Add(time.Second)
	spec := github
	spec.Uses = 3
	if _, err := w.GiveGrant(t.Context(), "a", "github", spec); err != nil {
		t.Fatal(err)
	}
	w.use(rec, "github", "other", "github")
	for range 2 { // each use counts once
		if g := w.one("a"); g.Used != 2 || g.State != wire.GrantLive || g.LastUsed == nil {
			t.Errorf("%+v", g)
		}
		if _, err := w.Starting(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	s, err := w.Starting(t.Context(), &rec)
	if err != nil || s.Grants[0].Used != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	w.use(rec, "github")
	s, err = w.Starting(t.Context(), &rec)
	if err != nil || !s.Grants[0].Revoked || len(s.Env) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if g := w.one("a"); g.State != wire.GrantExhausted || g.Used != 3 {
		t.Errorf("%+v", g)
	}
}

// TestStarting_NeedsNoBroker checks that a sandbox starts without a broker, that Watch registers its grants with one that
// has started since, and with the next one, and that a stop withdraws them.
func TestStarting_NeedsNoBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.add("a", "supervised", false)
	if _, err := w.GiveGrant(t.Context(), "a", "github", github); err != nil {
		t.Fatal(err)
	}
	if got := w.took(); got != "record given github" {
		t.Errorf("a stopped sandbox: %s", got)
	}
	w.brokerErr = fault.New(fault.Unavailable, "no broker")
	s, err := w.Starting(t.Context(), &rec)
	if err != nil || len(s.Grants) != 1 || s.Grants[0].Revoked {
		t.Fatalf("%+v, %v", s, err)
	}
	w.boxes[rec.ID] = true
	w.took()
	at := watch{c: w.Grants}
	round := func(first bool, want string) {
		t.Helper()
		if _, err := at.round(t.Context(), first); err != nil {
			t.Error(err)
		}
		if got := w.took(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	round(false, "")
	w.brokerErr = nil
	round(false, "register github, box github")
	round(false, "")
	w.boot = "2"
	round(false, "register github, box github")
	ticket := w.registered[string(rec.ID)].Ticket
	if !bytes.Equal(ticket, s.Ticket) {
		t.Error("the ticket has changed")
	}
	// Another daemon finds the box.
	w.Grants = New(w.config)
	at = watch{c: w.Grants}
	round(true, "register github, box github")
	w.boxes[rec.ID] = false
	w.Withdraw(t.Context(), rec.ID)
	if got := w.took(); got != "withdraw" {
		t.Error(got)
	}
	round(false, "")
	// Another daemon finds none, although an earlier one registered it.
	w.Grants = New(w.config)
	at = watch{c: w.Grants}
	round(true, "withdraw")
}

func TestWatch_ExpiresGrants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("a", "supervised", true)
	spec := github
	spec.For = "10s"
	if _, err := w.GiveGrant(t.Context(), "a", "github", spec); err != nil {
		t.Fatal(err)
	}
	w.took()
	at := watch{c: w.Grants, boot: "1"}
	if wait, err := at.round(t.Context(), false); err != nil || wait <= 0 || wait > every {
		t.Errorf("%v, %v", wait, err)
	}
	w.now = w.now.Add(10 * time.Second)
	if g := w.one("a"); g.State != wire.GrantExpired {
		t.Errorf("%+v", g)
	}
	if _, err := at.round(t.Context(), false); err != nil {
		t.Error(err)
	}
	if got := w.took(); !strings.HasPrefix(got, "record expired github, withdraw, box github!") {
		t.Error(got)
	}
	if g := w.one("a"); g.State != wire.GrantExpired {
		t.Errorf("%+v", g)
	}
}

func TestFork_ReissuesWhatTheGrantAllows(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{"": "kept", "none": "", "reissue": "kept lost"} {
		w := newWorld(t)
		parent := w.add("parent", "supervised", false)
		kept, lost := github, github
		kept.Fork, kept.Uses, kept.For, kept.Hosts = "reissue", 5, "1h", []string{"a.example"}
		lost.Hosts = []string{"b.example"}
		for name, spec := range map[string]wire.GrantSpec{"kept": kept, "lost": lost} {
			if _, err := w.GiveGrant(t.Context(), "parent", name, spec); err != nil {
				t.Fatal(err)
			}
		}
		w.use(parent, "kept", "kept")
		w.now = w.now.Add(time.Minute)
		child := w.add("child", "supervised", false)
		warnings := w.ForkGrants(t.Context(), &parent, []meta.Sandbox{child}, mode)[0]
		if (len(warnings) > 0) != (mode != "reissue") {
			t.Errorf("%q: %q", mode, warnings)
		}
		old, err := w.ListGrants(t.Context(), "parent")
		if err != nil {
			t.Fatal(err)
		}
		s, err := w.Starting(t.Context(), &child)
		if err != nil || len(s.Grants) != 2 {
			t.Fatalf("%+v, %v", s, err)
		}
		var live []string
		for i, g := range s.Grants {
			before := old.Grants[i]
			if g.Revoked { // the placeholder of the parent is refused
				if g.Placeholder != before.Placeholder {
					t.Errorf("%+v", g)
				}
				continue
			}
			live = append(live, g.Name)
			if g.Placeholder == before.Placeholder || !slices.Equal(g.Aliases, []string{before.Placeholder}) ||
				g.Used != before.Used || !g.Given.Equal(before.Given) {
				t.Errorf("%+v of %+v", g, before)
			}
		}
		if got := strings.Join(live, " "); got != want {
			t.Errorf("%q: %q", mode, got)
		}
		for _, g := range w.registered[string(child.ID)].Grants {
			if g.Name == "kept" && !g.Until.Equal(*old.Grants[0].Until) {
				t.Errorf("%v, want %v", g.Until, old.Grants[0].Until)
			}
		}
	}
	if err := CheckFork("all"); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}
