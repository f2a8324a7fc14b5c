//go:build linux && (amd64 || arm64)

package keeper

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

// TestProgramRing checks that a reader that reads to the end gets every event, or the number of those that were
// dropped, in order.
func TestProgramRing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r programRing
		var told, read, gone, after uint64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "read") {
				p, later := r.after(after, after)
				if (later != nil) != (after == told) {
					t.Fatalf("after waits at event %d of %d", after, told)
				}
				for _, e := range p.Events {
					if e.Seq <= after {
						t.Fatalf("event %d after %d", e.Seq, after)
					}
					after = e.Seq
				}
				read, gone, after = read+uint64(len(p.Events)), gone+p.Dropped, p.Next
				continue
			}
			n := rapid.IntRange(0, maxAnswerEvents).Draw(t, "events")
			args := make([]byte, rapid.IntRange(0, 4096).Draw(t, "bytes"))
			dropped := uint64(rapid.IntRange(0, 3).Draw(t, "dropped"))
			var p initlink.Programs
			for range n {
				p.Events = append(p.Events, initlink.ProgramEvent{Began: &initlink.Program{Args: args}})
			}
			p.Dropped = dropped
			r.add(p)
			told += uint64(n) + dropped
			if len(r.events) > maxProgramEvents || r.bytes > maxProgramBytes {
				t.Fatalf("%d events, %d bytes", len(r.events), r.bytes)
			}
		}
		for after < told {
			p, _ := r.after(after, after)
			read, gone, after = read+uint64(len(p.Events)), gone+p.Dropped, p.Next
		}
		if read+gone != told {
			t.Fatalf("%d read and %d dropped of %d", read, gone, told)
		}
	})
}

// TestLeftPrograms_ReportDamage checks that records of programs that a monitor left, and that cannot be read, are
// reported as damaged and not as missing.
func TestLeftPrograms_ReportDamage(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), bytes.Repeat([]byte{1}, secretbox.Size)
	k := &keeper{config: plan.Config{RunDir: dir, JournalKey: key}}
	k.programs.add(
		initlink.Programs{
			Events: []initlink.ProgramEvent{
				{Began: &initlink.Program{ID: 1, Exe: []byte("/bin/x"), Args: []byte("secret\x00")}}}})
	if err := k.savePrograms(); err != nil {
		t.Fatal(err)
	}
	if p, err := box.LeftPrograms(dir, key); err != nil || len(p.Events) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	name := filepath.Join(dir, protocol.LeftName)
	whole, err := os.ReadFile(name)
	if err != nil || bytes.Contains(whole, []byte("secret")) {
		t.Fatalf("%q, %v", whole, err)
	}
	if _, err := box.LeftPrograms(dir, bytes.Repeat([]byte{2}, secretbox.Size)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("with another key: %v", err)
	}
	if err := os.WriteFile(name, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := box.LeftPrograms(dir, key); !fault.Is(err, fault.Corrupt) {
		t.Errorf("truncated record: %v", err)
	}
	if err := box.ForgetPrograms(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := box.LeftPrograms(dir, key); !fault.Is(err, fault.NotFound) {
		t.Errorf("after ForgetPrograms: %v", err)
	}
}
