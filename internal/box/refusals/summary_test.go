//go:build linux && (amd64 || arm64)

package refusals

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestSummary_ReportsRefusalsOnce checks that each refused call is reported once, in summaries of bounded size, and
// that a new call is reported at once if there is room.
func TestSummary_ReportsRefusalsOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tally, fd, err := NewTally()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		r := NewSummary(tally)
		now := time.Unix(0, 0)
		made, told := int64(0), int64(0)
		take := func() {
			out := r.Take(now)
			if len(out.Calls) > 2*maxRefused || len(r.seen)-r.files > maxRefused || r.files > maxRefused {
				t.Fatalf("%d calls in one report, %d remembered, %d of them files", len(out.Calls), len(r.seen), r.files)
			}
			for _, c := range out.Calls {
				told += c.Count
				if c.File != nil && c.File.Last.Before(c.File.First) {
					t.Fatalf("%+v", *c.File)
				}
			}
			told += out.More + out.Files
			if told != made {
				t.Fatalf("%d reported of %d", told, made)
			}
		}
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				take()
			case 1:
				now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			default:
				key := Refusal{Call: "bpf", Program: string(rune('a' + rapid.IntRange(0, 100).Draw(t, "program")))}
				room := len(r.seen)-r.files < maxRefused
				if rapid.Bool().Draw(t, "file") {
					key.File = File{Path: "/etc/shadow", Op: "read", Rule: "permission"}
					room = r.files < maxRefused
				}
				_, known := r.seen[key]
				select {
				case <-r.due:
				default:
				}
				r.Add(key, os.Getpid)
				made++
				select {
				case <-r.due:
					if known || !room {
						t.Fatal("a refusal that is not new or has no room is due at once")
					}
				default:
					if !known && room {
						t.Fatal("a new refusal is not due at once")
					}
				}
			}
		}
		take()
		now = now.Add(refusedAgain)
		take()
		if len(r.seen) > 0 || r.files != 0 {
			t.Fatalf("%d are still remembered", len(r.seen))
		}
	})
}

// TestTally_IsShared checks that a process sees what another one counts in a tally.
func TestTally_IsShared(t *testing.T) {
	t.Parallel()
	one, fd, err := NewTally()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	other, err := MapTally(fd)
	if err != nil {
		t.Fatal(err)
	}
	one.Add()
	other.Add()
	if one.Count() != 2 || other.Count() != 2 {
		t.Errorf("%d and %d", one.Count(), other.Count())
	}
}
