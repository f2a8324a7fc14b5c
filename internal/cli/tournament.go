package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

const tournamentCodes = `  0    a candidate won
  1    no candidate passed the test
  125  coppice failed, or the command line is wrong`

func (a *app) tournament() *cobra.Command {
	var given tournamentFlags
	cmd := &cobra.Command{
		Use:     "tournament NAME --test CMD [flags] -- CANDIDATE...",
		Short:   "Run candidates in forks and pick one that passes a test",
		GroupID: groupRun,
		Long: `Run candidates in parallel, each in a fork of the sandbox, then the test in each
fork. The first candidate in the given order whose test exits with 0 wins; with
--score, the one with the highest number on the last line of the score command's
output (the first one on a tie).

Candidates, test and score are shell commands; a candidate's own exit code does
not matter. The winner's snapshot, taken before the test, becomes a branch of
the history; with --keep, the sandbox is rewound to it. Forks can be inspected
until "coppice system gc". Ctrl-C removes them. See docs/guides/agents.md.

A --file is YAML with the keys base, test, score, jobs, timeout (flags override
them) and candidates, a list of name and cmd, as in [{name: a, cmd: agent a}].`,
		Example: `  coppice tournament box --test 'make test' -- 'patch <a.diff' 'patch <b.diff'
  coppice tournament box --file candidates.yaml --score 'wc -c <out' --keep`,
		Annotations:       map[string]string{exits: tournamentCodes, ownCodes: "yes"},
		ValidArgsFunction: a.names(1),
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case len(args) == 0 || dash == 0:
				return usagef("tournament requires the name of a sandbox")
			case dash > 1 || dash < 0 && len(args) > 1:
				return &usageError{
					msg:  fmt.Sprintf("tournament takes one name: %q", args[1]),
					hint: `put "--" before the candidates, each of which is one argument`,
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := a.tournamentRequest(cmd, &given, args[1:])
			if err != nil {
				return err
			}
			return a.contest(cmd.Context(), args[0], req)
		},
	}
	given.add(a, cmd)
	return cmd
}

// tournamentFlags has the flags of tournament.
type tournamentFlags struct {
	req     wire.TournamentRequest
	timeout time.Duration // of each candidate; 0 means none
	file    string        // file with candidates; "" means none, and "-" stdin
	more    wanting
}

// add adds the flags to the command.
func (t *tournamentFlags) add(a *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&t.req.Base, "base", "", "start from snapshot `REF` (default: the current state)")
	must(cmd.RegisterFlagCompletionFunc("base", a.refOf))
	f.StringVar(&t.req.Test, "test", "", "test `CMD`; passes with exit code 0")
	f.StringVar(&t.req.Score, "score", "", "score `CMD`, which prints a number; higher is better")
	f.IntVarP(&t.req.Jobs, "jobs", "j", 0, "run `N` candidates in parallel (default: by cores and memory)")
	f.DurationVar(&t.timeout, "timeout", 0, "timeout of each candidate with its test and score, `TIME` as in 90s or 5m")
	f.BoolVar(&t.req.Keep, "keep", false, "rewind the sandbox to the winner's snapshot")
	f.StringVar(&t.file, "file", "", "read candidates from `FILE`; - is stdin")
	t.more.flags(cmd)
}

// tournamentRequest returns the tournament that flags, file and arguments describe. candidates are the arguments
// after the name of the sandbox.
func (a *app) tournamentRequest(
	cmd *cobra.Command, given *tournamentFlags, candidates []string,
) (req wire.TournamentRequest, err error) {
	req = given.req
	for _, c := range candidates {
		req.Candidates = append(req.Candidates, wire.Candidate{Cmd: c})
	}
	timeout := given.timeout
	if timeout < 0 || cmd.Flags().Changed("timeout") && timeout < time.Millisecond {
		return req, usagef("invalid --timeout %s: must be at least 1ms", timeout)
	}
	if req.Jobs < 0 {
		return req, usagef("invalid --jobs %d: must be at least 1, or 0 for automatic", req.Jobs)
	}
	if given.file != "" {
		if err := a.fromFile(given.file, &req, &timeout); err != nil {
			return req, err
		}
	}
	req.TimeoutMS = timeout.Milliseconds()
	const example = "as in: coppice tournament NAME --test 'make test' -- CMD1 CMD2"
	switch {
	case len(req.Candidates) == 0:
		return req, &usageError{msg: "tournament requires candidates", hint: example}
	case req.Test == "":
		return req, &usageError{msg: "tournament requires a test", hint: example}
	}
	req.Policy, err = given.more.said()
	return req, err
}

// fromFile fills in the values that the command line does not give.
func (a *app) fromFile(name string, req *wire.TournamentRequest, timeout *time.Duration) error {
	if len(req.Candidates) > 0 {
		return usagef("candidates are given both in --file and after \"--\"")
	}
	in := a.stdin
	if name == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return fault.Wrap(err, "read the candidates")
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxCandidatesFile+1))
	if err != nil {
		return fault.Wrap(err, "read the candidates from %s", name)
	}
	f, err := parseCandidates(name, text)
	if err != nil {
		return err
	}
	req.Candidates = f.Candidates
	for to, v := range map[*string]string{&req.Base: f.Base, &req.Test: f.Test, &req.Score: f.Score} {
		if *to == "" {
			*to = v
		}
	}
	if req.Jobs == 0 {
		req.Jobs = f.Jobs
	}
	if *timeout == 0 {
		*timeout = f.Timeout
	}
	return nil
}

// contest runs a tournament, and shows its progress and result.
func (a *app) contest(ctx context.Context, name string, req wire.TournamentRequest) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	res, err := a.watching(func(ended func(wire.Progress)) (wire.TournamentResult, error) {
		return c.Tournament(ctx, name, req, ended)
	})
	if err != nil && ctx.Err() != nil {
		return fault.New(fault.Cancelled,
			"interrupted: stopped all candidates and removed the forks; sandbox %s is unchanged", name)
	}
	if err != nil {
		return err
	}
	if err := a.print(res, func(w io.Writer) error { return a.standings(w, res, req.Score != "") }); err != nil {
		return err
	}
	if res.Winner == "" {
		a.note("no candidate passed the test")
		return &exitCode{code: exitError}
	}
	a.note("the winner is %s: snapshot %s", tty.Quote(res.Winner), tty.Clean(res.WinnerNode))
	if !req.Keep {
		a.note("to rewind to it: coppice rewind %s %s", tty.Clean(name), tty.Clean(res.WinnerNode))
	}
	return nil
}
