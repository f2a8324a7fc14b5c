package audit

import (
	"cmp"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Program is one that was started, and its end if that is known.
type Program struct {
	wire.StartedProgram
	End *wire.EndedProgram
	// Earlier says that it began in an interval before, of which this one has the end.
	Earlier bool
}

// Took is how long it ran; 0 for one whose end is not known.
func (p *Program) Took() time.Duration {
	if p.End == nil {
		return 0
	}
	return max(1, p.End.At.Sub(p.Started))
}

// Failed reports whether it ended, by a signal or with another code than 0.
func (p *Program) Failed() bool { return p.End != nil && p.End.Code != 0 }

// ProgramGroup stands for the programs of one interval that have the same file and belong to
// the same exec.
type ProgramGroup struct {
	Exec     string
	Exe      string // OtherPrograms where it has several files
	Asked    bool   // as of wire.StartedProgram
	Earlier  bool   // as of Program
	Programs []*Program
}

// OtherPrograms is the Exe of the group of all programs of an interval that are beyond its groups.
const OtherPrograms = "..."

// groupKey is what the programs of a group have in common.
type groupKey struct {
	exec, exe      string
	asked, earlier bool
}

// ProgramSum sums up the programs that were started in a sandbox, so that the record of a build
// stays readable. An interval is what it is given from one Clear to the next. It is used by one
// goroutine at a time.
type ProgramSum struct {
	most  int
	list  []*Program          // of this interval
	bytes int                 // of list
	runs  map[uint64]*Program // those that have not ended, of this interval or one before
	lost  int64
}

// maxRuns bounds how many programs are remembered for their ends.
const maxRuns = 1 << 14

// newProgramSum returns a sum of at most most groups an interval, and OtherPrograms.
func newProgramSum(most int) *ProgramSum {
	return &ProgramSum{most: max(most, 1), runs: map[uint64]*Program{}}
}

// Add takes events in their order, and how many are not known that came with them.
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

// Len is how many programs the interval tells of.
func (s *ProgramSum) Len() int { return len(s.list) }

// Bytes is about how many bytes these take.
func (s *ProgramSum) Bytes() int { return s.bytes }

// Lost is how many events of the interval are not known.
func (s *ProgramSum) Lost() int64 { return s.lost }

// Groups gives the interval as it is by now, in order of the first of each group.
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

// Clear ends the interval. The ends of what still runs are in those that follow.
func (s *ProgramSum) Clear() {
	for _, p := range s.runs {
		p.Earlier = true
	}
	s.list, s.bytes, s.lost = nil, 0, 0
}
