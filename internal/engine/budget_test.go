//go:build linux

package engine

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// newHomeAt makes a home whose clock shows *now.
func newHomeAt(t *testing.T, now *time.Time) *home {
	t.Helper()
	h := newHome(t)
	h.close()
	h.clock = func() time.Time { return *now }
	h.open()
	return h
}

// recorded returns the size in bytes of the records of a sandbox, with their lists.
func (h *home) recorded(id timeline.SandboxID) (n int64) {
	h.t.Helper()
	for _, r := range h.told(id) {
		line, err := format.Encode(r)
		if err != nil {
			h.t.Fatal(err)
		}
		n += int64(len(line))
		if p, ok := r.Body.(*format.Program); ok && p.List != "" {
			size, err := h.Ledger.BlobSize(format.Sandbox(id), p.List)
			if err != nil {
				h.t.Fatal(err)
			}
			n += size
		}
	}
	return n
}

// spends spends n bytes of the budget of a sandbox for a class, and returns the budget.
func (h *home) spends(name string, c audit.Class, n int64) *audit.Budget {
	h.t.Helper()
	left, err := h.budgets.Of(ctx, h.id(name))
	if err != nil {
		h.t.Fatal(err)
	}
	left.Spent(h.Now(), c, n)
	return left
}

// lost returns how many records of a kind the ledger of a sandbox reports as lost, and in how many records.
func (h *home) lost(id timeline.SandboxID, kind format.Kind) (count int64, records int) {
	h.t.Helper()
	for _, r := range h.told(id, format.KindLost) {
		if b := r.Body.(*format.Lost); b.Of == string(kind) {
			count, records = count+b.Count, records+1
		}
	}
	return count, records
}

func (h *home) verified(id timeline.SandboxID) {
	h.t.Helper()
	if _, err := h.Ledger.Verify(ctx, format.Sandbox(id), nil, nil); err != nil {
		h.t.Error(err)
	}
}

// allowed returns an event for a request that the gate allowed, with a path of the maximum length.
func allowed(n int) wire.NetEvent {
	return wire.NetEvent{Kind: wire.NetHTTP, Name: "one.example", Method: "GET", Verdict: wire.VerdictAllow,
		Path: fmt.Sprintf("/%d/%s", n, strings.Repeat("x", 900)), Reason: strings.Repeat("y", 900)}
}

// TestNetworkRecords_StayWithinBudget floods the gate with allowed requests until the budget
// for these is used up. That must not hide denials, nor the use of a honeytoken.
func TestNetworkRecords_StayWithinBudget(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	h.onDir("b")
	id, other := h.id("a"), h.id("b")
	tell := func(of timeline.SandboxID) { h.journals.CatchUp(ctx, of) }
	const room, events, part = 1 << 20, 1000, 100
	h.spends("a", audit.ClassNetwork, limit.EvidenceNetwork-room)
	before := h.recorded(id)
	for n := range events / part {
		var evs []wire.NetEvent
		for i := range part {
			evs = append(evs, allowed(part*n+i))
		}
		h.gateTells(id, evs...)
		tell(id)
	}
	h.gateTells(id, to("denied.example"),
		wire.NetEvent{Kind: wire.NetDecoy, Decoy: "/home/me/.aws/credentials", Reason: "opened"}, allowed(events))
	h.gateTells(other, allowed(1))
	tell(id)
	tell(other)

	if grew := h.recorded(id) - before; grew > room+8<<10 || grew < room/2 {
		t.Errorf("the ledger grew by %d bytes, with %d left", grew, room)
	}
	if hosts := h.hosts(id); !slices.Contains(hosts, "denied.example") || len(hosts) < 100 || len(h.hosts(other)) != 1 {
		t.Errorf("%d events of the flood are recorded, without the denial or the other sandbox's event: %q", len(hosts),
			h.hosts(other))
	}
	if d := last[*format.Denial](h, id); d == nil || d.Path != "/home/me/.aws/credentials" {
		t.Errorf("the use of a decoy during the flood is not recorded: %+v", d)
	}
	if _, records := h.lost(id, format.KindNetwork); records != 1 {
		t.Errorf("%d records of losses within a minute, want 1", records)
	}

	// All events are counted, with one record a minute.
	now = now.Add(limit.LostInterval)
	tell(id)
	count, records := h.lost(id, format.KindNetwork)
	if got := int64(len(h.hosts(id))) + count; got != events+2 || records != 2 {
		t.Errorf("%d events of %d are recorded or counted as lost, the latter in %d records", got, events+2, records)
	}
	now = now.Add(limit.EvidenceRefill)
	recorded := len(h.hosts(id))
	h.gateTells(id, allowed(-1), allowed(-2))
	tell(id)
	if got := len(h.hosts(id)) - recorded; got != 2 {
		t.Errorf("%d requests of 2 are recorded after the budget is refilled", got)
	}
	h.verified(id)
}

// TestNetworkRecords_CountLossesAcrossCrash checks that an event that is not recorded is counted as lost exactly
// once, even if the daemon is killed before it has recorded the count.
func TestNetworkRecords_CountLossesAcrossCrash(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	id := h.id("a")
	flood := func(n int) {
		t.Helper()
		h.unread(id, func() { // otherwise the engine would see a part of the flood
			h.spends("a", audit.ClassNetwork, limit.EvidenceNetwork)
			for i := range n {
				h.gateTells(id, allowed(i))
			}
		})
		h.journals.CatchUp(ctx, id)
	}
	flood(3) // recorded as lost immediately
	flood(4) // counted, to be recorded later
	h.gateTells(id, to("denied.example"))
	h.journals.CatchUp(ctx, id) // recorded, with the count in the journal position
	flood(5)
	if count, records := h.lost(id, format.KindNetwork); count != 3 || records != 1 {
		t.Fatalf("%d are recorded as lost, in %d records", count, records)
	}
	h.close()
	h.open() // may record some before the budget is spent
	h.spends("a", audit.ClassNetwork, limit.EvidenceNetwork)
	h.journals.CatchUp(ctx, id)
	count, _ := h.lost(id, format.KindNetwork)
	if all := int(count) + len(h.hosts(id)); all != 12+1 {
		t.Errorf("%d of 12 are recorded as lost; the others: %q", count, h.hosts(id))
	}
}

// toldBox is a box that reports the programs that a test sets.
type toldBox struct {
	evs wire.ProgramEvents
}

func (b *toldBox) Programs(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error) {
	return b.ProgramsNow(ctx, after, kept)
}

func (b *toldBox) ProgramsNow(_ context.Context, after, _ uint64) (wire.ProgramEvents, error) {
	if b.evs.Next <= after {
		return wire.ProgramEvents{Next: after}, nil
	}
	return b.evs, nil
}

func (*toldBox) Gone() <-chan struct{} { return nil }

// toldPrograms is the recorder of the programs of a toldBox.
type toldPrograms struct {
	*audit.BoxPrograms
	box *toldBox
}

func (h *home) programsOf(id timeline.SandboxID) toldPrograms {
	b := &toldBox{}
	return toldPrograms{h.programs.Of(id, b, true), b}
}

// starts reports the start of n programs with long, random arguments, and records them.
func (h *home) starts(id timeline.SandboxID, p toldPrograms, n int, exe func(i int) string) {
	h.t.Helper()
	text := make([]byte, 1900)
	evs := wire.ProgramEvents{Next: p.box.evs.Next}
	for i := range n {
		rand.Read(text)
		evs.Next++
		evs.Events = append(evs.Events,
			wire.ProgramEvent{Seq: evs.Next,
				Began: &wire.StartedProgram{ID: evs.Next, Exe: exe(i), Args: []string{fmt.Sprintf("%x", text)}, Started: h.Now()}})
	}
	p.box.evs = evs
	rec, err := h.DB.Sandbox(ctx, string(id))
	if err != nil {
		h.t.Fatal(err)
	}
	ending := p.End(ctx, &rec)
	err = h.Book.Record(ctx, &rec, ending.Records()...)
	ending.Written(err)
	if err != nil {
		h.t.Fatal(err)
	}
}

func same(int) string { return "/bin/true" }

// listed returns how many programs a ledger counts, and how many of them it lists.
func (h *home) listed(id timeline.SandboxID) (started, listed int64) {
	h.t.Helper()
	for _, r := range h.told(id, format.KindProgram) {
		b := r.Body.(*format.Program)
		started += b.Count
		if b.List != "" {
			text, err := h.Ledger.ReadBlob(format.Sandbox(id), b.List)
			if err != nil {
				h.t.Fatal(err)
			}
			listed += int64(strings.Count(string(text), "\n"))
		}
	}
	return started, listed
}

// TestProgramRecords_StayWithinBudget starts programs with long, random arguments until the budgets for program
// records and their lists are used up.
func TestProgramRecords_StayWithinBudget(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	h.onDir("b")
	id, p := h.id("a"), h.programsOf(h.id("a"))
	const room, parts, part = 1 << 20, 4, 250
	h.spends("a", audit.ClassLists, limit.EvidenceLists-room)
	h.spends("a", audit.ClassPrograms, limit.EvidencePrograms-room)
	before := h.recorded(id)
	for range parts {
		h.starts(id, p, part, same)
	}
	if grew := h.recorded(id) - before; grew > room+8<<10 || grew < room/2 {
		t.Errorf("the ledger grew by %d bytes, with %d left", grew, room)
	}
	started, listed := h.listed(id)
	if count, _ := h.lost(id, format.KindProgram); started != parts*part || listed+count != parts*part ||
		listed == 0 || count == 0 {
		t.Errorf("of the programs, %d are counted, %d listed and %d lost; want %d", started, listed, count, parts*part)
	}
	_, records := h.lost(id, format.KindProgram)
	p.box.evs = wire.ProgramEvents{Next: p.box.evs.Next + 1} // one event is missing
	if err := p.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	if _, now := h.lost(id, format.KindProgram); now != records {
		t.Error("a further loss was recorded at once instead of with later ones")
	}

	// Many different names, which the sandbox chooses, stay within the budget too.
	before = h.recorded(id)
	for i := range 6 {
		h.starts(id, p, limit.ProgramGroups+1,
			func(n int) string { return fmt.Sprintf("/%d/%d/%s", i, n, strings.Repeat("x", limit.RecordText)) })
	}
	if grew := h.recorded(id) - before; grew > room+8<<10 || grew < room/2 {
		t.Errorf("the ledger grew by %d bytes, with %d left", grew, room)
	}
	if got := last[*format.Lost](h, id); got == nil || got.Reason != audit.BeyondBudget || got.Through != int64(p.box.evs.Next) {
		t.Errorf("%+v", got)
	}

	// Another sandbox has its own budget.
	h.starts(h.id("b"), h.programsOf(h.id("b")), 2, same)
	if _, listed := h.listed(h.id("b")); listed != 2 || last[*format.Lost](h, h.id("b")) != nil {
		t.Errorf("%d of 2 programs of another sandbox are listed", listed)
	}
	h.verified(id)
}

// TestBudget_SurvivesRestart checks that a restarted daemon does not grant a new budget.
func TestBudget_SurvivesRestart(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	id := h.id("a")
	size := map[audit.Class]int64{audit.ClassNetwork: limit.EvidenceNetwork, audit.ClassLists: limit.EvidenceLists}
	before := map[audit.Class]int64{}
	for n := range 100 {
		h.gateTells(id, allowed(n))
	}
	h.journals.CatchUp(ctx, id)
	before[audit.ClassNetwork] = h.recorded(id)
	h.starts(id, h.programsOf(id), 200, same)
	before[audit.ClassLists] = h.recorded(id) - before[audit.ClassNetwork]
	h.close()
	now = time.Now()
	h.open()
	left := h.spends("a", audit.ClassNetwork, 0)
	const about = 64 << 10
	for c, spent := range before {
		if rest := size[c] - spent; left.Take(now, c, rest+about) || !left.Take(now, c, rest-about) {
			t.Errorf("class %d: %d bytes were spent, and the rest is not about %d", c, spent, rest)
		}
	}
}

// marksInside marks the present of a sandbox from inside it.
func (h *home) marksInside(name string) error {
	_, err := h.Mark(audit.FromInside(ctx), name, wire.MarkRequest{Label: "a step"})
	return err
}

// TestMark_RefusesBeyondTheBudget checks that changes of the history from inside are bounded, and the owner's are
// not.
func TestMark_RefusesBeyondTheBudget(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	h.onDir("b")
	h.run("a", "true")
	h.run("b", "true")
	h.spends("a", audit.ClassInside, limit.InsideChanges-2)
	refused := func(what string, err error) {
		t.Helper()
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "the next is allowed in 22s") ||
			!strings.HasSuffix(fault.HintOf(err), "coppice snapshot create a") {
			t.Errorf("%s: %v (%s)", what, err, fault.HintOf(err))
		}
	}
	mark := func(name string) error {
		h.behind(name, "f", rand.Text())
		return h.marksInside(name)
	}
	for range 10 { // a mark without changes costs nothing
		if err := h.marksInside("a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := mark("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SetTag(audit.FromInside(ctx), "a", "one", ""); err != nil {
		t.Fatal(err)
	}
	nodes := len(h.story("a"))
	refused("mark", mark("a"))
	_, err := h.Commit(audit.FromInside(ctx), "a", "from inside")
	refused("commit", err)
	_, err = h.SetTag(audit.FromInside(ctx), "a", "two", "")
	refused("tag", err)
	_, err = h.Checkout(audit.FromInside(ctx), "a", wire.CheckoutRequest{Node: "HEAD~1", InPlace: true})
	refused("checkout", err)
	if got := len(h.story("a")); got != nodes {
		t.Errorf("refused requests made %d snapshots", got-nodes)
	}
	if err := mark("b"); err != nil {
		t.Errorf("another sandbox is refused: %v", err)
	}
	if res, err := h.Commit(ctx, "a", "from outside"); err != nil || !res.Changed {
		t.Errorf("the owner is refused: %v", err)
	}
	now = now.Add(22 * time.Second)
	if err := mark("a"); err != nil {
		t.Errorf("refused although the budget was refilled: %v", err)
	}
	refused("mark", mark("a"))
	h.verified(h.id("a"))
}

// TestBudget_CountsInsideChangesAfterRestart checks that a new daemon counts the changes from inside that were made
// before.
func TestBudget_CountsInsideChangesAfterRestart(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	h.run("a", "true")
	for _, c := range []func() error{
		func() error { return h.marksInside("a") },
		func() error { _, err := h.Commit(audit.FromInside(ctx), "a", "a commit"); return err },
		func() error { _, err := h.Commit(ctx, "a", "of the owner"); return err },
	} {
		h.behind("a", "f", rand.Text())
		if err := c(); err != nil {
			t.Fatal(err)
		}
	}
	h.close()
	now = time.Now().Add(time.Millisecond)
	h.open()
	left := h.spends("a", audit.ClassInside, 0)
	if left.Take(now, audit.ClassInside, limit.InsideChanges-1) ||
		!left.Take(now, audit.ClassInside, limit.InsideChanges-2) {
		t.Error("the budget does not count the two changes before the restart")
	}
}

// TestAutomaticCapture_WaitsForBudget checks that automatic snapshots beyond the budget wait,
// and that their changes are not lost.
func TestAutomaticCapture_WaitsForBudget(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	h.run("a", "true")
	h.spends("a", audit.ClassCaptures, limit.AutoSnapshots-1)
	capture := func() time.Duration {
		t.Helper()
		s, rec, err := h.acquire(ctx, "a", "testing")
		if err != nil {
			t.Fatal(err)
		}
		defer s.unlock(h.Engine)
		wait, err := h.CaptureByItself(ctx, commandHeld{h.Engine, s}, &rec)
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	for range 3 { // nothing changed
		if wait := capture(); wait != 0 {
			t.Fatalf("a capture without changes waits for %s", wait)
		}
	}
	h.behind("a", "f", "1")
	nodes := len(h.story("a"))
	if wait := capture(); wait != 0 || len(h.story("a")) != nodes+1 {
		t.Fatalf("%d snapshots after a wait of %s, want 1 and no wait", len(h.story("a"))-nodes, wait)
	}
	h.behind("a", "f", "2")
	wait := capture()
	if want := limit.EvidenceRefill / limit.AutoSnapshots; wait != want || len(h.story("a")) != nodes+1 {
		t.Fatalf("the capture waits for %s, want %s", wait, want)
	}
	now = now.Add(wait)
	if wait := capture(); wait != 0 || len(h.story("a")) != nodes+2 {
		t.Errorf("the change was not captured after the wait; it waits for another %s", wait)
	}
}

// TestRecords_CarryBoundedTexts checks that text in a record is bounded, and that the record says how much is
// missing.
func TestRecords_CarryBoundedTexts(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	c := h.cleaners.Formats()
	long := strings.Repeat("x ", limit.RecordText)
	if got := c.RecordText(long); len(got) != limit.RecordText || !strings.HasSuffix(got, "...") {
		t.Errorf("a text has %d bytes", len(got))
	}
	many := make([]string, 2*limit.RecordArgs/100)
	for i := range many {
		many[i] = fmt.Sprintf("%0100d", i)
	}
	size := func(list []string) (n int) {
		for _, s := range list {
			n += audit.EncodedLen(s)
		}
		return n
	}
	if got := c.RecordArgs(many); size(got) > limit.RecordArgs+100 || !strings.HasSuffix(got[len(got)-1], " more") {
		t.Errorf("the arguments have %d bytes, and end with %q", size(got), got[len(got)-1])
	}
	got := c.RecordEnvNames(many...)
	if size(got) > limit.RecordNames+100 || !strings.HasSuffix(got[len(got)-1], " more") {
		t.Errorf("the names of variables have %d bytes, and end with %q", size(got), got[len(got)-1])
	}
	if got := changesOf(c,
		taken{paths: many, before: func() *layer.View { return nil }}); len(got) != limit.RecordChanges {
		t.Errorf("%d changes", len(got))
	}
	wide := make([]string, 100)
	for i := range wide {
		wide[i] = fmt.Sprintf("/%d/%s", i, long)
	}
	if got := len(changesOf(c, taken{paths: wide, before: func() *layer.View { return nil }})); got < 1 ||
		got > limit.RecordPaths/limit.RecordText {
		t.Errorf("%d changes are recorded for long paths", got)
	}
	if got := audit.Dropped("asked", make([]timeline.SnapshotID, limit.RecordIDs+1)); len(got) != 2 {
		t.Errorf("%d records of dropped snapshots, want 2", len(got))
	}
}

// TestFetchPrograms_IsBounded checks that programs are recorded early once many bytes of them are buffered. Programs
// with many different files become limit.ProgramGroups records, and one for the rest.
func TestFetchPrograms_IsBounded(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	const each = 64 << 10
	var evs wire.ProgramEvents
	for i := range limit.ProgramsHeld/each + 1 {
		evs.Next++
		evs.Events = append(evs.Events,
			wire.ProgramEvent{Seq: evs.Next,
				Began: &wire.StartedProgram{ID: evs.Next, Exe: fmt.Sprintf("/bin/%d", i), Args: []string{strings.Repeat("x", each)},
					Started: time.Now()}})
	}
	p := h.programsOf(h.id("a"))
	p.box.evs = evs
	if err := p.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	if got := len(h.told(h.id("a"), format.KindProgram)); got != limit.ProgramGroups+1 {
		t.Errorf("%d records of programs", got)
	}
}
