//go:build linux

package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// shell runs a sequence of: write PATH TEXT; has PATH; say WORDS; hang; exit CODE. It stops at the first that fails.
func (b *fakeBox) shell(req wire.ExecRequest) (io.ReadWriteCloser, error) {
	var out bytes.Buffer
	say := func(t wire.FrameType, text string) {
		_ = wire.WriteFrame(&out, t, []byte(text)) // into memory, which cannot fail
	}
	x := Ended{}
	for _, cmd := range strings.Split(req.Cmd[len(req.Cmd)-1], ";") {
		w := strings.Fields(cmd)
		switch w[0] {
		case "write":
			if err := os.WriteFile(filepath.Join(b.root, w[1]), []byte(w[2]), 0o644); err != nil {
				return nil, err
			}
		case "has":
			if _, err := os.Stat(filepath.Join(b.root, w[1])); err != nil {
				say(wire.FrameStderr, "no "+w[1]+"\n")
				x.Code = 1
			}
		case "say":
			say(wire.FrameStdout, strings.Join(w[1:], " ")+"\n")
		case "hang":
			if req.TimeoutMS == 0 {
				b.hanging.Add(1)
				return &hanging{box: b, closed: make(chan struct{})}, nil
			}
			x.Exit = wire.Exit{Code: 124, TimedOut: true}
		case "wait": // until the box stops
			b.hanging.Add(1)
			return &hanging{box: b, closed: make(chan struct{})}, nil
		case "exit":
			_, _ = fmt.Sscan(w[1], &x.Code) // the tests pass a number
		default:
			return nil, fault.New(fault.Invalid, "no such command %q", w[0]).WithHint("use another")
		}
		if x.Code != 0 {
			break
		}
	}
	return stream{&out, io.Discard}, wire.WriteJSON(&out, wire.FrameExit, x)
}

// hanging is a command that exits when its box does.
type hanging struct {
	box    *fakeBox
	closed chan struct{}
}

func (h *hanging) Read([]byte) (int, error) {
	select {
	case <-h.box.gone:
	case <-h.closed:
	}
	return 0, io.EOF
}
func (h *hanging) Write(p []byte) (int, error) { return len(p), nil }
func (h *hanging) Close() error {
	select {
	case <-h.closed:
	default:
		close(h.closed)
	}
	return nil
}

func candidates(cmds ...string) (out []wire.Candidate) {
	for _, c := range cmds {
		out = append(out, wire.Candidate{Cmd: c})
	}
	return out
}

// marked lists the forks that belong to tournaments.
func (h *home) marked() (names []string) {
	h.t.Helper()
	list, err := h.List(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, sb := range list {
		if sb.Tournament != "" {
			names = append(names, sb.Name)
		}
	}
	return names
}

func TestTournament_FirstPassWins(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	base := h.run("a", "write", "f", "before").Head
	h.run("a", "write", "f", "now")
	var told []string
	res, err := h.Tournament(ctx, "a",
		wire.TournamentRequest{Base: base, Test: "has good;write trace x;say tested", Candidates: []wire.Candidate{
			{Cmd: "say one;exit 3"}, {Name: "\x1b[2J", Cmd: "write good 12345;write f after"}, {Cmd: "write good 2;exit 7"},
			{Name: "odd", Cmd: "dance"}}},
		func(p wire.Progress) {
			if p.Branch != nil {
				told = append(told, p.Branch.Name)
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(told); !slices.Equal(told, []string{"\x1b[2J", "1", "3", "odd"}) {
		t.Errorf("progress reports: %q", told)
	}
	b := res.Branches
	if res.Winner != "\x1b[2J" || res.WinnerNode != b[1].Node || res.Base != base {
		t.Errorf("%+v", res)
	}
	for i, want := range []wire.TournamentBranch{
		{Exit: 3, TestExit: 1, Tail: "one\nno good"}, {Paths: 2, Bytes: 10}, {Exit: 7, Paths: 1, Bytes: 1, Tail: "tested"},
		{Exit: 125, TestExit: 125, Tail: "no such command \"dance\"\nhint: use another"},
	} {
		if b[i].Exit != want.Exit || b[i].TestExit != want.TestExit || b[i].Paths != want.Paths || b[i].Bytes != want.Bytes ||
			b[i].Tail != want.Tail {
			t.Errorf("%d: %+v", i, b[i])
		}
	}

	// The sandbox is unchanged, and the winner, as it was before the test, is a branch of its history.
	if got := h.tree("a"); got["f"] != "now" || len(got) != 2 {
		t.Errorf("%v", got)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: res.WinnerNode}); err != nil {
		t.Fatal(err)
	}
	if got := h.tree("a"); got["f"] != "after" || got["good"] != "12345" || len(got) != 3 {
		t.Errorf("%v", got)
	}

	if b[0].Node != base || b[2].Node == base {
		t.Errorf("%+v", b)
	}

	// Forks are kept. Their own forks belong to no tournament. gc removes the forks of the tournament.
	if got := h.tree(b[2].Sandbox); got["trace"] != "x" || got["good"] != "2" {
		t.Errorf("%v", got)
	}
	if _, err := h.Fork(ctx, b[2].Sandbox, wire.ForkRequest{Names: []string{"kept"}}); err != nil {
		t.Fatal(err)
	}
	if got := h.marked(); len(got) != 4 {
		t.Errorf("%q", got)
	}
	plan, err := h.GC(ctx, wire.GCRequest{DryRun: true}, ignore)
	if err != nil || len(plan.Forks) != 4 || len(h.marked()) != 4 {
		t.Errorf("%+v, %v", plan, err)
	}
	done, err := h.GC(ctx, wire.GCRequest{}, ignore)
	if err != nil || !slices.Equal(done.Forks, plan.Forks) || len(h.marked()) != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if got := h.tree("kept"); got["good"] != "2" {
		t.Errorf("%v", got)
	}
	if got := h.tree("a"); got["good"] != "12345" {
		t.Errorf("%v", got)
	}
	if v, err := h.Verify(ctx, "", ignore); err != nil || len(v.Damage) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestTournament_BestScoreWins(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "now")
	before := h.run("a", "write", "mine", "kept").Head
	res, err := h.Tournament(ctx, "a",
		wire.TournamentRequest{Test: "has f", Score: "has s;say 7 points;say -1.5", Keep: true,
			Candidates: candidates("exit 1", "write s 1;write f b", "write s 1;write f c")}, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if s := res.Branches; s[0].Score != nil || *s[1].Score != -1.5 || *s[2].Score != -1.5 || res.Winner != "2" ||
		res.Head != s[1].Node {
		t.Errorf("%+v", res)
	}
	if !strings.Contains(res.Branches[0].Tail, "no s") {
		t.Errorf("%q", res.Branches[0].Tail)
	}
	if got := h.tree("a"); got["f"] != "b" {
		t.Errorf("%v", got)
	}
	// The state before the rewind is in the history, also after gc.
	if _, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{before, res.Head} {
		if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: ref}); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if log, err := h.Log(ctx, "a"); err != nil || log.Head != res.Head {
		t.Errorf("%+v, %v", log, err)
	}

	res, err = h.Tournament(ctx, "a",
		wire.TournamentRequest{Test: "has nothing", Keep: true, Candidates: candidates("exit 0")}, ignore)
	if err != nil || res.Winner != "" || res.WinnerNode != "" || res.Head == "" || res.Branches[0].Tail != "no nothing" {
		t.Errorf("%+v, %v", res, err)
	}
	// A winner without changes has the base as its snapshot.
	res, err = h.Tournament(ctx, "a", wire.TournamentRequest{Test: "has f", Candidates: candidates("exit 0"), Keep: true},
		ignore)
	if err != nil || res.WinnerNode != res.Base || res.Head != res.Base {
		t.Errorf("%+v, %v", res, err)
	}
	if h, err := h.Log(ctx, "a"); err != nil ||
		slices.ContainsFunc(h.Nodes, func(n wire.Snapshot) bool { return n.Leaf && n.Cause == "fork" }) {
		t.Errorf("%+v, %v", h, err)
	}
	res, err = h.Tournament(ctx, "a",
		wire.TournamentRequest{Test: "has f", Score: "say high", Candidates: candidates("exit 0")}, ignore)
	if err != nil || res.Winner != "" || res.Branches[0].Tail != "high\ninvalid score: the last line must be a number" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestTournament_TimeoutCoversCandidateAndTest(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	res, err := h.Tournament(ctx, "a",
		wire.TournamentRequest{Test: "has base", TimeoutMS: 60_000, Candidates: candidates("say x;hang", "exit 0")}, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if b := res.Branches[0]; b.Exit != 124 || b.TestExit != 124 || b.Tail != "x\ntimed out after 1m0s" ||
		res.Winner != "2" {
		t.Errorf("%+v", res)
	}
	// A clock that advances by an hour with each call.
	var hours atomic.Int64
	began := time.Now()
	h.close()
	h.clock = func() time.Time { return began.Add(time.Duration(hours.Add(1)) * time.Hour) }
	h.open()
	res, err = h.Tournament(ctx, "a",
		wire.TournamentRequest{Test: "has base", TimeoutMS: 90 * 60_000, Jobs: 1, Candidates: candidates("exit 0")}, ignore)
	if err != nil || res.Branches[0].Exit != 0 || res.Branches[0].TestExit != 124 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestTournament_CancelLeavesNothing(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	head := h.run("a", "write", "f", "x").Head
	within, stop := context.WithCancel(ctx)
	_, err := h.Tournament(within, "a",
		wire.TournamentRequest{Test: "has f", Jobs: 2, Candidates: candidates("write g 1", "hang", "hang", "hang")},
		func(p wire.Progress) {
			if p.Done != 1 {
				return
			}
			if got := h.marked(); len(got) != 4 {
				t.Errorf("%q", got)
			}
			// gc spares the forks of a running tournament, even if no process runs in them yet.
			if res, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil || len(res.Forks) > 0 {
				t.Errorf("%+v, %v", res, err)
			}
			stop()
		})
	if !fault.Is(err, fault.Cancelled) {
		t.Error(err)
	}
	if got := h.marked(); len(got) != 0 {
		t.Errorf("%q are left", got)
	}
	if got, err := h.Head(ctx, "a"); err != nil || got != head {
		t.Errorf("%s, %v", got, err)
	}
	if dirs, err := os.ReadDir(filepath.Join(h.dir, "sandboxes")); err != nil || len(dirs) != 1 {
		t.Errorf("%v, %v", dirs, err)
	}
	if len(h.UnderWay()) != 0 {
		t.Errorf("%v", h.UnderWay())
	}
}

// TestGC_RemovesForksOfDeadTournament checks that gc removes the forks of a complete tournament when no process runs in
// them.
func TestGC_RemovesForksOfDeadTournament(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	names := []string{"a-t0-1", "a-t0-2"}
	res, _, err := h.fork(ctx, "a", wire.ForkRequest{Names: names}, &tournament.Purpose{Tag: "a-t0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range res.Sandboxes {
		if err := (tournamentCore{h.Engine}).Keep(ctx, timeline.SandboxID(sb.ID)); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		// Exits with its box.
		_, _ = h.Exec(ctx, "a-t0-2", wire.ExecRequest{Cmd: tournament.Shell("hang")}, &tail.Client{})
	}()
	for {
		list, err := h.Status(ctx, "a-t0-2")
		if err != nil {
			t.Fatal(err)
		}
		if list.Sandbox.Procs > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, dry := range []bool{true, false} {
		got, err := h.GC(ctx, wire.GCRequest{DryRun: dry}, ignore)
		if err != nil || !slices.Equal(got.Forks, []string{"a-t0-1"}) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := h.Remove(ctx, []string{res.Sandboxes[1].Name}, true); err != nil {
		t.Error(err)
	}
}

func TestTournament_RefusesInvalidRequest(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	for name, req := range map[string]wire.TournamentRequest{
		"no candidate":     {Test: "t"},
		"no test":          {Candidates: candidates("c")},
		"an empty one":     {Test: "t", Candidates: candidates("c", " ")},
		"a zero byte":      {Test: "t", Candidates: candidates("c\x00")},
		"one in the test":  {Test: "\x00", Candidates: candidates("c")},
		"a name twice":     {Test: "t", Candidates: []wire.Candidate{{Name: "2", Cmd: "c"}, {Cmd: "d"}}},
		"negative jobs":    {Test: "t", Jobs: -1, Candidates: candidates("c")},
		"negative timeout": {Test: "t", TimeoutMS: -1, Candidates: candidates("c")},
		"too many":         {Test: "t", Candidates: make([]wire.Candidate, tournament.MaxCandidates+1)},
	} {
		if _, err := h.Tournament(ctx, "a", req, ignore); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, of := range map[string]string{"nobody": "", "a": "nothing"} {
		if _, err := h.Tournament(ctx, name, wire.TournamentRequest{Test: "t", Base: of, Candidates: candidates("c")},
			ignore); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := h.List(ctx); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestTournament_ForkNamesAreBounded checks that the names of forks are valid, also for the longest name of a
// sandbox.
func TestTournament_ForkNamesAreBounded(t *testing.T) {
	h := newHome(t)
	long := strings.Repeat("x", timeline.MaxName)
	h.onDir(long)
	res, err := h.Tournament(ctx, long,
		wire.TournamentRequest{Test: "exit 1", Candidates: candidates(slices.Repeat([]string{"exit 0"}, 12)...)}, ignore)
	if err != nil {
		t.Fatal(err)
	}
	last := res.Branches[11].Sandbox
	if len(last) != timeline.MaxName || !strings.HasSuffix(last, "-12") {
		t.Errorf("%q", last)
	}
}
