package wire

import (
	"bytes"
	"testing"
)

// FuzzAddRecorded feeds arbitrary frames of a keeper, and checks that accepted ones round-trip.
func FuzzAddRecorded(f *testing.F) {
	for _, p := range (Recorded{Stream: FrameStderr, Total: 9, Head: []byte("abc"), Tail: []byte("ghi")}).Payloads() {
		f.Add(p, []byte{})
	}
	f.Add([]byte{3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 'a', 'b'}, []byte{3, 1, 0, 0, 0, 0, 0, 0, 0, 1, 'b'})
	f.Add([]byte{3, 7}, []byte{3, 0, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var all []Recorded
		for _, p := range [][]byte{a, b} {
			next, err := AddRecorded(all, p)
			if err != nil {
				return
			}
			all = next
		}
		var again []Recorded
		for _, r := range all {
			if r.Total < int64(len(r.Head)+len(r.Tail)) {
				t.Fatalf("%+v", r)
			}
			for _, p := range r.Payloads() {
				var err error
				if again, err = AddRecorded(again, p); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, r := range again {
			if r.Stream != all[i].Stream || r.Total != all[i].Total || !bytes.Equal(r.Head, all[i].Head) ||
				!bytes.Equal(r.Tail, all[i].Tail) || r.Whole() != all[i].Whole() {
				t.Fatalf("%+v was %+v", r, all[i])
			}
		}
	})
}
