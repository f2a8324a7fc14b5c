package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// attempt is the data of one compared sandbox.
type attempt struct {
	wire.LedgerSummary
	Rank int         `json:"rank"`           // 1 is the best
	Git  *attemptGit `json:"git,omitempty"`  // if it works on a repository
	Test *wire.Trial `json:"test,omitempty"` // if a test was requested
}

// attemptGit is the changes of a sandbox in its repository.
type attemptGit struct {
	Base    string          `json:"base"`
	Work    string          `json:"work"` // commit of all its files
	Commits int             `json:"commits"`
	Files   int             `json:"files"`
	Added   int             `json:"added"`   // lines
	Deleted int             `json:"deleted"` // lines
	Marks   int             `json:"marks"`   // files that a host may run or trust
	Shares  []attemptShared `json:"shares,omitempty"`

	touched map[string]bool
}

// attemptShared is another sandbox that changed the same files.
type attemptShared struct {
	With  string   `json:"with"`
	Files int      `json:"files"`
	Paths []string `json:"paths"` // at most maxShared of them, quoted as git does
}

// maxShared is the maximum number of listed files that two sandboxes both changed.
const maxShared = 20

// attempts gathers the data of all compared sandboxes.
func attempts(ctx context.Context, c *client.Client, names []string) ([]attempt, error) {
	all := make([]attempt, len(names))
	for i, name := range names {
		var err error
		if all[i].LedgerSummary, err = c.LedgerSummary(ctx, name); err != nil {
			return nil, err
		}
		if all[i].Removed {
			continue
		}
		st, err := c.Status(ctx, name)
		if err != nil {
			return nil, err
		}
		if st.Sandbox.Repo == nil {
			continue
		}
		d, err := c.GitDiff(ctx, name, wire.GitDiffRequest{Stat: true})
		if err != nil {
			return nil, err
		}
		all[i].Git = did(d)
	}
	for i := range all {
		for k := range i {
			share(&all[k], &all[i])
		}
	}
	return all, nil
}

// did sums up the differences of a sandbox in its repository.
func did(d wire.GitDiff) *attemptGit {
	g := &attemptGit{Base: d.Repo.Base, Work: d.Work, Commits: d.Commits, Files: len(d.Changes),
		touched: map[string]bool{}}
	for _, c := range d.Changes {
		g.Added, g.Deleted = g.Added+c.Added, g.Deleted+c.Deleted
		g.touched[c.Name()] = true
		if c.Old != "" {
			g.touched[c.OldName()] = true
		}
	}
	marked := map[string]bool{}
	for _, m := range d.Marks {
		marked[m.Name()] = true
	}
	g.Marks = len(marked)
	return g
}

// share adds to two attempts the files that both changed.
func share(a, b *attempt) {
	if a.Git == nil || b.Git == nil {
		return
	}
	var both []string
	for p := range a.Git.touched {
		if b.Git.touched[p] {
			both = append(both, tty.Quote(p))
		}
	}
	if len(both) == 0 {
		return
	}
	slices.Sort(both)
	s := attemptShared{Files: len(both), Paths: both[:min(len(both), maxShared)]}
	for _, of := range [][2]*attempt{{a, b}, {b, a}} {
		s.With = nameOf(&of[1].LedgerSummary)
		of[0].Git.Shares = append(of[0].Git.Shares, s)
	}
}

// try runs a test in a fork of each sandbox. The daemon limits how many run at once.
func try(ctx context.Context, c *client.Client, all []attempt, req wire.TrialRequest) error {
	g, within := errgroup.WithContext(ctx)
	for i := range all {
		if all[i].Removed {
			continue
		}
		g.Go(func() error {
			res, err := c.Trial(within, all[i].Sandbox, req)
			all[i].Test = &res
			return err
		})
	}
	return g.Wait()
}

// gitRows adds the rows about repositories and tests that have a value for any sandbox.
func gitRows(t *tty.Table, all []attempt) {
	row := func(what string, cell func(*attempt) string) {
		line, any := []string{what}, false
		for i := range all {
			s := cell(&all[i])
			any = any || s != ""
			line = append(line, tty.Clean(orNone(s)))
		}
		if any {
			t.Row(line...)
		}
	}
	of := func(cell func(*attemptGit) string) func(*attempt) string {
		return func(a *attempt) string {
			if a.Git == nil {
				return ""
			}
			return cell(a.Git)
		}
	}
	row("base", of(func(g *attemptGit) string { return short(g.Base) }))
	row("commits", of(func(g *attemptGit) string { return fmt.Sprint(g.Commits) }))
	row("files", of(func(g *attemptGit) string { return fmt.Sprint(g.Files) }))
	row("lines", of(func(g *attemptGit) string { return fmt.Sprintf("+%d -%d", g.Added, g.Deleted) }))
	row("marked", of(func(g *attemptGit) string { return fmt.Sprint(g.Marks) }))
	row("test", func(a *attempt) string {
		if a.Test == nil {
			return ""
		}
		return tested(a.Test)
	})
}

// tested describes the result of a test.
func tested(t *wire.Trial) string {
	took := " after " + (time.Duration(t.TimeMS) * time.Millisecond).String()
	switch {
	case t.TimedOut:
		return "timeout" + took
	case t.Exit == 0:
		return "passed" + took
	}
	return fmt.Sprintf("code %d%s", t.Exit, took)
}

// shared lists pairs of sandboxes that changed the same files.
func shared(w io.Writer, all []attempt) error {
	for i := range all {
		if all[i].Git == nil {
			continue
		}
		for _, s := range all[i].Git.Shares {
			if !slices.ContainsFunc(all[i+1:], func(o attempt) bool { return nameOf(&o.LedgerSummary) == s.With }) {
				continue // listed with the other one
			}
			more := ""
			if n := s.Files - len(s.Paths); n > 0 {
				more = fmt.Sprintf(" and %d more", n)
			}
			if _, err := fmt.Fprintf(w, "%s and %s both changed %s%s\n", tty.Clean(nameOf(&all[i].LedgerSummary)),
				tty.Clean(s.With), strings.Join(s.Paths, ", "), more); err != nil {
				return err
			}
		}
	}
	return nil
}

// diffs shows the patches, each below the name of its sandbox.
func (a *app) diffs(ctx context.Context, c *client.Client, all []attempt) error {
	for i := range all {
		if all[i].Git == nil {
			continue
		}
		if _, err := fmt.Fprintf(a.out, "\n%s\n", a.palette().Bold(tty.Clean(nameOf(&all[i].LedgerSummary)))); err != nil {
			return err
		}
		w := &lines{w: a.out, p: a.palette()}
		if err := c.GitPatch(ctx, all[i].Sandbox, wire.GitDiffRequest{Work: all[i].Git.Work}, w); err != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
	return nil
}
