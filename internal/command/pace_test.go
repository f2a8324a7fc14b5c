//go:build linux

package command

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
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
