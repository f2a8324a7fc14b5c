package ledger

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/looptest"
)

// numbers returns the numbers of the records that a filter selects.
func numbers(t interface {
	Context() context.Context
	Fatal(...any)
}, r reader, f Filter) (all []int64) {
	for rec, err := range r.Read(t.Context(), boxA, f) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rec.Seq)
	}
	return all
}

// aged returns a ledger of n records in many segments, one record a minute, every fifth of them a stop.
func aged(t *testing.T, n int) (l *Ledger, dir string, begin time.Time) {
	t.Helper()
	dir, begin = t.TempDir(), time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	now := begin
	l, _ = opened(t, dir, Options{SegmentBytes: 1500, Now: func() time.Time { return now }})
	for i := range n {
		d := draft(boxA, i)
		if i%5 == 4 {
			d.Body = &format.Stop{}
		}
		now = begin.Add(time.Duration(i+1) * time.Minute) // the time of the record numbered i+1
		appended(t, l, d)
	}
	return l, dir, begin
}

// TestFilter_MatchesFullScan compares a search by segments with a scan of all records.
func TestFilter_MatchesFullScan(t *testing.T) {
	t.Parallel()
	const n = 60
	l, _, begin := aged(t, n)
	all := numbers(t, l, Filter{})
	if len(all) != n {
		t.Fatal(all)
	}
	rapid.Check(t, func(t *rapid.T) {
		since := rapid.IntRange(-1, n+2).Draw(t, "since")
		f := Filter{From: int64(rapid.IntRange(0, n+2).Draw(t, "from"))}
		if since >= 0 {
			f.Since = begin.Add(time.Duration(since) * time.Minute)
		}
		if rapid.Bool().Draw(t, "kind") {
			f.Kinds = []format.Kind{format.KindStop}
		}
		var want []int64
		for _, seq := range all {
			if seq >= f.From && int(seq) >= since && (f.Kinds == nil || seq%5 == 0) {
				want = append(want, seq)
			}
		}
		if got := numbers(t, l, f); !slices.Equal(got, want) {
			t.Fatalf("%+v: %v, want %v", f, got, want)
		}
		most := rapid.IntRange(1, n).Draw(t, "n")
		found, err := l.Newest(context.Background(), boxA, f, most)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, r := range found {
			got = append(got, r.Seq)
		}
		if want = want[max(0, len(want)-most):]; !slices.Equal(got, want) {
			t.Fatalf("%+v, the newest %d: %v, want %v", f, most, got, want)
		}
	})
}

// TestFilter_SkipsUnneededSegments damages the segments in the middle, except for their first records: a filter that
// does not need them must not read them.
func TestFilter_SkipsUnneededSegments(t *testing.T) {
	t.Parallel()
	l, dir, begin := aged(t, 60)
	if _, err := l.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	firsts, err := segments(dir, boxA)
	if err != nil || len(firsts) < 8 {
		t.Fatal(firsts, err)
	}
	for _, first := range firsts[:len(firsts)-3] {
		name := filepath.Join(dir, segment(boxA, first))
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, append(b[:slices.Index(b, '\n')+1], "damaged\n"...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	late := firsts[len(firsts)-2]
	if got := numbers(t, l, Filter{Since: begin.Add(time.Duration(late) * time.Minute)}); got[0] != late ||
		len(got) != 60-int(late)+1 {
		t.Errorf("%v", got)
	}
	if found, err := l.Newest(t.Context(), boxA, Filter{Kinds: []format.Kind{format.KindStop}}, 2); err != nil ||
		len(found) != 2 || found[0].Seq != 55 {
		t.Errorf("%v, %v", found, err)
	}
}

// TestReads_StopOnCancel matters because a filter may skip millions of records.
func TestReads_StopOnCancel(t *testing.T) {
	t.Parallel()
	const n, after = 60, 20
	l, _, _ := aged(t, n)
	none := Filter{Kinds: []format.Kind{format.KindDelete}}
	calls := func(read func(ctx context.Context) error) int64 {
		ctx := looptest.EndsAfter(t, after)
		if err := read(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want it cancelled", err)
		}
		return ctx.Calls()
	}
	for name, read := range map[string]func(ctx context.Context) error{
		"read": func(ctx context.Context) error {
			for _, err := range l.Read(ctx, boxA, none) {
				return err
			}
			return nil
		},
		"after": func(ctx context.Context) error {
			for _, err := range l.After(ctx, 0) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"export": func(ctx context.Context) error { return l.Export(ctx, boxA, io.Discard) },
		"follow": func(ctx context.Context) error {
			for rec, err := range l.Follow(ctx, boxA, none) {
				t.Errorf("follow yields %v, %v", rec, err)
			}
			return context.Cause(ctx)
		},
	} {
		if n := calls(read); n > after+5 { // each caller up the stack checks once, not for each record
			t.Errorf("%s: checked its context %d times, %d before it ended", name, n, after)
		}
	}
}
