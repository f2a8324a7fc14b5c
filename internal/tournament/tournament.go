//go:build linux

package tournament

import (
	"context"
	"encoding/hex"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/undo"
)

// MaxCandidates is the maximum number of candidates of a tournament.
const MaxCandidates = 1000

// Tournament runs every candidate in its own fork, then the test, and selects the winner, whose snapshot becomes a
// branch of the sandbox's history. The forks are kept, marked, until gc. If ctx ends before there is a winner,
// running commands are killed and the forks are removed; the sandbox is unchanged.
func (t *Tournaments) Tournament(
	ctx context.Context, name string, req wire.TournamentRequest, progress func(wire.Progress),
) (res wire.TournamentResult, err error) {
	if req.Candidates, err = entrants(req); err != nil {
		return res, err
	}
	rec, err := t.config.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	tag, forks, at, err := t.makeForks(ctx, &rec, req, Purpose{})
	if err != nil {
		return res, err
	}
	defer t.finish(tag)
	var cleanup undo.Stack
	defer cleanup.Run(&err)
	cleanup.Push(func() error { return t.scratch(context.WithoutCancel(ctx), forks) })

	res.Base = string(at)
	if res.Branches, err = t.runAll(ctx, &rec, req, at, forks, progress); err != nil {
		return res, err
	}
	win := decide(res.Branches, req.Score != "")
	if win >= 0 {
		res.Winner, res.WinnerNode = res.Branches[win].Name, res.Branches[win].Node
	}
	drafts := t.config.Book.Drafts(ctx, &rec, t.record(res))
	err = t.config.Book.Do(ctx, drafts, func(ctx context.Context) error {
		if win < 0 || res.WinnerNode == res.Base {
			return nil
		}
		err := t.config.DB.TakeOver(ctx, rec.ID, timeline.SnapshotID(res.WinnerNode))
		return fault.Wrap(err, "import the winner's snapshot")
	})
	if err != nil {
		return res, err
	}
	cleanup.Release() // the tournament is complete
	t.keep(ctx, forks)
	ev := events.About(&rec, wire.EventTournament)
	ev.Snapshot, ev.Message, ev.Detail = res.WinnerNode, res.Winner, tag
	t.config.Feed.Emit(ev)
	if win >= 0 && req.Keep {
		if err := t.config.Operations.Checkout(ctx, rec.ID, res.WinnerNode); err != nil {
			return res, fault.Wrap(err, "candidate %q won with snapshot %s, but sandbox %s could not be rewound to it",
				res.Winner, res.WinnerNode, rec.Name)
		}
	}
	res.Head, err = t.config.Operations.Head(ctx, rec.ID)
	return res, err
}

// entrants checks a request and names the candidates that have no name.
func entrants(req wire.TournamentRequest) ([]wire.Candidate, error) {
	const how = `for example: coppice tournament NAME --test "make test" -- CMD1 CMD2`
	n := len(req.Candidates)
	switch {
	case n == 0:
		return nil, fault.New(fault.Invalid, "a tournament requires candidates").WithHint(how)
	case n > MaxCandidates:
		return nil, fault.New(fault.Invalid, "too many candidates: %d; the limit is %d", n, MaxCandidates).
			WithHint("run several tournaments")
	case strings.TrimSpace(req.Test) == "":
		return nil, fault.New(fault.Invalid, "a tournament requires a test").WithHint(how)
	case req.Jobs < 0:
		return nil, fault.New(fault.Invalid, "invalid number of candidates at once %d: must be positive", req.Jobs).
			WithHint("use a number of 1 or more, or omit it")
	case !limit.InLife(req.TimeoutMS):
		return nil, fault.New(fault.Invalid, "invalid timeout %d ms: must be from 0 to 100 years", req.TimeoutMS).
			WithHint("use a number of milliseconds, or 0 for none")
	case strings.ContainsRune(req.Test+req.Score, 0):
		return nil, fault.New(fault.Invalid, "invalid command: must not contain a NUL byte").
			WithHint("remove the NUL byte")
	}
	out := make([]wire.Candidate, n)
	seen := make(map[string]bool, n)
	for i, c := range req.Candidates {
		if c.Name == "" {
			c.Name = strconv.Itoa(i + 1)
		}
		switch {
		case strings.TrimSpace(c.Cmd) == "":
			return nil, fault.New(fault.Invalid, "candidate %q requires a command", c.Name).WithHint(how)
		case strings.ContainsRune(c.Cmd, 0):
			return nil, fault.New(fault.Invalid, "invalid command of candidate %q: must not contain a NUL byte", c.Name).
				WithHint("remove the NUL byte")
		case seen[c.Name]:
			return nil, fault.New(fault.Invalid, "duplicate candidate name %q", c.Name).WithHint("give each candidate a " +
				"different name")
		}
		seen[c.Name] = true
		out[i] = c
	}
	return out, nil
}

// keep clears the marks of the forks of a complete tournament.
func (t *Tournaments) keep(ctx context.Context, forks []wire.Sandbox) {
	for _, f := range forks {
		err := t.config.Operations.Keep(context.WithoutCancel(ctx), timeline.SandboxID(f.ID))
		if err != nil && !fault.Is(err, fault.NotFound) {
			t.config.Log.Warn("the fork of a tournament will be removed when the daemon is started again", "sandbox", f.Name,
				"err", err)
		}
	}
}

// makeForks creates the forks of a new tournament or trial, called box-t3f2a-1 and so on. gc ignores them until the
// caller calls finish.
func (t *Tournaments) makeForks(
	ctx context.Context, rec *meta.Sandbox, req wire.TournamentRequest, p Purpose,
) (tag string, forks []wire.Sandbox, at timeline.SnapshotID, err error) {
	n := len(req.Candidates)
	room := timeline.MaxName - len("-t3f2a-"+strconv.Itoa(n))
	for tries := 0; ; tries++ {
		var random [2]byte
		if _, err := io.ReadFull(t.config.Rand, random[:]); err != nil {
			return "", nil, "", fault.Wrap(err, "choose a name")
		}
		tag = rec.Name[:min(len(rec.Name), room)] + "-t" + hex.EncodeToString(random[:])
		if !t.begin(tag) {
			continue
		}
		p.Tag = tag
		f := wire.ForkRequest{At: req.Base, N: n, Policy: req.Policy}
		for i := range n {
			f.Names = append(f.Names, tag+"-"+strconv.Itoa(i+1))
		}
		res, at, err := t.config.Operations.Fork(ctx, rec.ID, f, p)
		if err == nil {
			return tag, res.Sandboxes, at, nil
		}
		t.finish(tag)
		if !fault.Is(err, fault.Exists) || tries > 100 {
			return "", nil, "", err
		}
	}
}

// scratch removes the forks of an unfinished tournament.
func (t *Tournaments) scratch(ctx context.Context, forks []wire.Sandbox) error {
	var g errgroup.Group
	g.SetLimit(limit.Removals)
	for _, f := range forks {
		g.Go(func() error {
			if err := t.config.Operations.Remove(ctx, f.ID); err != nil && !fault.Is(err, fault.NotFound) {
				t.config.Log.Warn("could not remove a fork; gc will remove it", "sandbox", f.Name, "err", err)
			}
			return nil
		})
	}
	return g.Wait()
}

// runAll runs all candidates, with limited concurrency. forks[i] started from snapshot at, and belongs to
// req.Candidates[i].
func (t *Tournaments) runAll(
	ctx context.Context, rec *meta.Sandbox, req wire.TournamentRequest, at timeline.SnapshotID, forks []wire.Sandbox,
	progress func(wire.Progress),
) ([]wire.TournamentBranch, error) {
	need := rec.Limits.Memory
	if need <= 0 {
		need = roomForOne
	}
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(jobs(req.Jobs, len(forks), runtime.NumCPU(), memAvailable(), need))
	branches := make([]wire.TournamentBranch, len(forks))
	var mu sync.Mutex // serializes progress lines
	done := 0
	tell := func(b *wire.TournamentBranch) {
		mu.Lock()
		defer mu.Unlock()
		if b != nil {
			done++
		}
		progress(wire.Progress{Phase: "tournament", Unit: "candidates", Done: int64(done),
			Total: int64(len(forks)), Branch: b})
	}
	tell(nil)
	for i, f := range forks {
		g.Go(func() (err error) {
			if err := within.Err(); err != nil {
				return err // another candidate failed while this one waited
			}
			m := match{t: t, base: at, fork: f, began: t.config.Now(), limit: time.Duration(req.TimeoutMS) * time.Millisecond}
			branches[i], err = m.hold(within, req, req.Candidates[i])
			if err == nil {
				b := branches[i]
				tell(&b)
			}
			return err
		})
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return nil, fault.New(fault.Cancelled, "the tournament of sandbox %s was interrupted; its forks were removed",
			rec.Name).Because(context.Cause(ctx))
	}
	return branches, err
}

// decide returns the index of the winner, or -1: the first that passed its test, or with scored the one of these with
// the best score.
func decide(branches []wire.TournamentBranch, scored bool) int {
	win := -1
	for i, b := range branches {
		switch {
		case b.TestExit != 0 || scored && b.Score == nil:
		case win < 0, scored && *b.Score > *branches[win].Score:
			win = i
		}
	}
	return win
}
