//go:build linux

package tournament

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Exit codes of commands that did not exit on their own.
const (
	ExitTimeout = 124 // the command timed out
	ExitNotRun  = 125 // the command could not be run
)

// match is one candidate in its fork.
type match struct {
	t     *Tournaments
	base  timeline.SnapshotID // the snapshot that the fork started from
	fork  wire.Sandbox
	began time.Time
	limit time.Duration // for all commands together; 0: none
	told  []string      // output of the commands
	// untold is set if messages of this host are not part of told: they may name paths and forks.
	untold bool
}

// hold runs the candidate, then the test, and then the score if the test passed. It returns an error only if ctx
// ends: any other failure counts against the candidate.
func (m *match) hold(
	ctx context.Context, req wire.TournamentRequest, c wire.Candidate,
) (b wire.TournamentBranch, err error) {
	b = wire.TournamentBranch{Name: c.Name, Cmd: c.Cmd, Sandbox: m.fork.Name, ID: m.fork.ID, Node: string(m.base)}
	defer m.stopRest(ctx)
	x, _, err := m.run(ctx, c.Cmd, c.Cmd)
	if err != nil {
		return b, err
	}
	b.Exit, b.TestExit = x.Code, x.Code
	if x.Head != "" && x.Head != m.fork.Head { // m.fork.Head is the base
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
		told := m.told
		x, out, err := m.run(ctx, req.Score, "score: "+req.Score)
		if err != nil {
			return b, err
		}
		switch score, ok := number(out.Stdout()); {
		case ok && x.Code == 0:
			b.Score, wanting = &score, false
			m.told = told // the output of the score command is not reported
		case x.Code == 0:
			m.told = append(m.told, "invalid score: the last line must be a number")
		}
	}
	b.TimeMS = m.t.config.Now().Sub(m.began).Milliseconds()
	if b.Exit != 0 || b.TestExit != 0 || wanting {
		b.Tail = tail.Lines(strings.Join(m.told, "\n"))
	}
	if b.Paths, b.Bytes, err = m.countChanges(ctx, timeline.SnapshotID(b.Node)); err != nil && ctx.Err() == nil {
		m.t.config.Log.Warn("could not count the changes of a candidate", "sandbox", m.fork.Name, "err", err)
		err = nil
	}
	return b, err
}

// run runs one shell command in the remaining time. A command that cannot be run exits with ExitNotRun.
func (m *match) run(ctx context.Context, cmd, label string) (wire.Exit, *tail.Client, error) {
	// One snapshot each: what a candidate has half done is of no use.
	req, out := wire.ExecRequest{Cmd: Shell(cmd), Label: label, Capture: wire.Capture{Off: true}}, &tail.Client{}
	x := wire.Exit{Code: ExitTimeout, TimedOut: true}
	left := m.limit - m.t.config.Now().Sub(m.began)
	var err error
	if m.limit == 0 || left > 0 {
		left, err = m.rekey(ctx, left)
	}
	if m.limit == 0 || left > 0 {
		if m.limit > 0 {
			req.TimeoutMS = max(1, left.Milliseconds())
		}
		if err == nil {
			x, err = m.t.config.Operations.Exec(ctx, m.fork.ID, req, out)
		} else {
			x = wire.Exit{}
		}
		if ctx.Err() != nil {
			return x, out, context.Cause(ctx)
		}
		if err != nil {
			x.Message = m.failure(err)
		}
		if x.Head == "" { // the command was not captured
			x.Code = ExitNotRun
		}
	}
	if x.TimedOut && x.Limit == "" {
		x.Message = fmt.Sprintf("timed out after %s", m.limit)
	}
	if m.untold && x.Limit != "" {
		x.Message = "the command reached the limit of the sandbox: " + x.Limit
	} else if m.untold && !x.TimedOut && x.Code != ExitNotRun {
		x.Message = ""
	}
	for _, s := range []string{strings.TrimRight(out.All(), "\n"), x.Message} {
		if s != "" {
			m.told = append(m.told, s)
		}
	}
	return x, out, nil
}

// rekey gives the fork its own identity before the first command, which programs of the sandbox may do. It returns what
// they leave of the time for the commands.
func (m *match) rekey(ctx context.Context, left time.Duration) (time.Duration, error) {
	if m.limit == 0 {
		return left, m.t.config.Operations.Rekey(ctx, m.fork.ID)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err := m.t.config.Operations.Rekey(ctx, m.fork.ID)
	return left - time.Since(began), err
}

// failure returns the text about a command that could not be run, or whose changes could not be captured.
func (m *match) failure(err error) string {
	if m.untold {
		m.t.config.Log.Warn("the command of a trial could not be run", "sandbox", m.fork.Name, "err", err)
		return "the command could not be run: internal error; see the daemon's log"
	}
	text := err.Error()
	if hint := fault.HintOf(err); hint != "" {
		text += "\nhint: " + hint
	}
	return text
}

// stopRest stops processes that the candidate left running: only its files are kept.
func (m *match) stopRest(ctx context.Context) {
	if err := m.t.config.Operations.Halt(ctx, m.fork.ID); err != nil && ctx.Err() == nil {
		m.t.config.Log.Warn("could not stop a candidate", "sandbox", m.fork.Name, "err", err)
	}
}

// countChanges counts the changes from the base to a snapshot.
func (m *match) countChanges(ctx context.Context, node timeline.SnapshotID) (paths int, bytes int64, err error) {
	if node == m.base {
		return 0, 0, nil
	}
	return m.t.config.Operations.Weigh(ctx, m.fork.ID, m.base, node)
}

// Shell returns the command line to run a shell command: with bash, or with sh if bash is missing.
func Shell(cmd string) []string {
	return []string{"/bin/sh", "-c", `command -v bash >/dev/null 2>&1 && exec bash -lc -- "$1"; exec sh -lc -- "$1"`,
		"sh", cmd}
}

// number parses the last non-empty line of text.
func number(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	x, err := strconv.ParseFloat(strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]), 64)
	return x, err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
}
