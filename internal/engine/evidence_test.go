//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/upkeep"
)

// id returns the id of a sandbox.
func (h *home) id(name string) timeline.SandboxID {
	h.t.Helper()
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return rec.ID
}

// told returns the records of a sandbox, of the given kinds or of all.
func (h *home) told(id timeline.SandboxID, kinds ...format.Kind) (out []*format.Record) {
	h.t.Helper()
	for r, err := range h.Ledger.Read(h.t.Context(), format.Sandbox(id), ledger.Filter{Kinds: kinds}) {
		if err != nil {
			h.t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// kinds returns the kinds of the records of a sandbox, in order.
func (h *home) kinds(id timeline.SandboxID) string {
	h.t.Helper()
	var out []string
	for _, r := range h.told(id) {
		out = append(out, string(r.Kind()))
	}
	return strings.Join(out, " ")
}

// last returns the body of the newest record of a kind.
func last[B format.Body](h *home, id timeline.SandboxID) (body B) {
	h.t.Helper()
	for _, r := range h.told(id) {
		if b, ok := r.Body.(B); ok {
			body = b
		}
	}
	return body
}

// state is the state of a sandbox according to its records.
type state struct {
	head      string
	snapshots map[string]bool // that were made and not dropped
	deleted   bool
}

// records appends to known, the records of a sandbox from its first on, those that were added since.
func (h *home) records(id timeline.SandboxID, known []*format.Record) ([]*format.Record, error) {
	for r, err := range h.Ledger.Read(h.t.Context(), format.Sandbox(id), ledger.Filter{From: int64(len(known)) + 1}) {
		if err != nil {
			return known, err
		}
		known = append(known, r)
	}
	return known, nil
}

// retell derives the state of a sandbox from its records alone.
func retell(all []*format.Record) (s state) {
	undone := map[int64]bool{}
	for _, r := range all {
		if b, ok := r.Body.(*format.Undone); ok {
			undone[b.Seq] = true
		}
	}
	s.snapshots = map[string]bool{}
	for _, r := range all {
		if undone[r.Seq] {
			continue
		}
		switch b := r.Body.(type) {
		case *format.Create:
			s.head = b.Snapshot
			s.snapshots[b.Snapshot] = true
		case *format.Snapshot:
			s.head = b.Snapshot
			s.snapshots[b.Snapshot] = true
		case *format.Rollback:
			s.head = b.To
		case *format.Drop:
			for _, gone := range b.Snapshots {
				delete(s.snapshots, gone)
			}
		case *format.Delete:
			s.deleted = true
		}
	}
	return s
}

func TestAuditLog_RecordsOperations(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	sb := h.onDir("a")
	id := timeline.SandboxID(sb.ID)
	want := func(kinds string) {
		t.Helper()
		if got := h.kinds(id); got != kinds {
			t.Fatalf("the ledger has\n%s\nwant\n%s", got, kinds)
		}
	}
	if got := last[*format.Create](h, id); got.Snapshot != sb.Head || got.Driver != "copy" {
		t.Errorf("%+v", got)
	}
	h.run("a", "true")
	want("create start exec exit")
	x := h.run("a", "write", "f", "one")
	want("create start exec exit exec snapshot exit")
	exec, snap, exit := last[*format.Exec](h, id), last[*format.Snapshot](h, id), last[*format.Exit](h, id)
	if !slices.Equal(exec.Args, []string{"write", "f", "one"}) || exec.Exec == "" || exec.Exec != exit.Exec {
		t.Errorf("%+v, %+v", exec, exit)
	}
	if snap.Snapshot != x.Head || snap.Parent != sb.Head || snap.Cause != "exec" || snap.Changes == 0 ||
		exit.Before != sb.Head || exit.Snapshot != x.Head {
		t.Errorf("%+v, %+v", snap, exit)
	}
	for _, r := range h.told(id) {
		if by := r.Observer; (r.Kind() == format.KindExit || r.Kind() == format.KindStart) != (by == format.ByKeeper) ||
			r.Policy == "" || r.Tier != "supervised" || r.Name != "a" {
			t.Errorf("%s by %s, policy %q, tier %q, of %q", r.Kind(), by, r.Policy, r.Tier, r.Name)
		}
	}
	if _, err := h.Undo(ctx, "a", wire.UndoRequest{N: 1}); err != nil {
		t.Fatal(err)
	}
	want("create start exec exit exec snapshot exit rollback stop")
	if b := last[*format.Rollback](h, id); b.From != x.Head || b.To != sb.Head || b.InPlace {
		t.Errorf("%+v", b)
	}
	f, err := h.Fork(ctx, "a", wire.ForkRequest{N: 2})
	if err != nil {
		t.Fatal(err)
	}
	want("create start exec exit exec snapshot exit rollback stop fork fork")
	child := timeline.SandboxID(f.Sandboxes[1].ID)
	if b := last[*format.Create](h, child); b.From != sb.ID || b.Snapshot != f.Sandboxes[1].Head {
		t.Errorf("%+v", b)
	}
	if b := last[*format.Fork](h, id); b.Child != string(child) || b.Snapshot != sb.Head {
		t.Errorf("%+v", b)
	}
	if _, err := h.DeleteSnapshot(ctx, "a", x.Head); err != nil {
		t.Fatal(err)
	}
	if b := last[*format.Drop](h, id); b.Reason != "asked" || !slices.Equal(b.Snapshots, []string{x.Head}) {
		t.Errorf("%+v", b)
	}
	if _, err := h.Remove(ctx, []string{string(child)}, false); err != nil {
		t.Fatal(err)
	}
	if got := h.kinds(child); got != "create delete" {
		t.Errorf("records of the fork: %s", got)
	}
	if ints, err := h.DB.Intents(ctx); err != nil || len(ints) > 0 {
		t.Errorf("open intents: %+v, %v", ints, err)
	}
	for _, one := range []timeline.SandboxID{id, child} {
		if _, err := h.Ledger.Verify(ctx, format.Sandbox(one), nil, nil); err != nil {
			t.Error(err)
		}
	}
}

// seen is a client that counts the exec records when it receives that its command has started.
type seen struct {
	h     *home
	id    timeline.SandboxID
	execs int
}

func (s *seen) Read([]byte) (int, error) { return 0, io.EOF }
func (s *seen) Write(p []byte) (int, error) {
	if typ, _, err := wire.ReadFrame(bytes.NewReader(p), nil); err == nil && typ == wire.FrameStarted {
		s.execs = len(s.h.told(s.id, format.KindExec))
	}
	return len(p), nil
}

func TestExec_IsRecordedBeforeAcknowledged(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	s := &seen{h: h, id: h.id("a")}
	if _, err := h.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"true"}}, s); err != nil || s.execs != 1 {
		t.Errorf("the client was informed of its command with %d in the ledger, %v", s.execs, err)
	}
	if got := len(h.told(s.id, format.KindExit)); got != 1 {
		t.Errorf("%d exits in the ledger", got)
	}
}

// TestExec_RunsNoUnrecordedCommand checks that no command runs in a sandbox whose start is not recorded, and that a
// sandbox is stopped if a command in it could not be recorded, since that command may have left its process group.
func TestExec_RunsNoUnrecordedCommand(t *testing.T) {
	t.Parallel()
	h, disk := newHomeWithFaultyLedger(t)
	h.onDir("a")
	writes := wire.ExecRequest{Cmd: []string{"write", "f", "ran"}}
	disk.FailAt(1, syscall.ENOSPC, true)
	if _, err := h.Exec(ctx, "a", writes, stream{strings.NewReader(""), io.Discard}); !fault.Is(err, fault.NoSpace) {
		t.Errorf("exec: %v", err)
	}
	b := h.boxNow("a")
	if _, err := os.Lstat(filepath.Join(b.root, "f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the command ran in a box whose start is not recorded: %v", err)
	}
	<-b.gone

	disk.FailAt(0, 0, false)
	h.run("a", "true")
	b = h.boxNow("a")
	disk.FailAt(1, syscall.ENOSPC, true)
	if _, err := h.Exec(ctx, "a", writes, stream{strings.NewReader(""), io.Discard}); !fault.Is(err, fault.NoSpace) {
		t.Errorf("exec: %v", err)
	}
	<-b.gone
	disk.FailAt(0, 0, false)
}

// TestAuditLog_FailureRefusesOperations checks that while the audit log cannot be written, only operations that free
// space are allowed, and that these are recorded once it can be written again.
func TestAuditLog_FailureRefusesOperations(t *testing.T) {
	t.Parallel()
	h, disk := newHomeWithFaultyLedger(t)
	h.onDir("a")
	h.onDir("b")
	id := h.id("a")
	head := h.run("a", "write", "f", "one").Head
	before := h.kinds(id)
	disk.FailAt(1, syscall.ENOSPC, true)
	if _, err := h.Create(ctx, wire.CreateRequest{Name: "c", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}},
		func(wire.Progress) {}); !fault.Is(err, fault.NoSpace) {
		t.Errorf("a sandbox was made: %v", err)
	}
	if _, err := h.DB.Sandbox(ctx, "c"); !fault.Is(err, fault.NotFound) {
		t.Errorf("the sandbox exists: %v", err)
	}
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{N: 1}); !fault.Is(err, fault.NoSpace) {
		t.Errorf("a fork was made: %v", err)
	}
	var out bytes.Buffer
	if _, err := h.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"write", "f", "two"}},
		stream{strings.NewReader(""), &out}); !fault.Is(err, fault.NoSpace) || out.Len() > 0 {
		t.Errorf("a command was acknowledged: %v, %q", err, out.Bytes())
	}
	if _, err := h.Commit(ctx, "a", "now"); !fault.Is(err, fault.NoSpace) {
		t.Errorf("a snapshot was taken: %v", err)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: "HEAD~1"}); !fault.Is(err, fault.NoSpace) {
		t.Errorf("the sandbox was rewound: %v", err)
	}
	if got, err := h.Head(ctx, "a"); err != nil || got != head {
		t.Errorf("head is %s, %v", got, err)
	}
	if err := h.stopAll("a"); err != nil {
		t.Errorf("the sandbox cannot be stopped: %v", err)
	}
	gone := h.id("b")
	if _, err := h.Remove(ctx, []string{"b"}, true); !fault.Is(err, fault.NoSpace) {
		t.Errorf("remove did not report that it is not recorded: %v", err)
	}
	if _, err := h.DB.Sandbox(ctx, "b"); !fault.Is(err, fault.NotFound) {
		t.Errorf("the sandbox was not removed on a full disk: %v", err)
	}
	disk.FailAt(0, 0, false)
	h.run("a", "true")
	if got := strings.TrimPrefix(h.kinds(id), before); !strings.HasPrefix(got, " stop ") {
		t.Errorf("the stop was not recorded first: %s", got)
	}
	h.close()
	h.open()
	if got := h.kinds(gone); got != "create delete" {
		t.Errorf("records of the removed sandbox: %s", got)
	}
}

// TestRewind_RestartsCommandWhenNotRecorded checks that a command that was stopped for a rewind is started again
// where it was if the rewind cannot be recorded, whichever write fails for lack of space.
func TestRewind_RestartsCommandWhenNotRecorded(t *testing.T) {
	t.Parallel()
	h, disk := newHomeWithFaultyLedger(t)
	h.onDir("a")
	h.run("a", "write", "f", "one")
	if _, err := h.Run(ctx, "a", wire.RunRequest{Cmd: []string{"agent"}, Capture: wire.Capture{Off: true}}); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := 1; ; n++ {
		st, err := h.Status(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		starts := st.Run.Starts
		disk.FailAt(n, syscall.ENOSPC, false)
		_, cerr := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: "HEAD", GraceMS: 1})
		failed := disk.Failed()
		disk.FailAt(0, 0, false)
		if cerr != nil && !fault.Is(cerr, fault.NoSpace) {
			t.Fatal(cerr)
		}
		// A start that is still in progress would hit the failing write of the next round.
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			rec, err := h.DB.Sandbox(ctx, string(h.id("a")))
			if err != nil || rec.Run.Exit != nil || time.Now().After(deadline) {
				t.Fatalf("write %d: the command does not run: %+v, exit %+v; rewind: %v; %v", n, rec.Run, rec.Run.Exit,
					cerr, err)
			}
			if rec.Run.Starts > starts && !rec.Starting {
				break
			}
		}
		if cerr != nil {
			refused++
		}
		if !failed {
			break
		}
	}
	if refused == 0 {
		t.Error("no rewind was refused")
	}
}

// stopAll ends the processes of a sandbox, without a capture.
func (h *home) stopAll(name string) error {
	s, _, err := h.acquire(ctx, name, "stopping")
	if err != nil {
		return err
	}
	defer s.unlock(h.Engine)
	return h.stopBox(ctx, s, 0)
}

// TestRecovery_RecordsUnfinishedAsUndone checks that the next engine marks as undone, once, each record whose
// operation a crash prevented.
func TestRecovery_RecordsUnfinishedAsUndone(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	kept := h.run("a", "write", "f", "one").Head
	other := rec
	other.ID = "00000000000c"
	for _, one := range []struct {
		rec  *string
		body format.Body
	}{
		{nil, &format.Snapshot{Snapshot: "nosuchsnapshot", Cause: "auto"}},
		{nil, &format.Fork{Child: string(other.ID), Snapshot: kept}},
		{nil, &format.Policy{After: "sha256:00", Before: rec.Policy}},
		{nil, &format.Rollback{From: kept, To: string(rec.MountTop)}},
		{new(string), &format.Create{Base: "x"}},
	} {
		of := &rec
		if one.rec != nil {
			of = &other
		}
		if err := h.Book.Record(ctx, of, audit.ByDaemon(one.body)...); err != nil {
			t.Fatal(err)
		}
	}
	h.close()
	h.forgetAgreed() // as if the daemon had been killed right after the records
	for range 2 {    // the second time must add no record
		h.open()
		var undone []int64
		for _, r := range h.told(rec.ID, format.KindUndone) {
			undone = append(undone, r.Body.(*format.Undone).Seq)
		}
		var wrong []int64
		for _, r := range h.told(rec.ID) {
			switch b := r.Body.(type) {
			case *format.Snapshot:
				if b.Snapshot != kept {
					wrong = append(wrong, r.Seq)
				}
			case *format.Fork, *format.Policy, *format.Rollback:
				wrong = append(wrong, r.Seq)
			}
		}
		slices.Sort(undone)
		if !slices.Equal(undone, wrong) {
			t.Errorf("undone: %v, want %v", undone, wrong)
		}
		if got := h.kinds(other.ID); got != "create undone" {
			t.Errorf("records of the sandbox that was never made: %s", got)
		}
		h.close()
	}
	h.open()
}

// TestRecovery_AppendsOwedRecords checks that the next engine records operations that were done and could not be
// recorded before the engine died.
func TestRecovery_AppendsOwedRecords(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.onDir("b")
	id, gone := h.id("a"), h.id("b")
	middle := h.run("a", "write", "f", "one").Head
	h.run("a", "write", "f", "two")
	for _, name := range []string{"a", "b"} {
		rec, err := h.DB.Sandbox(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		d := h.Book.RemovalOf(ctx, &rec)
		d.Snapshots, d.Reason, d.Removed = []timeline.SnapshotID{timeline.SnapshotID(middle), rec.Head}, "asked", name == "b"
		if _, err := h.DB.BeginIntent(ctx, "tell", d); err != nil { // as Book.Free does
			t.Fatal(err)
		}
	}
	c := upkeepConfig(h.Engine)
	c.Recorder = &meanwhile{do: func() {}}
	if _, err := upkeep.New(c).DeleteSnapshot(ctx, "a", middle); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.open() // of b, only the snapshot was dropped
	if b := last[*format.Drop](h, id); b == nil || !slices.Equal(b.Snapshots, []string{middle}) {
		t.Errorf("%+v", b)
	}
	if got := h.kinds(gone); got != "create drop" {
		t.Errorf("records of the sandbox that was not removed: %s", got)
	}
}

func TestBookDo_RecordsUndoneOnFailure(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	fire := errors.New("the disk is on fire")
	err = h.Book.Do(ctx,
		h.Book.Drafts(ctx, &rec,
			audit.ByDaemon(&format.Snapshot{Snapshot: "x", Cause: "auto"}, &format.Rollback{From: "x", To: "y"})...),
		func(context.Context) error { return fire })
	if !errors.Is(err, fire) {
		t.Fatal(err)
	}
	if got := h.kinds(rec.ID); got != "create snapshot rollback undone undone" {
		t.Error(got)
	}
	if b := last[*format.Undone](h, rec.ID); b.Seq != 3 || b.Reason != "the disk is on fire" {
		t.Errorf("%+v", b)
	}
}

// TestExec_RecordsUndoneWhenRefused checks that a command that its monitor refuses is recorded as not started, for
// each kind of request.
func TestExec_RecordsUndoneWhenRefused(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	id := h.id("a")
	h.run("a", "true")
	h.box("a").refusing.Store(true)
	before := h.kinds(id)
	for range 2 {
		if _, err := h.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"true"}},
			stream{strings.NewReader(""), io.Discard}); !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
		if _, err := h.StartExec(ctx, "a", wire.ExecRequest{Cmd: []string{"true"}}); !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
		if _, err := h.Run(ctx, "a", wire.RunRequest{Cmd: []string{"agent"}}); !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
	}
	if got, want := strings.TrimPrefix(h.kinds(id), before), strings.Repeat(" exec undone", 6); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	all := h.told(id, format.KindUndone)
	newest, err := h.LedgerRecords(ctx, "a", wire.LedgerRequest{Last: 2, Kinds: []string{"undone"}})
	if err != nil || newest.More || len(newest.Records) != 2 || newest.Records[0].Seq != all[4].Seq ||
		newest.Records[1].Seq != all[5].Seq {
		t.Errorf("the newest two: %+v, %v", newest, err)
	}
	page, err := h.LedgerRecords(ctx, "a", wire.LedgerRequest{Limit: 5, Kinds: []string{"undone"}})
	if err != nil || !page.More || len(page.Records) != 5 || page.Records[0].Seq != all[0].Seq {
		t.Errorf("the first five: %+v, %v", page, err)
	}
	last := int64(0)
	for _, r := range h.told(id, format.KindExec, format.KindUndone) {
		if b, ok := r.Body.(*format.Undone); ok && (b.Seq != last || !strings.Contains(b.Reason, "no such user")) {
			t.Errorf("%+v after %d", b, last)
		}
		last = r.Seq
	}
}

func TestExecRecord_IsRedactedAndBounded(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	huge := strings.Repeat("\x01", 200<<10)
	req := wire.ExecRequest{Cmd: []string{"true", "--password", "hunter2", huge, "\xff\xfe"},
		Env: []string{"TOKEN=hunter2", "B=1"}, Dir: "/hunter2", Label: "hunter2"}
	for range 3000 {
		req.Cmd = append(req.Cmd, "word with some length to it")
	}
	if _, err := h.Exec(ctx, "a", req, stream{strings.NewReader(""), io.Discard}); err != nil {
		t.Fatal(err)
	}
	exec := last[*format.Exec](h, h.id("a"))
	if !strings.HasPrefix(exec.Args[2], "[redacted:TOKEN:") || !strings.HasPrefix(exec.Dir, "/[redacted:TOKEN:") ||
		!slices.Contains(exec.Env, "TOKEN") || !strings.HasSuffix(exec.Args[len(exec.Args)-1], "more") {
		t.Errorf("%.200q... %q %q", exec.Args, exec.Dir, exec.Env)
	}
	files, err := os.ReadDir(h.dir + "/ledger/sandbox/" + string(h.id("a")))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(h.dir + "/ledger/sandbox/" + string(h.id("a")) + "/" + f.Name())
		if err != nil || bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("the secret is in %s, %v", f.Name(), err)
		}
	}
}

func TestFork_RecordsThousandForks(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	res, err := h.Fork(ctx, "a", wire.ForkRequest{N: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(h.told(h.id("a"), format.KindFork)); got != 1000 {
		t.Errorf("%d forks in the ledger", got)
	}
	for _, f := range res.Sandboxes {
		if got := h.kinds(timeline.SandboxID(f.ID)); got != "create" {
			t.Fatalf("%s: %s", f.Name, got)
		}
	}
}

func TestAuditLog_RecordsApprovalsAndRules(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.Caller = func(context.Context) string { return "token 7" }
	b := h.asking("a")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Approve(ctx, "a", wire.AnswerRequest{Rules: []string{"one.example"}, ForMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	p, a := last[*format.Policy](h, rec.ID), last[*format.Approval](h, rec.ID)
	now, err := h.Policy(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if p.Before != rec.Policy || p.After != now.Digest || p.Until == "" || p.By != "token 7" {
		t.Errorf("%+v", p)
	}
	if a.Answer != "allow" || a.Question != "one.example" || a.By != "token 7" || a.Until != p.Until {
		t.Errorf("%+v", a)
	}
	h.run("a", "true")
	all := h.told(rec.ID, format.KindExec)
	if got := all[len(all)-1].Policy; got != now.Digest {
		t.Errorf("the policy in force was %s, and that of the record is %s", now.Digest, got)
	}
	b.mu.Lock()
	b.setErr = func() error { return errors.New("no") }
	b.mu.Unlock()
	if _, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"two.example"}}); err == nil {
		t.Error("Allow succeeded although the keeper refused the policy")
	}
	var undone *format.Undone
	for _, r := range h.told(rec.ID, format.KindUndone) {
		undone = r.Body.(*format.Undone)
	}
	if policies := h.told(rec.ID, format.KindPolicy); undone == nil || undone.Seq != policies[len(policies)-1].Seq {
		t.Errorf("%+v", undone)
	}
}

func TestAuditLog_RecordsTournamentsAndSessions(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	id := h.id("a")
	res, err := h.Tournament(ctx, "a",
		wire.TournamentRequest{Candidates: candidates("write won yes", "say no"), Test: "has won"}, func(wire.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	b := last[*format.Tournament](h, id)
	if b == nil || b.Winner != res.Winner || b.Snapshot != res.Base || len(b.Candidates) != 2 ||
		b.Candidates[0].Sandbox != res.Branches[0].ID || b.Candidates[0].Outcome != "passed" {
		t.Errorf("%+v of %+v", b, res)
	}
	h.box("a")
	info, err := h.StartExec(ctx, "a", wire.ExecRequest{Cmd: []string{"kept"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Exec(ctx, "a", wire.ExecRequest{Attach: info.ID, Keep: true},
		stream{strings.NewReader(""), io.Discard}); !fault.Is(err, fault.Cancelled) {
		t.Fatal(err)
	}
	var events []string
	for _, r := range h.told(id, format.KindSession) {
		s := r.Body.(*format.Session)
		events = append(events, s.Event+" "+fmt.Sprint(s.Exec == info.ID))
	}
	if strings.Join(events, ", ") != "attached true, left true" {
		t.Errorf("%q", events)
	}
}
