//go:build linux

package engine

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Exit codes of what did not come to an end of its own.
const (
	exitTimeout = 124
	exitNotRun  = 125
)

// match is one candidate in its fork.
type match struct {
	e     *Engine
	base  timeline.SnapshotID // what the fork began at
	fork  wire.Sandbox
	began time.Time
	limit time.Duration // for everything; 0: none
	told  []string      // what the commands printed
}

// hold runs the candidate, then the test, and then the score when the test passed.
// Only the end of ctx is an error: whatever else goes wrong is the candidate's.
func (m *match) hold(
	ctx context.Context, req wire.TournamentRequest, c wire.Candidate,
) (b wire.TournamentBranch, err error) {
	b = wire.TournamentBranch{Name: c.Name, Cmd: c.Cmd, Sandbox: m.fork.Name, ID: m.fork.ID, Node: string(m.base)}
	defer m.halt(ctx)
	x, _, err := m.run(ctx, c.Cmd, c.Cmd)
	if err != nil {
		return b, err
	}
	b.Exit, b.TestExit = x.Code, x.Code
	if x.Head != "" && x.Head != m.fork.Head { // which equals the base
		b.Node = x.Head
	}
	if x.Head != "" && !x.TimedOut {
		if x, _, err = m.run(ctx, req.Test, "test: "+req.Test); err != nil {
			return b, err
		}
		b.TestExit = x.Code
	}
	wanting := req.Score != ""
	if b.TestExit == 0 && wanting {
		x, out, err := m.run(ctx, req.Score, "score: "+req.Score)
		if err != nil {
			return b, err
		}
		switch score, ok := number(string(out.stdout)); {
		case ok && x.Code == 0:
			b.Score, wanting = &score, false
		case x.Code == 0:
			m.told = append(m.told, "the score's last line is no number")
		}
	}
	b.TimeMS = m.e.Now().Sub(m.began).Milliseconds()
	if b.Exit != 0 || b.TestExit != 0 || wanting {
		b.Tail = end(strings.Join(m.told, "\n"))
	}
	if b.Paths, b.Bytes, err = m.weigh(ctx, timeline.SnapshotID(b.Node)); err != nil && ctx.Err() == nil {
		m.e.Logger.Warn("a candidate's changes are not counted", "sandbox", m.fork.Name, "err", err)
		err = nil
	}
	return b, err
}

// run runs one shell command in what is left of the time. One that cannot be run
// ends with exitNotRun.
func (m *match) run(ctx context.Context, cmd, label string) (wire.Exit, *audience, error) {
	req, out := wire.ExecRequest{Cmd: inShell(cmd), Label: label}, &audience{}
	x := wire.Exit{Code: exitTimeout, TimedOut: true}
	left := m.limit - m.e.Now().Sub(m.began)
	if m.limit > 0 {
		req.TimeoutMS = max(1, left.Milliseconds())
	}
	if m.limit == 0 || left > 0 {
		var err error
		if x, err = m.e.Exec(ctx, m.fork.ID, req, out); ctx.Err() != nil {
			return x, out, context.Cause(ctx)
		}
		if err != nil {
			x.Message = err.Error()
			if hint := fault.HintOf(err); hint != "" {
				x.Message += "\nhint: " + hint
			}
		}
		if x.Head == "" { // nothing of it is in the history
			x.Code = exitNotRun
		}
	}
	if x.TimedOut && x.Limit == "" {
		x.Message = fmt.Sprintf("the time of %s is over", m.limit)
	}
	for _, s := range []string{strings.TrimRight(string(out.all), "\n"), x.Message} {
		if s != "" {
			m.told = append(m.told, s)
		}
	}
	return x, out, nil
}

// halt ends what the candidate left running: its files are what stays.
func (m *match) halt(ctx context.Context) {
	s, _, err := m.e.acquire(ctx, m.fork.ID, "ending a candidate")
	if err != nil {
		return // removed; or all of them are about to be
	}
	defer s.unlock(m.e)
	if err := m.e.stopBox(ctx, s, 0); err != nil && ctx.Err() == nil {
		m.e.Logger.Warn("a candidate goes on", "sandbox", m.fork.Name, "err", err)
	}
}

// weigh counts what was changed from the beginning to a snapshot.
func (m *match) weigh(ctx context.Context, node timeline.SnapshotID) (paths int, bytes int64, err error) {
	if node == m.base {
		return 0, 0, nil
	}
	rec, err := m.e.DB.Sandbox(ctx, m.fork.ID)
	if err != nil {
		return 0, 0, err
	}
	va, vb, touched, err := m.e.views(ctx, &rec, m.base, side{at: node})
	if err != nil {
		return 0, 0, err
	}
	roots, err := m.e.partRoots(ctx, &rec)
	if err != nil {
		return 0, 0, err
	}
	all := layer.DiffOptions{Most: math.MaxInt, Bytes: limit.PatchBytes}
	err = layer.EachChange(ctx, va, vb, touched, all, func(c *layer.Change) error {
		if c.Kind == layer.Modified && roots[c.Path] {
			return nil
		}
		paths++
		if c.Kind != layer.Removed && c.Type == "file" {
			bytes += c.Size
		}
		return nil
	})
	return paths, bytes, err
}

// inShell is the command line that has a shell run a command: bash, or sh where
// there is no bash.
func inShell(cmd string) []string {
	return []string{"/bin/sh", "-c", `command -v bash >/dev/null 2>&1 && exec bash -lc -- "$1"; exec sh -lc -- "$1"`,
		"sh", cmd}
}
