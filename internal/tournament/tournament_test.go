//go:build linux

package tournament

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	at := func(x float64) *float64 { return &x }
	for name, tt := range map[string]struct {
		in     []wire.TournamentBranch
		scored bool
		want   int
	}{
		"nobody":                   {want: -1},
		"the first":                {in: []wire.TournamentBranch{{}, {}}, want: 0},
		"the first that passed":    {in: []wire.TournamentBranch{{TestExit: 1}, {Exit: 3}, {}}, want: 1},
		"none passed":              {in: []wire.TournamentBranch{{TestExit: 1}, {TestExit: 124}}, want: -1},
		"a score is not asked for": {in: []wire.TournamentBranch{{}, {Score: at(1)}}, want: 0},
		"the best score": {in: []wire.TournamentBranch{{Score: at(-2)}, {Score: at(-1)}, {Score: at(-3)}},
			scored: true, want: 1},
		"equal scores": {in: []wire.TournamentBranch{{Score: at(1)}, {Score: at(2)}, {Score: at(2)}},
			scored: true, want: 1},
		"without a score": {in: []wire.TournamentBranch{{}, {Score: at(-9)}}, scored: true, want: 1},
		"a score and a test that fail": {in: []wire.TournamentBranch{{TestExit: 1, Score: at(9)}, {Score: at(1)}},
			scored: true, want: 1},
	} {
		if got := decide(tt.in, tt.scored); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

func TestDecide_Properties(t *testing.T) {
	t.Parallel()
	one := rapid.Custom(func(t *rapid.T) (b wire.TournamentBranch) {
		b.TestExit = rapid.IntRange(0, 1).Draw(t, "test")
		if rapid.Bool().Draw(t, "has score") {
			x := float64(rapid.IntRange(-2, 2).Draw(t, "score"))
			b.Score = &x
		}
		return b
	})
	rapid.Check(t, func(t *rapid.T) {
		list, scored := rapid.SliceOf(one).Draw(t, "branches"), rapid.Bool().Draw(t, "scored")
		win := decide(list, scored)
		may := func(b wire.TournamentBranch) bool { return b.TestExit == 0 && (!scored || b.Score != nil) }
		if win >= 0 && !may(list[win]) {
			t.Fatalf("%d wins", win)
		}
		for i, b := range list {
			switch {
			case !may(b):
			case win < 0:
				t.Fatalf("no winner, but %d passed", i)
			case !scored && i < win:
				t.Fatalf("%d wins, but %d passed earlier", win, i)
			case scored && (*b.Score > *list[win].Score || *b.Score == *list[win].Score && i < win):
				t.Fatalf("%d wins, but %d is better", win, i)
			}
		}
	})
}

func TestJobs(t *testing.T) {
	t.Parallel()
	const mib, gib = 1 << 20, 1 << 30
	for name, tt := range map[string]struct {
		asked, candidates, cores int
		available, need          int64
		want                     int
	}{
		"as many as asked for":            {asked: 3, candidates: 9, cores: 1, available: mib, need: gib, want: 3},
		"no more than there are":          {asked: 30, candidates: 9, cores: 1, want: 9},
		"two cores":                       {candidates: 16, cores: 2, available: 24 * gib, need: 256 * mib, want: 8},
		"many cores":                      {candidates: 1000, cores: 32, available: 64 * gib, need: 256 * mib, want: 128},
		"little memory":                   {candidates: 16, cores: 2, available: gib, need: 256 * mib, want: 4},
		"a limit":                         {candidates: 16, cores: 2, available: 10 * gib, need: 4 * gib, want: 2},
		"hardly any memory":               {candidates: 16, cores: 2, available: mib, need: 256 * mib, want: 1},
		"memory that nobody knows":        {candidates: 16, cores: 2, need: 256 * mib, want: 8},
		"a limit that is not meant to be": {candidates: 16, cores: 2, available: math.MaxInt64, need: 1, want: 8},
	} {
		if got := jobs(tt.asked, tt.candidates, tt.cores, tt.available, tt.need); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
	if memAvailable() <= 0 {
		t.Error("the kernel does not report the available memory")
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"1": 1, "a\n 2.5 \n\n": 2.5, "3\r\n": 3, "-1e3": -1000} {
		if got, ok := number(text); !ok || got != want {
			t.Errorf("%q: %g, %t", text, got, ok)
		}
	}
	for _, text := range []string{"", "\n", "1\nx", "NaN", "+Inf", "1 2", "1,5"} {
		if got, ok := number(text); ok {
			t.Errorf("%q: %g", text, got)
		}
	}
}
