// Package compare is pure: it makes of the records of a sandbox what is said of it as a
// whole, so that attempts can be put side by side, and a score of the risk that they were.
// Its formula is in docs/LEDGER.md. It imports the ledger's format and the wire, and is for
// the engine.
package compare

import (
	"slices"
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

const (
	// maxNamed is how many hosts and paths a summary names, and maxDistinct how many it
	// tells apart.
	maxNamed    = 20
	maxDistinct = 10_000
)

// Attempt hears the records of one sandbox, in order. The zero Attempt has heard none.
type Attempt struct {
	sum   wire.LedgerSummary
	hosts set
	paths set
	told  map[int64]wire.LedgerSummary // what a record that may be undone added, by its number
}

// Hear takes the next record.
func (a *Attempt) Hear(r *format.Record) {
	s := &a.sum
	if s.Records == 0 {
		s.Sandbox, s.First = string(r.Sandbox), r.Time
	}
	s.Records, s.Last = s.Records+1, r.Time
	if r.Name != "" {
		s.Name = r.Name
	}
	switch b := r.Body.(type) {
	case *format.Exec:
		a.may(r.Seq, wire.LedgerSummary{Commands: 1})
	case *format.Snapshot:
		a.may(r.Seq, wire.LedgerSummary{Snapshots: 1, Changes: b.Changes})
	case *format.Rollback:
		a.may(r.Seq, wire.LedgerSummary{Rollbacks: 1})
	case *format.Undone:
		a.add(a.told[b.Seq], -1)
		delete(a.told, b.Seq)
	case *format.Exit:
		a.exit(b)
	case *format.Denial:
		s.Denied += b.Count
	case *format.Network:
		a.network(b)
	case *format.Limit:
		s.Limits++
	case *format.Program:
		s.Programs += b.Count
		s.ProgramsFailed += b.Failed
	case *format.Lost:
		s.Lost = true
	case *format.Delete:
		s.Removed = true
	}
}

// may adds what a record tells, until it is told that it did not come about.
func (a *Attempt) may(seq int64, what wire.LedgerSummary) {
	if a.told == nil {
		a.told = map[int64]wire.LedgerSummary{}
	}
	a.told[seq] = what
	a.add(what, 1)
}

func (a *Attempt) add(what wire.LedgerSummary, times int64) {
	a.sum.Commands += times * what.Commands
	a.sum.Snapshots += times * what.Snapshots
	a.sum.Changes += times * what.Changes
	a.sum.Rollbacks += times * what.Rollbacks
}

func (a *Attempt) exit(b *format.Exit) {
	s := &a.sum
	code := b.Code
	s.Code, s.Outcome, s.DurationNS = &code, outcome(b), s.DurationNS+b.DurationNanos
	if s.Ended++; b.Code != 0 || b.Signal != "" {
		s.Failed++
	}
	for _, c := range b.Changes {
		a.paths.add(c.Path)
	}
}

// outcome tells how a command ended, in a few words.
func outcome(b *format.Exit) string {
	switch {
	case b.Reason != "":
		return b.Reason
	case b.Signal != "":
		return "SIG" + b.Signal
	case b.Code == 0:
		return "succeeded"
	}
	return "code " + strconv.Itoa(b.Code)
}

func (a *Attempt) network(b *format.Network) {
	s := &a.sum
	if b.Verdict != "allow" {
		s.NetDenied += b.Count
		return
	}
	s.NetAllowed += b.Count
	s.BytesIn += b.BytesIn
	s.BytesOut += b.BytesOut
	if b.Proto == "dns" {
		return // it was asked for, not reached
	}
	if b.Host != "" {
		a.hosts.add(b.Host)
	} else if b.Addr != "" {
		a.hosts.add(b.Addr)
	}
}

// Summary gives what was heard, as a whole.
func (a *Attempt) Summary() wire.LedgerSummary {
	s := a.sum
	s.Hosts, s.HostNames = int64(len(a.hosts.all)), a.hosts.some()
	s.PathNames = a.paths.some()
	s.Risk, s.Risks = Risk(&s)
	return s
}

// set is names that are told apart, up to maxDistinct.
type set struct{ all map[string]bool }

func (s *set) add(name string) {
	if s.all == nil {
		s.all = map[string]bool{}
	}
	if len(s.all) < maxDistinct {
		s.all[name] = true
	}
}

// some gives the first of them, in order.
func (s *set) some() []string {
	var out []string
	for name := range s.all {
		at, _ := slices.BinarySearch(out, name)
		if at < maxNamed {
			out = slices.Insert(out, at, name)
			out = out[:min(len(out), maxNamed)]
		}
	}
	return out
}

const mebi = 1 << 20

// Risk gives a score from 0 to 100, and what it is the sum of: for each thing that makes an
// attempt worth a second look so many points, up to a bound.
func Risk(s *wire.LedgerSummary) (score int, parts []wire.LedgerRisk) {
	part := func(what string, count, each, most int64) {
		if points := min(most, min(count, most)*each); points > 0 {
			score += int(points)
			parts = append(parts, wire.LedgerRisk{What: what, Count: count, Points: int(points)})
		}
	}
	part("refused", s.Denied+s.NetDenied, 2, 30)
	part("limits", s.Limits, 5, 15)
	part("changes, in hundreds", begun(s.Changes, 100), 1, 15)
	part("hosts reached", s.Hosts, 1, 10)
	part("sent, in MiB", begun(s.BytesOut, mebi), 1, 10)
	part("last command failed", flag(s.Code != nil && s.Outcome != outcome(&format.Exit{})), 10, 10)
	part("records lost", flag(s.Lost), 10, 10)
	return score, parts
}

// begun is how many units are begun.
func begun(n, unit int64) int64 { return n/unit + flag(n%unit > 0) }

func flag(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
