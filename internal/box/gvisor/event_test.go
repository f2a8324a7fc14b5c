//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"io"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func anEvent(t *rapid.T) event {
	some := rapid.SliceOfN(rapid.Byte(), 1, 300)
	return event{
		Kind: rapid.SampledFrom([]eventKind{eventCloned, eventBegan, eventEnded, eventMark}).Draw(t, "kind"),
		PID:  rapid.IntRange(0, 1<<30).Draw(t, "pid"), Parent: rapid.IntRange(0, 1<<30).Draw(t, "parent"),
		At: rapid.Int64().Draw(t, "at"), Exe: some.Draw(t, "exe"), Args: some.Draw(t, "args"), Dir: some.Draw(t, "dir"),
		Cut: rapid.Int64().Draw(t, "cut"), Status: rapid.Uint32().Draw(t, "status"),
	}
}

func TestBatch_RoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all bytes.Buffer
		var want []batch
		for range rapid.IntRange(0, 4).Draw(t, "batches") {
			b := batch{Events: rapid.SliceOfN(rapid.Custom(anEvent), 1, 8).Draw(t, "events"),
				Dropped: rapid.Uint64().Draw(t, "dropped")}
			want = append(want, b)
			if err := writeBatch(&all, b); err != nil {
				t.Fatal(err)
			}
		}
		for _, w := range want {
			if got, err := readBatch(&all); err != nil || !reflect.DeepEqual(got, w) {
				t.Fatalf("%+v, %v, want %+v", got, err, w)
			}
		}
		if _, err := readBatch(&all); err != io.EOF {
			t.Fatalf("at the end: %v", err)
		}
	})
}

// FuzzBatch exists because a compromised kernel may write anything.
func FuzzBatch(f *testing.F) {
	var good bytes.Buffer
	if err := writeBatch(&good,
		batch{Events: []event{{Kind: eventBegan, PID: 7, Parent: 1, Exe: []byte("/bin/true"), Args: []byte("true\x00")},
			{Kind: eventEnded, PID: 7, Status: 256}}, Dropped: 3}); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add([]byte("\xff\xff\xff\xff{}"))
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x02{"))
	f.Fuzz(func(t *testing.T, p []byte) {
		b, err := readBatch(bytes.NewReader(p))
		if err != nil {
			return
		}
		r := newRecord()
		for _, e := range b.Events {
			switch e.Kind {
			case eventCloned:
				r.cloned(e)
			case eventBegan:
				r.began(e)
			case eventEnded:
				r.gone(e.PID, time.Unix(0, e.At), &e.Status)
			}
		}
		if len(r.alive) > maxAlive {
			t.Errorf("the record holds %d processes", len(r.alive))
		}
	})
}
