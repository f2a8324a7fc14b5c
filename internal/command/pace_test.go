//go:build linux

package command

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
)

func TestPace_Due(t *testing.T) {
	t.Parallel()
	p := pace{quiet: 200 * time.Millisecond, max: 2 * time.Second}
	now := time.Unix(1000, 0)
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	for name, tc := range map[string]struct {
		g      layer.Glance
		since  time.Time
		mapped bool
		last   time.Time
		want   time.Duration
		none   bool
	}{
		"nothing":  {none: true},
		"just now": {g: layer.Glance{Changed: true, Newest: now}, since: now, want: 200 * time.Millisecond},
		"a moment ago": {g: layer.Glance{Changed: true, Newest: at(-150)}, since: at(-150),
			want: 50 * time.Millisecond},
		"quiet": {g: layer.Glance{Changed: true, Newest: at(-250)}, since: at(-250),
			want: -50 * time.Millisecond},
		"never quiet": {g: layer.Glance{Changed: true, Newest: now}, since: at(-1990), want: 10 * time.Millisecond},
		"for too long": {g: layer.Glance{Changed: true, Newest: now}, since: at(-2500),
			want: -500 * time.Millisecond},
		"from the future": {g: layer.Glance{Changed: true, Newest: at(1e6)}, since: at(1e6),
			want: 200 * time.Millisecond},
		"perhaps": {g: layer.Glance{Unsure: true}, last: at(-100), want: 100 * time.Millisecond},
		"mapped":  {mapped: true, last: at(-500), want: 1500 * time.Millisecond},
		"mapped, and a trace": {g: layer.Glance{Changed: true, Newest: at(-300)}, since: at(-300), mapped: true, last: now,
			want: -100 * time.Millisecond},
		"before the first look": {mapped: true, want: time.Time{}.Add(p.max).Sub(now)},
	} {
		got, some := p.due(tc.g, tc.since, tc.mapped, tc.last, now)
		if some == tc.none || some && got != tc.want {
			t.Errorf("%s: %v %v, want %v", name, got, some, tc.want)
		}
	}
}

// TestPace_CapturesInTime checks that the changes of a writer that never pauses are captured within max of the first
// one, and that no capture is taken before the writer was quiet for the required time.
func TestPace_CapturesInTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		quiet := time.Duration(rapid.IntRange(10, 1000).Draw(t, "quiet")) * time.Millisecond
		p := pace{quiet: quiet, max: quiet + time.Duration(rapid.IntRange(0, 5000).Draw(t, "more"))*time.Millisecond}
		first := time.Unix(1000, 0)
		newest := first.Add(time.Duration(rapid.IntRange(0, 10000).Draw(t, "newest")) * time.Millisecond)
		now := newest.Add(time.Duration(rapid.IntRange(0, 10000).Draw(t, "now")) * time.Millisecond)
		wait, some := p.due(layer.Glance{Changed: true, Oldest: first, Newest: newest}, first, false, time.Time{}, now)
		when := now.Add(wait)
		switch {
		case !some:
			t.Fatal("changes are not due")
		case when.After(first.Add(p.max)):
			t.Fatalf("due %s after the first change", when.Sub(first))
		case when.Before(newest.Add(quiet)) && when.Before(first.Add(p.max)):
			t.Fatalf("due %s after the newest change, %s after the first", when.Sub(newest), when.Sub(first))
		}
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	for c, want := range map[wire.Capture]pace{
		{}:                            {200 * time.Millisecond, 2 * time.Second},
		{QuietMS: 50}:                 {50 * time.Millisecond, 2 * time.Second},
		{QuietMS: 5000}:               {5 * time.Second, 5 * time.Second},
		{QuietMS: 10, MaxMS: 10}:      {10 * time.Millisecond, 10 * time.Millisecond},
		{MaxMS: 24 * 3600 * 1000}:     {200 * time.Millisecond, 24 * time.Hour},
		{QuietMS: 5}:                  {},
		{QuietMS: -1}:                 {},
		{MaxMS: 100}:                  {},
		{MaxMS: 24*3600*1000 + 1}:     {},
		{QuietMS: 1 << 62, MaxMS: -1}: {},
	} {
		got, err := newPace(c)
		if want == (pace{}) {
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("%+v: %v", c, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%+v: %v %v, want %v", c, got, err, want)
		}
	}
}

func TestRestartDelay_BacksOff(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	at := func(starts int, ran time.Duration) time.Duration {
		return restartDelay(wire.Run{Starts: starts, Started: now.Add(-ran)}, now)
	}
	for _, tc := range []struct{ got, want time.Duration }{
		{at(1, 0), 100 * time.Millisecond},
		{at(2, time.Second), 200 * time.Millisecond},
		{at(5, 0), 1600 * time.Millisecond},
		{at(100000, 0), restartMax},
		{at(100000, time.Minute), 100 * time.Millisecond},
	} {
		if tc.got != tc.want {
			t.Errorf("%v, want %v", tc.got, tc.want)
		}
	}
}

func TestTerms(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	usual := pace{200 * time.Millisecond, 2 * time.Second}
	for name, tc := range map[string]struct {
		c          wire.Capture
		supervised bool
		want       terms
	}{
		"supervised": {wire.Capture{}, true, terms{usual, start, 2 * time.Second}},
		"supervised, with times": {wire.Capture{MaxMS: 60_000}, true,
			terms{pace{200 * time.Millisecond, time.Minute}, start, time.Minute}},
		"supervised, off": {wire.Capture{Off: true}, true, terms{}},
		"another":         {wire.Capture{}, false, terms{usual, start.Add(10 * time.Second), time.Minute}},
		"another, with quiet": {wire.Capture{QuietMS: 50}, false,
			terms{pace{50 * time.Millisecond, 2 * time.Second}, start.Add(2 * time.Second), 2 * time.Second}},
		"another, with times": {wire.Capture{QuietMS: 1000, MaxMS: 60_000}, false,
			terms{pace{time.Second, time.Minute}, start.Add(10 * time.Second), time.Minute}},
		"another, off":     {wire.Capture{Off: true, MaxMS: 5000}, false, terms{}},
		"another, invalid": {wire.Capture{QuietMS: 1}, false, terms{}},
	} {
		if got := newTerms(tc.c, tc.supervised, start); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	of := func(quiet, most, from, rest int) terms {
		return terms{pace{time.Duration(quiet) * time.Second, time.Duration(most) * time.Second}, at(from),
			time.Duration(rest) * time.Second}
	}
	for name, tc := range map[string]struct {
		all  []terms
		want terms
		next time.Time
	}{
		"no command":                        {},
		"none that asks":                    {all: []terms{{}, {}}},
		"one":                               {all: []terms{{}, of(1, 2, 0, 3)}, want: of(1, 2, 0, 3)},
		"one that is new":                   {all: []terms{of(1, 2, 5, 3)}, next: at(5)},
		"two that are new":                  {all: []terms{of(1, 2, 5, 3), of(1, 2, 4, 3)}, next: at(4)},
		"the shortest of each":              {all: []terms{of(2, 9, -9, 1), of(1, 10, -3, 5), {}}, want: of(1, 9, -9, 1)},
		"a second command with equal times": {all: []terms{of(1, 2, 7, 3), of(1, 2, -1, 3)}, want: of(1, 2, -1, 3)},
		"one, and one that is new":          {all: []terms{of(1, 2, 7, 3), of(5, 6, -1, 6)}, want: of(5, 6, -1, 6), next: at(7)},
	} {
		if got, next := schedule(tc.all, now); got != tc.want || !next.Equal(tc.next) {
			t.Errorf("%s: %+v, next at %v; want %+v, %v", name, got, next, tc.want, tc.next)
		}
	}
}

func TestTerms_Hurry(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	soon, late, never := now.Add(time.Second), now.Add(time.Minute), time.Time{}
	usual := newTerms(wire.Capture{}, false, now)
	supervised := newTerms(wire.Capture{}, true, now)
	for name, tc := range map[string]struct {
		t             terms
		until, rested time.Time
		want          bool
	}{
		"a process must run first":       {usual, never, now, false},
		"soon enough":                    {usual, soon, now, false},
		"too late":                       {usual, late, now, true},
		"in a rest that it allows":       {usual, never, late, false},
		"supervised":                     {supervised, soon, now, true},
		"supervised, in a short rest":    {supervised, never, soon, false},
		"supervised, in too long a rest": {supervised, never, late, true},
	} {
		if got := tc.t.hurries(tc.until, tc.rested); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNextLook(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	soon, late := now.Add(time.Second), now.Add(time.Minute)
	some := terms{pace: pace{time.Second, time.Second}}
	for name, tc := range map[string]struct {
		current terms
		next    time.Time
		left    time.Duration
		want    time.Time
	}{
		"no terms yet":                    {next: soon, left: -1, want: soon},
		"no changes":                      {current: some, left: -1},
		"no changes, and other terms":     {current: some, next: soon, left: -1},
		"changes":                         {current: some, left: time.Second, want: soon},
		"changes, and other terms before": {current: some, next: soon, left: time.Minute, want: soon},
		"changes, and other terms after":  {current: some, next: late, left: time.Second, want: soon},
	} {
		if got := nextLook(tc.current, tc.next, tc.left, now); !got.Equal(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestRegister_AddsUpCaptures(t *testing.T) {
	t.Parallel()
	g := NewRegister()
	a, b := newCommand("s", "xa", time.Now(), ""), newCommand("other", "xb", time.Now(), "")
	g.add(a)
	g.add(b)
	g.Captured("s", 3)
	c := newCommand("s", "xc", time.Now(), "")
	g.add(c)
	g.Captured("s", 2)
	for want, of := range map[int]*command{5: a, 0: b, 2: c} {
		if x := g.whole(of, wire.Exit{}); x.Paths != want || x.Changed != (want > 0) {
			t.Errorf("%s: %+v, want %d paths", of.id, x, want)
		}
	}
	g.Captured("s", 1)
	if x := g.whole(a, wire.Exit{Paths: 1, Changed: true}); x.Paths != 6 || !x.Changed {
		t.Errorf("with a last snapshot: %+v", x)
	}
	next := NewRegister()
	for _, o := range g.Open() {
		next.Found(o)
	}
	next.Hear(&format.Record{Sandbox: "s", Body: &format.Snapshot{Cause: string(timeline.CauseAuto), Changes: 4}})
	next.Hear(&format.Record{Sandbox: "s", Body: &format.Snapshot{Cause: string(timeline.CauseExec), Changes: 100}})
	if x := next.whole(next.find("s", "xa"), wire.Exit{}); x.Paths != 110 {
		t.Errorf("found by another daemon: %+v, want 110 paths", x)
	}
}
