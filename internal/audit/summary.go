package audit

import (
	"slices"
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

const (
	// maxNamed is how many hosts and paths a summary names; maxDistinct, how many it counts.
	maxNamed    = 20
	maxDistinct = 10_000
)

// Summary summarizes the records of one sandbox, so that attempts can be compared. The zero Summary has no records.
type Summary struct {
	sum   wire.LedgerSummary
	hosts set
	paths set
	told  map[int64]wire.LedgerSummary // what each record that may be undone added, by its number
}

// Add adds the next record. Records are added in their order.
func (u *Summary) Add(r *format.Record) {
	s := &u.sum
	if s.Records == 0 {
		s.Sandbox, s.First = string(r.Sandbox), r.Time
	}
	s.Records, s.Last = s.Records+1, r.Time
	if r.Name != "" {
		s.Name = r.Name
	}
	switch b := r.Body.(type) {
	case *format.Exec:
		u.may(r.Seq, wire.LedgerSummary{Commands: 1})
	case *format.Snapshot:
		u.may(r.Seq, wire.LedgerSummary{Snapshots: 1, Changes: b.Changes})
	case *format.Rollback:
		u.may(r.Seq, wire.LedgerSummary{Rollbacks: 1})
	case *format.Undone:
		u.count(u.told[b.Seq], -1)
		delete(u.told, b.Seq)
	case *format.Exit:
		u.exit(b)
	case *format.Denial:
		s.Denied += b.Count
		if b.Op != "" {
			s.FilesDenied += b.Count
		}
	case *format.Network:
		u.network(b)
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

// may adds the contribution of a record, which a later record may undo.
func (u *Summary) may(seq int64, what wire.LedgerSummary) {
	if u.told == nil {
		u.told = map[int64]wire.LedgerSummary{}
	}
	u.told[seq] = what
	u.count(what, 1)
}

func (u *Summary) count(what wire.LedgerSummary, times int64) {
	u.sum.Commands += times * what.Commands
	u.sum.Snapshots += times * what.Snapshots
	u.sum.Changes += times * what.Changes
	u.sum.Rollbacks += times * what.Rollbacks
}

func (u *Summary) exit(b *format.Exit) {
	s := &u.sum
	code := b.Code
	s.Code, s.Outcome, s.DurationNS = &code, outcome(b), s.DurationNS+b.DurationNanos
	if s.Ended++; b.Code != 0 || b.Signal != "" {
		s.Failed++
	}
	for _, c := range b.Changes {
		u.paths.add(c.Path)
	}
}

// outcome describes the exit of a command in a few words.
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

func (u *Summary) network(b *format.Network) {
	s := &u.sum
	if b.Verdict != "allow" {
		s.NetDenied += b.Count
		return
	}
	s.NetAllowed += b.Count
	s.BytesIn += b.BytesIn
	s.BytesOut += b.BytesOut
	if b.Proto == "dns" {
		return // the host was looked up, not reached
	}
	if b.Host != "" {
		u.hosts.add(b.Host)
	} else if b.Addr != "" {
		u.hosts.add(b.Addr)
	}
}

// Result returns the summary, with its score of risk.
func (u *Summary) Result() wire.LedgerSummary {
	s := u.sum
	s.Hosts, s.HostNames = int64(len(u.hosts.all)), u.hosts.some()
	s.PathNames = u.paths.some()
	s.Risk, s.Risks = Risk(&s)
	return s
}

// set holds distinct names, up to maxDistinct.
type set struct{ all map[string]bool }

func (s *set) add(name string) {
	if s.all == nil {
		s.all = map[string]bool{}
	}
	if len(s.all) < maxDistinct {
		s.all[name] = true
	}
}

// some returns the first names in order, at most maxNamed.
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

// Risk returns a score from 0 to 100, and its parts: bounded points for each property that makes an attempt worth a
// second look. docs/LEDGER.md has the formula.
func Risk(s *wire.LedgerSummary) (score int, parts []wire.LedgerRisk) {
	part := func(what string, count, each, most int64) {
		if points := min(most, min(count, most)*each); points > 0 {
			score += int(points)
			parts = append(parts, wire.LedgerRisk{What: what, Count: count, Points: int(points)})
		}
	}
	// Ordinary programs look for files that they may not read, such as configurations with credentials.
	part("refused", s.Denied-s.FilesDenied+s.NetDenied, 2, 30)
	part("limits", s.Limits, 5, 15)
	part("changes, in hundreds", begun(s.Changes, 100), 1, 15)
	part("hosts reached", s.Hosts, 1, 10)
	part("sent, in MiB", begun(s.BytesOut, mebi), 1, 10)
	part("last command failed", flag(s.Code != nil && s.Outcome != outcome(&format.Exit{})), 10, 10)
	part("records lost", flag(s.Lost), 10, 10)
	return score, parts
}

// begun returns n/unit, rounded up.
func begun(n, unit int64) int64 { return n/unit + flag(n%unit > 0) }

func flag(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
