//go:build linux

package engine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// asks asks for a trial as a process of the sandbox's user.
func (h *home) asks(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error) {
	h.t.Helper()
	uid := uint32(os.Getuid())
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		h.t.Error(err)
	}
	return h.TrialInside(audit.FromInside(ctx), string(rec.ID), req, tournament.Asker{UID: &uid})
}

// boxOf returns the box of a sandbox; nil if it was never started.
func (h *home) boxOf(id timeline.SandboxID) *fakeBox {
	h.boxes.mu.Lock()
	defer h.boxes.mu.Unlock()
	return h.boxes.boxes[h.runDir(id)]
}

// askedTrial is a trial that is waiting.
type askedTrial struct {
	fork meta.Sandbox
	end  <-chan error // receives its error
}

// waits starts a trial whose command runs until its box stops.
func (h *home) waits(ctx context.Context, name string) (a askedTrial) {
	h.t.Helper()
	end := make(chan error, 1)
	go func() {
		_, err := h.asks(ctx, name, wire.TrialRequest{Cmd: "wait"})
		end <- err
	}()
	a.end = end
	for {
		recs, err := h.DB.Sandboxes(ctx)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, r := range recs {
			if b := h.boxOf(r.ID); r.Trial != nil && b != nil && b.hanging.Load() > 0 {
				a.fork = r
				return a
			}
		}
		select {
		case err := <-end:
			h.t.Fatalf("the trial has ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// endsWith checks that the trial is ended with an error of a kind, that its fork is gone, and returns its record.
func (h *home) endsWith(name string, a askedTrial, kind fault.Kind, text string) *format.Trial {
	h.t.Helper()
	select {
	case err := <-a.end:
		if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
			h.t.Errorf("%v, want %s: %q", err, kind, text)
		}
	case <-time.After(time.Minute):
		h.t.Fatal("the trial goes on")
	}
	if _, err := h.DB.Sandbox(ctx, string(a.fork.ID)); !fault.Is(err, fault.NotFound) {
		h.t.Errorf("the fork is left: %v", err)
	}
	list := h.told(h.id(name), format.KindTrial)
	if len(list) == 0 || list[len(list)-1].Observer != format.BySandbox {
		h.t.Fatalf("not recorded: %+v", list)
	}
	return list[len(list)-1].Body.(*format.Trial)
}

// forTrials makes a live sandbox with labels.
func (h *home) forTrials(name string) {
	h.t.Helper()
	if _, err := h.makes(name, func(r *wire.CreateRequest) {
		r.Self, r.Labels = wire.SelfRewind, map[string]string{"owner": "me"}
	}); err != nil {
		h.t.Fatal(err)
	}
	h.run(name, "write", "base", "base")
}

func TestTrialInside_RunsInAFork(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.forTrials("a")
	got, err := h.asks(ctx, "a", wire.TrialRequest{Cmd: "write x 1;has base;say done"})
	if err != nil || got.Exit != 0 || got.Tail != "done" {
		t.Errorf("%+v, %v", got, err)
	}
	h.alone("a")
	list := h.told(h.id("a"), format.KindTrial)
	if len(list) != 1 || list[0].Observer != format.BySandbox {
		t.Fatalf("%+v", list)
	}
	b := list[0].Body.(*format.Trial)
	if b.Command != "write x 1;has base;say done" || b.Fork == "" || b.Snapshot == "" || b.Exit != 0 || b.Ended != "" {
		t.Errorf("%+v", b)
	}
	// The answer has nothing about the host.
	if got, err = h.asks(ctx, "a", wire.TrialRequest{Cmd: "nonsense"}); err != nil || got.Exit != tournament.ExitNotRun ||
		got.Tail != "the command could not be run: internal error; see the daemon's log" {
		t.Errorf("%+v, %v", got, err)
	}

	// The fork is marked, expires, has no labels, and no socket inside.
	w := h.waits(ctx, "a")
	r := w.fork
	if r.Trial == nil || r.Trial.Of != h.id("a") || !r.Trial.Inside || len(r.Labels) != 0 || r.Self != wire.SelfOff ||
		r.Expires == nil || r.Expires.After(h.Now().Add(limit.InsideTrialTime+2*time.Minute)) {
		t.Errorf("%+v", r)
	}
	if sb, err := h.Sandbox(ctx, r.Name); err != nil || sb.TrialOf != string(h.id("a")) || sb.Self != wire.SelfOff {
		t.Errorf("%+v, %v", sb, err)
	}
	if st, err := h.Status(ctx, r.Name); err != nil || !strings.Contains(strings.Join(st.Notices, " "), "a trial of") {
		t.Errorf("%+v, %v", st.Notices, err)
	}
	if err := (guestCore{h.Engine}).MayAsk(ctx, r.ID, tournament.Asker{User: true}); !fault.Is(err, fault.Denied) {
		t.Errorf("a trial in a trial: %v", err)
	}
	_ = h.boxNow(r.Name).Stop(ctx, 0)
	<-w.end
}

// TestTrialInside_EndsWithItsSandbox checks that a trial ends when something happens that its fork does not know of.
func TestTrialInside_EndsWithItsSandbox(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.gated("a", "one.example")
	h.run("a", "write", "base", "base")
	for why, do := range map[string]func() error{
		"was paused": func() error { _, err := h.Pause(ctx, "a"); return err },
		"got other": func() error {
			_, err := h.Allow(ctx, "a", wire.AllowRequest{Deny: []string{"x.example"}})
			return err
		},
		"was rewound":  func() error { _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: "HEAD~1"}); return err },
		"was stopped":  func() error { _, err := h.Stop(ctx, "a"); return err },
		"disconnected": nil,
	} {
		h.run("a", "write", "base", why)
		gone, cancel := context.WithCancel(ctx)
		w := h.waits(gone, "a")
		if do == nil {
			cancel()
			if b := h.endsWith("a", w, fault.Cancelled, "with its client"); !strings.Contains(b.Ended, why) {
				t.Errorf("%+v", b)
			}
			continue
		}
		if err := do(); err != nil {
			t.Fatalf("%s: %v", why, err)
		}
		if b := h.endsWith("a", w, fault.Cancelled, why); !strings.Contains(b.Ended, why) {
			t.Errorf("%+v", b)
		}
		if why == "was paused" {
			if _, err := h.asks(ctx, "a", wire.TrialRequest{Cmd: "say hi"}); !fault.Is(err, fault.Conflict) {
				t.Errorf("while it is paused: %v", err)
			}
			if _, err := h.Resume(ctx, "a"); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
	}
	h.run("a", "write", "base", "again")
	w := h.waits(ctx, "a")
	if _, err := h.Remove(ctx, []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	if err := <-w.end; err == nil {
		t.Error("the trial of a removed sandbox has a result")
	}
	if list, err := h.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	h.gated("b", "one.example")
	if _, err := h.asks(ctx, "b", wire.TrialRequest{Cmd: "say hi"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("without a box: %v", err)
	}
}

func TestTrialInside_OnlyForItsUser(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.forTrials("a")
	other := uint32(os.Getuid()) + 1
	for name, who := range map[string]tournament.Asker{"unknown": {}, "another": {UID: &other}} {
		_, err := h.TrialInside(audit.FromInside(ctx), string(h.id("a")), wire.TrialRequest{Cmd: "say hi"}, who)
		if !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := h.TrialInside(audit.FromInside(ctx), string(h.id("a")), wire.TrialRequest{Cmd: "say hi"},
		tournament.Asker{User: true}); err != nil {
		t.Error(err)
	}
}

// TestTrialInside_IsRefusedBeyondTheLimit checks that no request waits for another trial.
func TestTrialInside_IsRefusedBeyondTheLimit(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	var running []askedTrial
	for i := range limit.InsideTrialsAtOnce {
		name := "a" + itoa(i)
		h.forTrials(name)
		running = append(running, h.waitsFor(name))
	}
	if _, err := h.asks(ctx, "a0", wire.TrialRequest{Cmd: "say hi"}); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(err.Error(), "another trial") {
		t.Error(err)
	}
	h.forTrials("b")
	if _, err := h.asks(ctx, "b", wire.TrialRequest{Cmd: "say hi"}); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.HintOf(err), "try again") {
		t.Error(err)
	}
	for _, w := range running {
		_ = h.boxNow(w.fork.Name).Stop(ctx, 0)
		<-w.end
	}
	if _, err := h.asks(ctx, "b", wire.TrialRequest{Cmd: "say hi"}); err != nil {
		t.Error(err)
	}
}

// waitsFor is waits for the fork of one of several sandboxes.
func (h *home) waitsFor(name string) (a askedTrial) {
	h.t.Helper()
	end := make(chan error, 1)
	go func() {
		_, err := h.asks(ctx, name, wire.TrialRequest{Cmd: "wait"})
		end <- err
	}()
	for {
		recs, err := h.DB.Sandboxes(ctx)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, r := range recs {
			if b := h.boxNow(r.Name); r.Trial != nil && r.Trial.Of == h.id(name) && b != nil && b.hanging.Load() > 0 {
				return askedTrial{r, end}
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func TestTrialInside_HasALimit(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.forTrials("a")
	for _, ms := range []int64{0, 1 << 50} {
		got, err := h.asks(ctx, "a", wire.TrialRequest{Cmd: "hang", TimeoutMS: ms}) // it returns only if there is a limit
		if err != nil || !got.TimedOut || got.Exit != tournament.ExitTimeout {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for name, req := range map[string]wire.TrialRequest{"no command": {}, "a zero byte": {Cmd: "a\x00"},
		"a timeout": {Cmd: "a", TimeoutMS: -1}, "a long command": {Cmd: strings.Repeat("x", limit.LineText+1)}} {
		if _, err := h.asks(ctx, "a", req); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTrialInside_ChargesItsSandbox checks the budgets: of snapshots, of trials, and of what forks record.
func TestTrialInside_ChargesItsSandbox(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.forTrials("a")
	h.spends("a", audit.ClassInside, limit.InsideChanges-1)
	h.behind("a", "x", "1")
	if _, err := h.asks(ctx, "a", wire.TrialRequest{Cmd: "say hi"}); err != nil {
		t.Fatal(err)
	}
	h.behind("a", "x", "2")
	_, err := h.asks(ctx, "a", wire.TrialRequest{Cmd: "say hi"})
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("a snapshot beyond the budget: %v", err)
	}
	if _, err := h.asks(ctx, "a", wire.TrialRequest{Cmd: "say hi", At: "HEAD"}); err != nil {
		t.Errorf("without a snapshot: %v", err)
	}
	h.spends("a", audit.ClassTrials, limit.InsideTrials)
	_, err = h.asks(ctx, "a", wire.TrialRequest{Cmd: "say hi", At: "HEAD"})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "too many trials") {
		t.Error(err)
	}

	h.forTrials("b")
	w := h.waits(ctx, "b")
	mine, err := h.budgets.Of(ctx, h.id("b"))
	if err != nil {
		t.Fatal(err)
	}
	if its, err := h.budgets.Of(ctx, w.fork.ID); err != nil || its != mine {
		t.Errorf("the fork has a budget of its own: %v", err)
	}
	_ = h.boxNow(w.fork.Name).Stop(ctx, 0)
	<-w.end

	// A restart of the daemon refills nothing.
	for range 3 {
		if _, err := h.asks(ctx, "b", wire.TrialRequest{Cmd: "say hi", At: "HEAD"}); err != nil {
			t.Fatal(err)
		}
	}
	h.close()
	h.open()
	h.spends("b", audit.ClassTrials, limit.InsideTrials-4)
	h.run("b", "true")
	if _, err := h.asks(ctx, "b", wire.TrialRequest{Cmd: "say hi", At: "HEAD"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after a restart: %v", err)
	}
}

// TestTrialInside_StopsItsSandboxForHoneytokens checks that a trial does not disclose which files are
// honeytokens.
func TestTrialInside_StopsItsSandboxForHoneytokens(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.forTrials("a")
	file := filepath.Join(h.sandboxDir(h.id("a")), "decoys")
	if err := os.WriteFile(file, []byte(`{"version":1,"files":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	box := h.boxNow("a")
	w := h.waits(ctx, "a")
	if text, err := os.ReadFile(filepath.Join(h.sandboxDir(w.fork.ID), "decoys")); err != nil || len(text) == 0 {
		t.Errorf("the fork has other honeytokens: %q, %v", text, err)
	}
	h.gateTells(w.fork.ID, wire.NetEvent{Kind: wire.NetDecoy, Verdict: wire.VerdictStop, Decoy: "/root/.aws/credentials",
		Reason: "opened"})
	_ = h.boxNow(w.fork.Name).Stop(ctx, 0)
	b := h.endsWith("a", w, fault.Denied, "the trial was ended")
	if !strings.Contains(b.Ended, "honeytoken") {
		t.Errorf("%+v", b)
	}
	select {
	case <-box.Gone():
	case <-time.After(time.Minute):
		t.Fatal("the sandbox goes on")
	}
	for h.rec("a").Halted == nil {
		time.Sleep(time.Millisecond)
	}
	if why := h.rec("a").Halted.Why; !strings.Contains(why, "/root/.aws/credentials") || !strings.Contains(why, "trial") {
		t.Error(why)
	}
}

// rec returns the record of a sandbox.
func (h *home) rec(name string) meta.Sandbox {
	h.t.Helper()
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return rec
}

// TestRecovery_RemovesForksOfTrials covers a daemon that was killed during a trial from inside and a tournament: the
// next one removes the forks with their processes, and no others.
func TestRecovery_RemovesForksOfTrials(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.forTrials("a")
	var forks []timeline.SandboxID
	for i, p := range []tournament.Purpose{{Tag: "t-1", Trial: true, Limit: time.Minute}, {Tag: "t-2"}} {
		in := ctx
		if i == 0 {
			in = audit.FromInside(ctx)
		}
		res, _, err := (tournamentCore{h.Engine}).Fork(in, h.id("a"), wire.ForkRequest{Names: []string{p.Tag}}, p)
		if err != nil {
			t.Fatal(err)
		}
		forks = append(forks, timeline.SandboxID(res.Sandboxes[0].ID))
		h.run(p.Tag, "true") // a box that outlives the daemon
	}
	kept, _, err := (tournamentCore{h.Engine}).Fork(ctx, h.id("a"), wire.ForkRequest{Names: []string{"kept"}},
		tournament.Purpose{Tag: "t-3"})
	if err != nil {
		t.Fatal(err)
	}
	if err := (tournamentCore{h.Engine}).Keep(ctx, timeline.SandboxID(kept.Sandboxes[0].ID)); err != nil {
		t.Fatal(err)
	}
	boxes := []*fakeBox{h.boxNow("t-1"), h.boxNow("t-2")}
	h.killed()
	for i, id := range forks {
		if _, err := h.DB.Sandbox(ctx, string(id)); !fault.Is(err, fault.NotFound) {
			t.Errorf("fork %d: %v", i, err)
		}
		select {
		case <-boxes[i].Gone():
		default:
			t.Errorf("fork %d: its processes run", i)
		}
	}
	list := h.told(h.id("a"), format.KindTrial)
	if len(list) != 1 || list[0].Body.(*format.Trial).Fork != string(forks[0]) {
		t.Errorf("recorded: %+v", list)
	}
	if names := h.marked(); len(names) != 1 || names[0] != "kept" {
		t.Errorf("left: %q", names)
	}
}

// TestTrialInside_LeavesAShortLedger checks how much is recorded of commands that a sandbox can have run without its
// owner: its hooks, and the command of a trial.
func TestTrialInside_LeavesAShortLedger(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	req := wire.ExecRequest{Cmd: []string{"print", strings.Repeat("x", 100<<10)}}
	inside := audit.FromInside(ctx)
	for i, run := range []func() (wire.Exit, error){
		func() (wire.Exit, error) { return tournamentCore{h.Engine}.Exec(ctx, "a", req, &tail.Client{}) },
		func() (wire.Exit, error) { return tournamentCore{h.Engine}.Exec(inside, "a", req, &tail.Client{}) },
		func() (wire.Exit, error) { return restoreCore{h.Engine}.Exec(ctx, "a", req, &tail.Client{}) },
	} {
		if _, err := run(); err != nil {
			t.Fatal(err)
		}
		all := h.told(h.id("a"), format.KindExit)
		out := all[len(all)-1].Body.(*format.Exit).Output
		want := []int64{100 << 10, limit.TrialOutput + 64, limit.RekeyOutput + 64}[i]
		if len(out) != 1 || out[0].Bytes > want || i == 0 && out[0].Bytes != want || out[0].Bytes+out[0].Dropped < 100<<10 {
			t.Errorf("%d: %+v, at most %d", i, out, want)
		}
	}
}
