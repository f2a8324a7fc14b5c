package proposal

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/visible"
)

// Maximum numbers of items in a report. Further ones are counted, and are in proposal.json.
const (
	shownChanges   = 200
	shownMarks     = 1000
	shownSkipped   = 50
	shownCommands  = 100
	shownRefused   = 100
	shownSnapshots = 50
	shownEnforced  = 100
)

// Report returns a report of a proposal for a reviewer, in Markdown, with the text of its policy.
func Report(p *Proposal, policy string) []byte {
	r := &report{}
	r.head(p)
	r.marks(p)
	r.changes(p)
	r.tests(p)
	r.commands(p)
	r.refused(p)
	r.confined(p, policy)
	r.history(p)
	r.hand(p)
	return []byte(r.String())
}

// Summary returns the beginning of a report: its subject, and what to review first.
func Summary(p *Proposal) string {
	r := &report{}
	r.head(p)
	r.marks(p)
	r.tests(p)
	return strings.TrimRight(r.String(), "\n") + "\n"
}

type report struct{ strings.Builder }

func (r *report) line(format string, args ...any) { fmt.Fprintf(r, format+"\n", args...) }

// list writes at most shown items of a list, and the number of the remaining ones.
func list[T any](r *report, all []T, total, shown int, line func(T) string) {
	for i, it := range all {
		if i == shown {
			break
		}
		r.line("- %s", line(it))
	}
	if more := max(total, len(all)) - min(len(all), shown); more > 0 {
		r.line("- and %d more, in %s", more, FileProposal)
	}
}

func (r *report) head(p *Proposal) {
	r.line("# Proposal: %s", code(orElse(p.Title, p.Name)))
	r.line("")
	r.line("- sandbox %s (%s), proposed %s", code(p.Name), code(p.Sandbox), stamp(p.Time))
	from := ""
	if p.From != "" {
		from = ", the tip of " + code(p.From)
	}
	r.line("- base %s%s", code(p.Base), from)
	if p.Start != p.Base {
		r.line("- started from uncommitted changes: %s, which is not part of the proposal", code(p.Start))
	}
	r.line("- work %s, branch %s", code(p.Work), code(p.Branch))
	not := ""
	if p.Work != p.Tip {
		not = "; the last one holds the uncommitted changes of the sandbox"
	}
	r.line("- %s, %s, %d lines added, %d deleted%s", visible.Count(p.Commits, "commit"),
		visible.Count(p.Stat.Files, "file"), p.Stat.Added, p.Stat.Deleted, not)
	l := p.Ledger
	r.line("- %s (%d failed), %s, %d refusals, risk %d of 100", visible.Count(int(l.Commands), "command"), l.Failed,
		visible.Count(int(l.Programs), "program"), l.NetRefused+l.FileRefused, l.Risk)
	if l.Lost {
		r.line("- **some records were lost**: the lists below are incomplete")
	}
	r.line("")
}

func (r *report) marks(p *Proposal) {
	if p.Stat.Marks == 0 {
		return
	}
	r.line("## Look at these first\n\nA host would run or trust these files later. They are applied " +
		"only when each was trusted by name.\n")
	list(r, p.Marks, p.Stat.Marks, shownMarks,
		func(m Mark) string { return code(m.Path) + ": " + code(m.Kind) + ", " + code(m.Why) })
	r.line("")
}

func (r *report) changes(p *Proposal) {
	r.line("## Changes\n")
	list(r, p.Changes, p.Stat.Files, shownChanges, func(c Change) string {
		path := code(c.Path)
		if c.OldPath != "" {
			path = code(c.OldPath) + " to " + path
		}
		lines := fmt.Sprintf("+%d -%d", c.Added, c.Deleted)
		if c.Binary {
			lines = "binary"
		}
		return code(c.Status) + " " + path + ", " + lines
	})
	if p.Stat.Files == 0 {
		r.line("No changes.")
	}
	r.line("")
	if p.Stat.Skipped > 0 {
		r.line("In the work tree, but not in the proposal:\n")
		list(r, p.Skipped, p.Stat.Skipped, shownSkipped, func(s Skipped) string { return code(s.Path) + ": " + code(s.Why) })
		r.line("")
	}
}

func (r *report) tests(p *Proposal) {
	if len(p.Tests) == 0 {
		return
	}
	r.line("## Tests\n\nRun by the proposer in a fork of the sandbox, as it was proposed.\n")
	for _, t := range p.Tests {
		how := fmt.Sprintf("exit code %d", t.Code)
		if t.Code == 0 {
			how = "passed"
		}
		if t.TimedOut {
			how = "timed out"
		}
		r.line("- %s: **%s** after %s", code(t.Cmd), how, ms(t.MS))
		if t.Output != "" && t.Code != 0 {
			r.line("\n%s", block(t.Output))
		}
	}
	r.line("")
}

func (r *report) commands(p *Proposal) {
	r.line("## What was run\n")
	from := max(0, len(p.Commands)-shownCommands)
	if earlier := int(p.Ledger.Commands) - (len(p.Commands) - from); earlier > 0 {
		r.line("The most recent ones; %s earlier are in the ledger.\n", visible.Count(earlier, "command"))
	}
	for _, c := range p.Commands[from:] {
		how := "still running"
		if c.Ended {
			how = fmt.Sprintf("exit code %d after %s", c.Code, ms(c.MS))
		}
		if c.Reason != "" {
			how += ", " + code(c.Reason)
		}
		r.line("- %s: %s, %s (record %d)", code(words(c.Args)), how, visible.Count(int(c.Programs), "program"), c.Record)
	}
	if len(p.Commands) == 0 {
		r.line("None.")
	}
	r.line("")
}

func (r *report) refused(p *Proposal) {
	r.line("## What was refused\n")
	list(r, p.Refused, len(p.Refused), shownRefused, func(d Refused) string {
		why := ""
		if d.Why != "" {
			why = ", because of " + code(d.Why)
		}
		return fmt.Sprintf("%s %s, %s%s", code(d.Kind), code(d.What), times(d.Count), why)
	})
	if len(p.Refused) == 0 {
		r.line("Nothing.")
	}
	r.line("")
}

func (r *report) confined(p *Proposal, policy string) {
	r.line("## How it was confined\n")
	r.line("Tier %s, policy %s.\n", code(p.Tier), code(p.Policy))
	if len(p.Enforced) > 0 {
		r.line("Enforced:\n")
		list(r, p.Enforced, len(p.Enforced), shownEnforced, code)
		r.line("")
	}
	if len(p.Lacking) > 0 {
		r.line("**Not enforced**, because the host could not:\n")
		list(r, p.Lacking, len(p.Lacking), shownEnforced, code)
		r.line("")
	}
	r.line("%s", block(apart(policy)))
}

// apart writes each key of a policy, which is one line of JSON, on a separate line.
func apart(policy string) string {
	var keys map[string]json.RawMessage
	if json.Unmarshal([]byte(policy), &keys) != nil {
		return policy
	}
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		lines = append(lines, visible.Clean(k)+": "+string(keys[k]))
	}
	return strings.Join(lines, "\n")
}

func (r *report) history(p *Proposal) {
	r.line("## Snapshots\n\n%s; the proposed one is %s.\n", visible.Count(p.Stat.Snapshots, "snapshot"), code(p.Snapshot))
	from := max(0, len(p.Snapshots)-shownSnapshots)
	if from > 0 {
		r.line("The most recent ones:\n")
	}
	for _, s := range p.Snapshots[from:] {
		message := ""
		if s.Message != "" {
			message = " " + code(s.Message)
		}
		r.line("- %s %s %s%s", code(s.ID), stamp(s.Time), code(s.Cause), message)
	}
	r.line("")
}

func (r *report) hand(p *Proposal) {
	r.line("## To check it, and to take it\n")
	r.line("The statements above are the proposer's claims unless the ledger proves them:\n")
	r.line("%s", block("coppice system verify --bundle "+FileLedger))
	r.line("The log is %s and states that its key is %s. Compare the key with the proposer's over "+
		"another channel.\n", code(p.Ledger.Origin), code(p.Ledger.Key))
	r.line("The change is in the branch and in %s:\n", FilePatch)
	r.line("%s", block("git diff "+p.Start+" "+p.Work+"\ngit apply --check "+FilePatch))
	r.line("To apply it on the host that has the sandbox:\n")
	r.line("%s", block("coppice git apply "+p.Name))
}

// words returns a command as one line.
func words(args []string) string {
	if len(args) == 3 && strings.HasSuffix(args[0], "sh") && (args[1] == "-c" || args[1] == "-lc") {
		return args[2]
	}
	return visible.Command(args)
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func orElse(s, or string) string {
	if strings.TrimSpace(s) == "" {
		return or
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func ms(n int64) string { return (time.Duration(n) * time.Millisecond).String() }
