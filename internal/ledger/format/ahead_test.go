package format

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// aheadOf makes lines with reasons of some lengths, some of them damaged.
func aheadOf(t testing.TB, lengths []int, damaged func(i int) bool) (lines [][]byte) {
	t.Helper()
	for i, n := range lengths {
		line, err := encode(&Record{Body: &Stop{Reason: strings.Repeat("x", n)}, Observer: ByKeeper,
			Sandbox: "00000000000a", Seq: int64(i + 1), Time: time.Unix(int64(i), 0)})
		if err != nil {
			t.Fatal(err)
		}
		if damaged(i) {
			line = line[1:]
		}
		lines = append(lines, line)
	}
	return lines
}

// givesAll fails unless parsing ahead has the same results as parsing one line after the other, in order, all of them
// before the final error, and unless it reads no more ahead than documented.
func givesAll(t interface{ Fatalf(string, ...any) }, lines [][]byte) {
	end := errors.New("no more")
	at, held := 0, 0
	var buf []byte // one buffer for all, as readers have it
	a := NewAhead(func() ([]byte, error) {
		if held >= aheadBytes {
			t.Fatalf("%d bytes are held, but more are read", held)
		}
		if at == len(lines) {
			return nil, end
		}
		buf = append(buf[:0], lines[at]...)
		held += len(buf)
		at++
		return buf, nil
	})
	for i, line := range lines {
		got, err := a.Next()
		if err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		held -= len(line)
		want := ParseLine(line)
		if (got.Err == nil) != (want.Err == nil) || got.Hash != want.Hash || !reflect.DeepEqual(got.Record, want.Record) {
			t.Fatalf("line %d: %+v", i, got)
		}
	}
	for range 2 {
		if _, err := a.Next(); !errors.Is(err, end) {
			t.Fatalf("at the end: %v", err)
		}
	}
}

func TestAhead_MatchesSequentialRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		lengths := rapid.SliceOfN(rapid.IntRange(0, 300), 0, 30).Draw(r, "lengths")
		broken := rapid.IntRange(1, 30).Draw(r, "every so many is damaged")
		givesAll(r, aheadOf(t, lengths, func(i int) bool { return i%broken == broken-1 }))
	})
}

func TestAhead_BoundsHeldLines(t *testing.T) {
	t.Parallel()
	givesAll(t, aheadOf(t, slices.Repeat([]int{MaxLine - 1000, 10, 100_000}, 8), func(int) bool { return false }))
	givesAll(t, aheadOf(t, make([]int, aheadLines+3), func(i int) bool { return i == aheadLines-1 }))
}
