package mcpapi

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

type candidateIn struct {
	Name string `json:"name,omitempty" jsonschema:"name; default: its number"`
	Cmd  string `json:"cmd" jsonschema:"the candidate: a shell command"`
}

type tournamentIn struct {
	at
	Base       string        `json:"base,omitempty" jsonschema:"the snapshot that all start from; default: the current state, which is captured first"`
	Test       string        `json:"test" jsonschema:"a shell command that runs after each candidate, in its fork: exit code 0 passes"`
	Candidates []candidateIn `json:"candidates" jsonschema:"the commands that compete"`
	Score      string        `json:"score,omitempty" jsonschema:"a shell command whose last line of output is a number: of those that pass, the highest wins; default: the first that passes"`
	Jobs       int           `json:"jobs,omitempty" jsonschema:"number of candidates at once; default: by cores and memory"`
	TimeoutMS  int64         `json:"timeout_ms,omitempty" jsonschema:"timeout in milliseconds of each candidate with its test and score; default: no limit"`
	Keep       bool          `json:"keep,omitempty" jsonschema:"rewind the sandbox to the winner's snapshot"`
}

type branchOut struct {
	Name     string   `json:"name" jsonschema:"the candidate's name"`
	Cmd      string   `json:"cmd" jsonschema:"its command"`
	Sandbox  string   `json:"sandbox" jsonschema:"its fork, which remains for inspection"`
	Node     string   `json:"node" jsonschema:"the snapshot after the candidate and before the test"`
	Exit     int      `json:"exit" jsonschema:"exit code of the candidate"`
	TestExit int      `json:"test_exit" jsonschema:"exit code of the test"`
	Score    *float64 `json:"score,omitempty" jsonschema:"its score, if any"`
	TimeMS   int64    `json:"time_ms" jsonschema:"duration in milliseconds"`
	Paths    int      `json:"paths" jsonschema:"how many paths it changed"`
	Tail     string   `json:"tail,omitempty" jsonschema:"the end of its output, if something failed"`
}

type tournamentOut struct {
	Base       string      `json:"base" jsonschema:"the snapshot that all started from"`
	Branches   []branchOut `json:"branches" jsonschema:"the results of the candidates, in order"`
	Winner     string      `json:"winner" jsonschema:"name of the winner; empty if none passed the test"`
	WinnerNode string      `json:"winner_node" jsonschema:"the winner's snapshot, for checkout"`
	Head       string      `json:"head" jsonschema:"the snapshot that the sandbox is at"`
}

func (s *server) addTournament(m *mcp.Server) {
	add(s, m, tool{name: "tournament", title: "Run a tournament", destroys: true, open: true,
		about: "Run several commands at the same time, each in a fork of the sandbox, then a test in each, and choose the " +
			"one that passes. The winner becomes a branch of the sandbox's history; the sandbox itself changes only with keep."},
		tournament)
}

func tournament(ctx context.Context, c *call, in tournamentIn) (tournamentOut, string, error) {
	req := wire.TournamentRequest{Base: in.Base, Test: in.Test, Score: in.Score, Jobs: in.Jobs,
		TimeoutMS: in.TimeoutMS, Keep: in.Keep}
	for _, k := range in.Candidates {
		req.Candidates = append(req.Candidates, wire.Candidate(k))
	}
	switch {
	case len(req.Candidates) == 0:
		return tournamentOut{}, "", fault.New(fault.Invalid, "a tournament requires candidates").
			WithHint(`send them as "candidates": [{"name": "a", "cmd": "make"}]`)
	case req.Test == "":
		return tournamentOut{}, "", fault.New(fault.Invalid, "a tournament requires a test").
			WithHint(`send the test command as "test"`)
	}
	ended := 0
	res, err := c.client.Tournament(ctx, c.sandbox, req, func(p wire.Progress) {
		if p.Branch != nil {
			ended++
			c.beat.say("%d of %d: %s", ended, len(req.Candidates), branchLine(*p.Branch))
		}
	})
	if err != nil {
		return tournamentOut{}, "", err
	}
	out, text := standings(res)
	return out, text, nil
}

func standings(res wire.TournamentResult) (tournamentOut, string) {
	out := tournamentOut{Base: res.Base, Branches: []branchOut{}, Winner: shorten(res.Winner, 1<<10),
		WinnerNode: res.WinnerNode, Head: res.Head}
	text := "no candidate passed the test"
	if res.Winner != "" {
		text = fmt.Sprintf("the winner is %s: snapshot %s", line(res.Winner), res.WinnerNode)
	}
	text += fmt.Sprintf("\nall started from %s; HEAD is %s", res.Base, res.Head)
	for _, b := range res.Branches {
		k := branchOut{Name: shorten(b.Name, 1<<10), Cmd: shorten(b.Cmd, 4<<10), Sandbox: b.Sandbox, Node: b.Node,
			Exit: b.Exit, TestExit: b.TestExit, Score: b.Score, TimeMS: b.TimeMS, Paths: b.Paths}
		text += "\n" + branchLine(b)
		if b.Tail != "" {
			k.Tail, _ = lastVisible(b.Tail, maxTail)
			text += "\n--- end of its output\n" + k.Tail + "\n---"
		}
		out.Branches = append(out.Branches, k)
	}
	return out, text
}

// maxTail is the maximum size of a failed candidate's output, in bytes.
const maxTail = 2 << 10

func branchLine(b wire.TournamentBranch) string {
	text := fmt.Sprintf("%s: exit %d, test exit %d", line(b.Name), b.Exit, b.TestExit)
	if b.Score != nil {
		text += fmt.Sprintf(", score %g", *b.Score)
	}
	return text +
		fmt.Sprintf(", %.1f s, %s changed, snapshot %s, in sandbox %s", float64(b.TimeMS)/1000, tty.Count(b.Paths, "path"),
			b.Node, b.Sandbox)
}
