package audit

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
)

func TestProgramSum_GroupsCompilers(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	s := newProgramSum(100)
	events := []wire.ProgramEvent{{Began: &wire.StartedProgram{ID: 1, Exe: "/usr/bin/make", Exec: "x1", Started: at(1)}}}
	for i := uint64(2); i < 102; i++ {
		events = append(events,
			wire.ProgramEvent{Began: &wire.StartedProgram{ID: i, Exe: "/usr/bin/gcc", Exec: "x1", Started: at(int(i))}},
			wire.ProgramEvent{Ended: &wire.EndedProgram{ID: i, At: at(int(i) + 1), Code: int(i % 2)}})
	}
	s.Add(events, 0)
	groups := s.Groups()
	if len(groups) != 2 || groups[1].Exe != "/usr/bin/gcc" || len(groups[1].Programs) != 100 ||
		groups[0].Programs[0].Took() != 0 {
		t.Fatalf("%+v", groups)
	}
	if p := groups[1].Programs[1]; p.Took() != time.Second || !p.Failed() || groups[1].Programs[0].Failed() {
		t.Errorf("%+v", p)
	}
	s.Clear()
	s.Add([]wire.ProgramEvent{{Ended: &wire.EndedProgram{ID: 1, At: at(9), Signal: "TERM", Code: 143}}}, 3)
	groups = s.Groups()
	if len(groups) != 1 || !groups[0].Earlier || groups[0].Exe != "/usr/bin/make" ||
		groups[0].Programs[0].Took() != 8*time.Second || s.Lost() != 3 {
		t.Errorf("%+v", groups)
	}
}

// TestProgramSum_LosesNothing checks that, wherever intervals end, every program is in one group when it started, and
// in another if it exited in a later interval, and that no interval has more than most groups and OtherPrograms.
func TestProgramSum_LosesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 8).Draw(t, "most")
		s := newProgramSum(most)
		began, ended := map[uint64]int{}, map[uint64]int{}
		var alive []uint64
		var all, over int
		take := func() {
			groups, n := s.Groups(), 0
			if len(groups) > most+1 {
				t.Fatalf("%d groups of %d", len(groups), most)
			}
			for _, g := range groups {
				for _, p := range g.Programs {
					n++
					if !p.Earlier {
						began[p.ID]++
					}
					if p.End != nil {
						ended[p.ID]++
					}
					if g.Exe != OtherPrograms && (g.Exe != p.Exe || g.Asked != p.Asked || g.Earlier != p.Earlier) {
						t.Fatalf("%+v in %+v", p, g)
					}
				}
			}
			if n != s.Len() {
				t.Fatalf("%d of %d programs", n, s.Len())
			}
			s.Clear()
		}
		for step := range rapid.IntRange(0, 100).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				take()
			case 1, 2, 3:
				if len(alive) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(alive)-1).Draw(t, "which")
				s.Add([]wire.ProgramEvent{{Ended: &wire.EndedProgram{ID: alive[i], Code: i}}}, 0)
				alive = append(alive[:i], alive[i+1:]...)
				over++
			default:
				n := &wire.StartedProgram{ID: uint64(step) + 1, Exe: fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "exe")),
					Asked: rapid.Bool().Draw(t, "asked")}
				if n.Lost = rapid.IntRange(0, 9).Draw(t, "lost") == 0; !n.Lost {
					alive = append(alive, n.ID)
				}
				s.Add([]wire.ProgramEvent{{Began: n}}, 0)
				all++
			}
		}
		take()
		if len(began) != all || len(ended) != over {
			t.Fatalf("%d of %d programs, %d of %d ends", len(began), all, len(ended), over)
		}
		for id, n := range began {
			if n != 1 || ended[id] > 1 {
				t.Fatalf("program %d started %d times and exited %d times", id, n, ended[id])
			}
		}
	})
}
