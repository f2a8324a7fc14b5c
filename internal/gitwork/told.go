//go:build linux

package gitwork

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/proposal"
)

// Retelling summarizes the records of a sandbox for a proposal. Pass them to Hear in order. The zero Retelling is
// ready for use.
type Retelling struct {
	sum      audit.Summary
	commands []*toldCommand
	byExec   map[string]*toldCommand // the same commands, by exec ID
	bySeq    map[int64]*toldCommand  // the same commands, by record number
	refused  map[[3]string]int64
}

// toldCommand is a command with its exec ID.
type toldCommand struct {
	proposal.Command
	exec string
}

// Hear processes the next record.
func (t *Retelling) Hear(r *format.Record) {
	t.sum.Add(r)
	switch b := r.Body.(type) {
	case *format.Exec:
		t.begins(r.Seq, b)
	case *format.Undone:
		if c := t.bySeq[b.Seq]; c != nil {
			t.commands = slices.DeleteFunc(t.commands, func(o *toldCommand) bool { return o == c })
		}
	case *format.Exit:
		if c := t.byExec[b.Exec]; c != nil {
			c.Ended, c.Code, c.Reason, c.MS = true, b.Code, proposal.Text(b.Reason),
				time.Duration(b.DurationNanos).Milliseconds()
			if c.Reason == "" && b.Signal != "" {
				c.Reason = proposal.Text("SIG" + b.Signal)
			}
		}
	case *format.Program:
		if c := t.byExec[b.Exec]; c != nil {
			c.Programs += b.Count
		}
	case *format.Denial:
		kind := "file"
		if b.Path == "" {
			kind = "syscall"
		}
		t.refuse(kind, audit.Denied(b), b.Reason, b.Count)
	case *format.Network:
		if b.Verdict != "allow" {
			t.refuse("network", audit.Reached(b), b.Reason, b.Count)
		}
	case *format.Limit:
		t.refuse("limit", b.Limit, "", 1)
	}
}

func (t *Retelling) begins(seq int64, b *format.Exec) {
	c := &toldCommand{Command: proposal.Command{Record: seq, Dir: proposal.Text(b.Dir), Args: []string{}}, exec: b.Exec}
	for _, a := range ours(b.Args) {
		c.Args = append(c.Args, proposal.Text(a))
	}
	if t.byExec == nil {
		t.byExec, t.bySeq = map[string]*toldCommand{}, map[int64]*toldCommand{}
	}
	t.commands, t.byExec[b.Exec], t.bySeq[seq] = append(t.commands, c), c, c
	if len(t.commands) >= 2*proposal.MaxCommands {
		for _, c := range t.commands[:proposal.MaxCommands] {
			delete(t.byExec, c.exec)
			delete(t.bySeq, c.Record)
		}
		t.commands = slices.Clone(t.commands[proposal.MaxCommands:])
	}
}

// ours returns a description of a command that Coppice itself runs in a sandbox.
func ours(args []string) []string {
	if len(args) < 3 {
		return args
	}
	switch args[2] {
	case insideGit:
		return []string{"coppice:", "take", "out", "what", "was", "done"}
	case insideRebase:
		return []string{"coppice:", "rebase"}
	}
	return args
}

// maxRefusals is the maximum number of distinct refusals that are counted separately.
const maxRefusals = 10 * proposal.MaxRefused

func (t *Retelling) refuse(kind, what, why string, count int64) {
	if t.refused == nil {
		t.refused = map[[3]string]int64{}
	}
	key := [3]string{kind, proposal.Text(what), proposal.Text(why)}
	if _, known := t.refused[key]; !known && len(t.refused) >= maxRefusals {
		key = [3]string{kind, "others, listed in the ledger", ""}
	}
	t.refused[key] += count
}

// Into fills in the collected data.
func (t *Retelling) Into(p *proposal.Proposal) {
	s := t.sum.Result()
	p.Ledger.Records, p.Ledger.Commands, p.Ledger.Failed, p.Ledger.Programs = s.Records, s.Commands, s.Failed, s.Programs
	p.Ledger.NetAllowed, p.Ledger.NetRefused, p.Ledger.FileRefused, p.Ledger.BytesOut = s.NetAllowed, s.NetDenied,
		s.Denied, s.BytesOut
	p.Ledger.Lost, p.Ledger.Risk = s.Lost, s.Risk
	for _, c := range t.commands[max(0, len(t.commands)-proposal.MaxCommands):] {
		p.Commands = append(p.Commands, c.Command)
	}
	for k, n := range t.refused {
		p.Refused = append(p.Refused, proposal.Refused{Kind: k[0], What: k[1], Why: k[2], Count: n})
	}
	slices.SortFunc(p.Refused, func(a, b proposal.Refused) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Kind, b.Kind), strings.Compare(a.What, b.What),
			strings.Compare(a.Why, b.Why))
	})
	p.Refused = p.Refused[:min(len(p.Refused), proposal.MaxRefused)]
}
