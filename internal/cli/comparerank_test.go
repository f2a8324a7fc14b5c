package cli

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

func TestRank(t *testing.T) {
	t.Parallel()
	made := func(name string, code, risk int, changes int64, test *wire.Trial) attempt {
		return attempt{Test: test,
			LedgerSummary: wire.LedgerSummary{Name: name, Code: &code, Risk: risk, Changes: changes}}
	}
	passes, fails, late := &wire.Trial{}, &wire.Trial{Exit: 1}, &wire.Trial{Exit: 124, TimedOut: true}
	none := attempt{LedgerSummary: wire.LedgerSummary{Name: "idle"}}
	repo := made("repo", 0, 0, 1, passes)
	repo.Git = &attemptGit{Added: 300, Deleted: 10}
	for _, c := range []struct {
		all  []attempt
		want string
	}{
		{[]attempt{made("bad", 1, 0, 1, nil), made("good", 0, 90, 1, nil)}, "good 1, bad 2"},
		{[]attempt{none, made("bad", 1, 0, 1, nil), made("good", 0, 0, 1, nil)}, "good 1, idle 2, bad 3"},
		{[]attempt{made("a", 0, 1, 0, nil), made("b", 0, 1, 0, nil), made("c", 0, 0, 9, nil)}, "c 1, a 2, b 2"},
		{[]attempt{made("fails", 0, 0, 0, fails), made("late", 0, 0, 0, late), made("passes", 1, 99, 9, passes)},
			"passes 1, fails 2, late 2"},
		{[]attempt{repo, made("paths", 0, 0, 200, passes)}, "paths 1, repo 2"},
		{nil, ""},
	} {
		rank(c.all)
		var got []string
		for _, a := range c.all {
			got = append(got, a.Name+" "+string(rune('0'+a.Rank)))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s, want %s", s, c.want)
		}
	}
}
