package lineapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// fake is an engine with fixed answers. It runs the commands of run.
type fake struct {
	mu    sync.Mutex
	gc    wire.GCRequest // guarded by mu; of the last call
	marks int            // guarded by mu
	execs int            // guarded by mu

	hold chan struct{} // "hold" writes a line for each value
	kept chan struct{} // closed when "hold" has ended
}

func newFake() *fake { return &fake{hold: make(chan struct{}), kept: make(chan struct{})} }

var (
	when = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	root = wire.Snapshot{ID: "aaaaaaaaaaaa", Message: "from host", Cause: "import", Created: when}
	tip  = wire.Snapshot{ID: "bbbbbbbbbbbb", Parent: "aaaaaaaaaaaa", Message: "make <all>", Head: true, Leaf: true,
		Cause: "exec", Created: when, Paths: 2}
)

func known(ref string) error {
	switch ref {
	case "HEAD", "aaaaaaaaaaaa", "bbbbbbbbbbbb", "good":
		return nil
	case "a":
		return fault.New(fault.Ambiguous, `id "a" is ambiguous: it matches aaaaaaaaaaaa, abbbbbbbbbbb`).
			WithHint("use more digits, for example: aaaa")
	case "broken":
		return errors.New("open /var/lib/coppice/layers: input/output error")
	}
	return fault.New(fault.NotFound, "snapshot %q not found", ref)
}

func (f *fake) Head(context.Context, string) (string, error) { return tip.ID, nil }

func (f *fake) Snapshots(context.Context, string) (wire.LogResult, error) {
	return wire.LogResult{Nodes: []wire.Snapshot{tip, root}, Head: tip.ID}, nil
}

func (f *fake) Branches(context.Context, string) (wire.BranchesResult, error) {
	return wire.BranchesResult{Nodes: []wire.Snapshot{tip}, Head: tip.ID}, nil
}

func (f *fake) ShowSome(_ context.Context, _, ref string, _ int) (wire.ShowResult, error) {
	return wire.ShowResult{Snapshot: tip,
		Changes: []wire.Change{wire.NewChange(wire.Added, "/etc/a\xff"), wire.NewChange(wire.Modified, "b")}}, known(ref)
}

func (f *fake) Diff(_ context.Context, _ string, q wire.DiffRequest) (wire.DiffResult, error) {
	return wire.DiffResult{A: q.A, B: q.B}, errors.Join(known(q.A))
}

func (f *fake) Commit(_ context.Context, _, msg string) (wire.CommitResult, error) {
	return wire.CommitResult{Node: "cccccccccccc", Head: "cccccccccccc", Changed: true}, nil
}

func (f *fake) Checkout(_ context.Context, _, ref string, inPlace bool) (wire.MoveResult, error) {
	if inPlace {
		return wire.MoveResult{}, fault.New(fault.Unsupported, "in place to %s", ref)
	}
	return wire.MoveResult{Head: "aaaaaaaaaaaa"}, known(ref)
}

func (f *fake) DeleteSnapshot(_ context.Context, _, ref string) (string, error) {
	if ref == "HEAD" {
		return "", fault.New(fault.Conflict, "snapshot bbbbbbbbbbbb is HEAD of sandbox box").
			WithHint("rewind to another snapshot first: coppice rewind box REF")
	}
	return tip.ID, known(ref)
}

func (f *fake) Tags(context.Context, string) (map[string]string, error) {
	return map[string]string{"good": root.ID, "bad": tip.ID}, nil
}

func (f *fake) SetTag(_ context.Context, _, tag, ref string) (wire.TagResult, error) {
	return wire.TagResult{Name: tag, Node: root.ID}, known(ref)
}

func (f *fake) GC(_ context.Context, q wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error) {
	progress(wire.Progress{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gc = q
	if q.Keep.Last > 0 {
		return wire.GCResult{Removed: []string{"d1", "e1"}, Dropped: []wire.Snapshot{{ID: "d1"}}}, nil
	}
	return wire.GCResult{Removed: []string{"e1"}}, nil
}

// Exec runs a command by its first argument, or by its second if the first is a shell.
func (f *fake) Exec(ctx context.Context, _ string, q wire.ExecRequest, st io.ReadWriter) (wire.Exit, error) {
	f.mu.Lock()
	f.execs++
	n := f.execs
	f.mu.Unlock()
	over := func() { _ = st.(interface{ SetReadDeadline(time.Time) error }).SetReadDeadline(time.Unix(1, 0)) }
	defer over()
	defer context.AfterFunc(ctx, over)()
	out := func(t wire.FrameType, s string) { _ = wire.WriteFrame(st, t, []byte(s)) }
	exit := wire.Exit{Snapshot: "cccccccccccc", Head: "cccccccccccc", Changed: true}
	cmd := "attached"
	if q.Attach == "" {
		cmd = q.Cmd[len(q.Cmd)-1]
	}
	switch {
	case cmd == "no-bash" && q.Cmd[0] == "bash", cmd == "no-shell":
		return wire.Exit{Code: 127, Message: "no such program"}, nil
	case cmd == "removed":
		return wire.Exit{}, fault.New(fault.NotFound, "sandbox %q not found", "box")
	}
	if err := wire.WriteJSON(st, wire.FrameStarted, wire.Started{Exec: "x1", PID: 40 + n}); err != nil {
		return exit, err
	}
	switch cmd {
	case "true":
		return wire.Exit{Snapshot: tip.ID, Head: tip.ID}, nil
	case "both":
		out(wire.FrameStdout, "out <&>\n")
		out(wire.FrameStderr, "err\n")
		exit.Code = 3
	case "split": // inside characters, separately for each stream
		out(wire.FrameStdout, "\xe2\x82")
		out(wire.FrameStderr, "\xf0\x9f")
		out(wire.FrameStdout, "\xac!\xff\xe2")
		out(wire.FrameStderr, "\x8c\xb3")
	case "lost":
		_ = wire.WriteJSON(st, wire.FrameDropped, wire.Dropped{Bytes: 7})
	case fromStdin:
		var b strings.Builder
		for {
			t, p, err := wire.ReadFrame(st, nil)
			if err != nil || t != wire.FrameStdin {
				break
			}
			b.Write(p)
		}
		out(wire.FrameStdout, b.String()[b.Len()-3:])
		exit.Code = b.Len() >> 20
	case "hold":
		for {
			select {
			case _, more := <-f.hold:
				if !more {
					close(f.kept)
					return exit, nil
				}
				out(wire.FrameStdout, "line\n")
			case <-ctx.Done():
				return exit, ctx.Err()
			}
		}
	case "flood":
		for range 1 << 10 {
			out(wire.FrameStdout, strings.Repeat("x", 32<<10))
		}
	case "sleep", "attached", "stubborn":
		for {
			t, p, err := wire.ReadFrame(st, nil)
			if err != nil && ctx.Err() != nil {
				return exit, ctx.Err()
			}
			if err != nil || t == wire.FrameSignal && (cmd != "stubborn" || strings.Contains(string(p), "KILL")) {
				exit.Code = 143
				return exit, nil
			}
		}
	}
	return exit, nil
}

// full is a fake with the optional operations.
type full struct{ *fake }

func (f full) Mark(_ context.Context, _ string, q wire.MarkRequest) (wire.CommitResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marks++
	if q.Phase != "" && q.Phase != "begin" && q.Phase != "end" {
		return wire.CommitResult{}, fault.New(fault.Invalid, "unknown mark phase %q", q.Phase)
	}
	return wire.CommitResult{Node: tip.ID, Head: tip.ID}, nil
}

func (f full) Trial(ctx context.Context, _ string, q wire.TrialRequest) (wire.Trial, error) {
	if q.Cmd == "hold" {
		f.hold <- struct{}{}
		<-ctx.Done()
		close(f.kept)
		return wire.Trial{}, context.Cause(ctx)
	}
	return wire.Trial{Cmd: q.Cmd, Exit: 2, TimeMS: q.TimeoutMS, Tail: "no rule to make target"}, known(or(q.At, "HEAD"))
}

func (f full) TrialInside(ctx context.Context, name string, q wire.TrialRequest, by Peer) (wire.Trial, error) {
	switch q.Cmd {
	case "who":
		return wire.Trial{Tail: fmt.Sprint(by.User, by.UID != nil && *by.UID == uint32(os.Getuid()))}, nil
	case "full":
		return wire.Trial{}, fault.New(fault.NoSpace, "no space left").WithHint("make room on the file system of /home")
	}
	return f.Trial(ctx, name, q)
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func (f full) Tournament(
	ctx context.Context, _ string, q wire.TournamentRequest, _ func(wire.Progress),
) (wire.TournamentResult, error) {
	if q.Test == "forever" {
		<-ctx.Done()
		close(f.kept)
		return wire.TournamentResult{}, context.Cause(ctx)
	}
	return wire.TournamentResult{Base: root.ID, Winner: "one", WinnerNode: "cccccccccccc", Head: tip.ID,
		Branches: []wire.TournamentBranch{
			{Name: q.Candidates[0].Name, Cmd: q.Candidates[0].Cmd, Sandbox: "box-t0-1", Node: "cccccccccccc"}}}, nil
}
