package audit

import (
	"cmp"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Program is a program that was started, and its exit if that is known.
type Program struct {
	wire.StartedProgram
	End *wire.EndedProgram
	// Earlier says that the program started in an earlier interval; this one has its exit.
	Earlier bool
}

// Took returns how long the program ran; 0 if its exit is unknown.
func (p *Program) Took() time.Duration {
	if p.End == nil {
		return 0
	}
	return max(1, p.End.At.Sub(p.Started))
}

// Failed reports whether the program was killed by a signal or exited with another code than 0.
func (p *Program) Failed() bool { return p.End != nil && p.End.Code != 0 }

// ProgramGroup is the set of programs of one interval that have the same file and belong to the same exec.
type ProgramGroup struct {
	Exec     string
	Exe      string // OtherPrograms for several files
	Asked    bool   // see wire.StartedProgram
	Earlier  bool   // see Program
	Programs []*Program
}

// OtherPrograms is the Exe of the group of all programs of an interval that do not fit into its other groups.
const OtherPrograms = "..."

// groupKey is what the programs of a group have in common.
type groupKey struct {
	exec, exe      string
	asked, earlier bool
}

// ProgramSum summarizes the programs that were started in a sandbox, so that the record of a build stays
// readable. An interval lasts from one Clear to the next. It is not safe for concurrent use.
type ProgramSum struct {
	most  int
	list  []*Program          // of this interval
	bytes int                 // of list
	runs  map[uint64]*Program // programs that have not exited, of this interval or an earlier one
	lost  int64
}

// maxRuns bounds how many running programs are tracked.
const maxRuns = 1 << 14

// newProgramSum returns a sum with at most most groups per interval, and OtherPrograms.
func newProgramSum(most int) *ProgramSum {
	return &ProgramSum{most: max(most, 1), runs: map[uint64]*Program{}}
}

// Add adds events in their order; lost is how many events were lost among them.
func (s *ProgramSum) Add(events []wire.ProgramEvent, lost int64) {
	s.lost += lost
	for _, e := range events {
		if e.Began != nil {
			s.began(*e.Began)
		}
		if e.Ended != nil {
			s.ended(e.Ended)
		}
	}
}

func (s *ProgramSum) began(n wire.StartedProgram) {
	p := &Program{StartedProgram: n}
	s.keep(p)
	if !n.Lost && len(s.runs) < maxRuns {
		s.runs[n.ID] = p
	}
}

func (s *ProgramSum) ended(e *wire.EndedProgram) {
	p := s.runs[e.ID]
	if p == nil {
		return
	}
	delete(s.runs, e.ID)
	if p.End = e; p.Earlier {
		s.keep(p)
	}
}

func (s *ProgramSum) keep(p *Program) {
	s.list = append(s.list, p)
	s.bytes += 256 + len(p.Exe) + len(p.Dir)
	for _, a := range p.Args {
		s.bytes += len(a)
	}
}

// Len returns the number of programs in the interval.
func (s *ProgramSum) Len() int { return len(s.list) }

// Bytes returns about how many bytes the programs of the interval take.
func (s *ProgramSum) Bytes() int { return s.bytes }

// Lost returns how many events of the interval were lost.
func (s *ProgramSum) Lost() int64 { return s.lost }

// Groups returns the groups of the interval so far, ordered by the first program of each.
func (s *ProgramSum) Groups() []ProgramGroup {
	groups := map[groupKey]*ProgramGroup{}
	var order []*ProgramGroup
	for _, p := range s.list {
		k := groupKey{p.Exec, p.Exe, p.Asked, p.Earlier}
		if groups[k] == nil && len(groups) >= s.most {
			k = groupKey{exe: OtherPrograms}
		}
		g := groups[k]
		if g == nil {
			g = &ProgramGroup{Exec: k.exec, Exe: k.exe, Asked: k.asked, Earlier: k.earlier}
			groups[k], order = g, append(order, g)
		}
		g.Programs = append(g.Programs, p)
	}
	out := make([]ProgramGroup, len(order))
	for i, g := range order {
		out[i] = *g
	}
	slices.SortStableFunc(out, func(a, b ProgramGroup) int {
		return cmp.Compare(a.Programs[0].Started.UnixNano(), b.Programs[0].Started.UnixNano())
	})
	return out
}

// Clear ends the interval. The exits of programs that still run will belong to later intervals.
func (s *ProgramSum) Clear() {
	for _, p := range s.runs {
		p.Earlier = true
	}
	s.list, s.bytes, s.lost = nil, 0, 0
}
