package audit

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

func same(s string) string { return s }

func TestEvidenceOf_RefusedSyscallsAreDenials(t *testing.T) {
	t.Parallel()
	ev := wire.NetEvent{Kind: wire.NetRefused, Syscall: "bpf", Program: "/bin/\x1b[2Jx", PID: 7, Exec: "x1",
		Reason: "EPERM", Verdict: wire.VerdictDeny, Time: time.Unix(1, 0)}
	again := ev
	again.PID, again.Count, again.Time = 8, 41, time.Unix(2, 0)
	other := ev
	other.Syscall = "mount"
	killed := wire.NetEvent{Kind: wire.NetRefused, PID: 9, Exec: "x2", Reason: wire.RefusedKilled}
	untold := wire.NetEvent{Kind: wire.NetRefused, Reason: wire.RefusedUntold, Count: 5}
	got := EvidenceOf([]wire.NetEvent{ev, again, other, killed, untold, untold},
		func(s string) string { return strings.ReplaceAll(s, "\x1b", "") })
	if len(got) != 4 {
		t.Fatalf("%d records", len(got))
	}
	if b := got[0].Body.(*format.Denial); *b != (format.Denial{Count: 42, Exec: "x1", PID: 7, Program: "/bin/[2Jx", Reason: "answered with EPERM", Syscall: "bpf"}) || got[0].By != format.ByKernel {
		t.Errorf("%+v", b)
	}
	if b := got[1].Body.(*format.Denial); b.Syscall != "mount" || b.Count != 1 {
		t.Errorf("%+v", b)
	}
	if b := got[2].Body.(*format.Denial); b.Syscall != "" || b.Reason != wire.RefusedKilled || b.Exec != "x2" {
		t.Errorf("%+v", b)
	}
	if b := got[3].Body.(*format.Lost); b.Of != "denial" || b.Count != 10 || got[3].By != format.ByKeeper {
		t.Errorf("%+v", b)
	}
}

func TestEvidenceOf_RefusedFilesAreDenials(t *testing.T) {
	t.Parallel()
	ev := wire.NetEvent{Kind: wire.NetRefused, Syscall: "openat", Path: "/etc/\x1bshadow", Op: wire.FileRead,
		Rule: wire.RuleHidden, Reason: "ENOENT", First: time.Unix(1, 0), Last: time.Unix(1, 5)}
	again := ev
	again.Count, again.First, again.Last = 4, time.Unix(2, 0), time.Unix(3, 0)
	written := ev
	written.Op = wire.FileWrite
	untold := wire.NetEvent{Kind: wire.NetRefused, Reason: wire.RefusedFiles, Count: 5}
	got := EvidenceOf([]wire.NetEvent{ev, written, again, untold},
		func(s string) string { return strings.ReplaceAll(s, "\x1b", "") })
	if len(got) != 3 || got[0].By != format.ByKernel {
		t.Fatalf("%+v", got)
	}
	if b := got[0].Body.(*format.Denial); *b != (format.Denial{Count: 5, First: "1970-01-01T00:00:01Z",
		Last: "1970-01-01T00:00:03Z", Op: "read", Path: "/etc/shadow", Reason: "answered with ENOENT", Rule: "hidden",
		Syscall: "openat"}) {
		t.Errorf("%+v", b)
	}
	if b := got[2].Body.(*format.Lost); b.Of != "denial" || b.Count != 5 || b.Reason != wire.RefusedFiles {
		t.Errorf("%+v", b)
	}
}

func TestEvidenceOf_DroppedPacketsAreLost(t *testing.T) {
	t.Parallel()
	dropped := wire.NetEvent{Kind: wire.NetDeny, Verdict: wire.VerdictDeny, Reason: wire.NetDropped, Count: 30}
	denied := wire.NetEvent{Kind: wire.NetDeny, Verdict: wire.VerdictDeny, Reason: "no rule", Addr: "192.0.2.1"}
	got := EvidenceOf([]wire.NetEvent{dropped, denied, dropped}, same)
	if len(got) != 2 || got[0].By != format.ByGate {
		t.Fatalf("%+v", got)
	}
	if b := got[0].Body.(*format.Lost); *b != (format.Lost{Of: "network", Count: 60, Reason: wire.NetDropped}) {
		t.Errorf("%+v", b)
	}
}

// TestEvidenceOf_DropsNothing checks that records count all events, however events are cut into batches, and that
// isEvidence recognizes each of these records.
func TestEvidenceOf_DropsNothing(t *testing.T) {
	t.Parallel()
	kinds := []string{wire.NetDNS, wire.NetConnect, wire.NetDeny, wire.NetEnd, wire.NetHTTP, wire.NetAnswer, wire.NetAsk,
		wire.NetDecoy, wire.NetRefused}
	text := rapid.SampledFrom([]string{"", "a", "b"})
	event := rapid.Custom(func(t *rapid.T) wire.NetEvent {
		return wire.NetEvent{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Name: text.Draw(t, "name"),
			Decoy: text.Draw(t, "decoy"), Syscall: text.Draw(t, "syscall"),
			Op: text.Draw(t, "op"),
			Reason: rapid.SampledFrom([]string{"", wire.RefusedUntold, wire.RefusedFiles, wire.RefusedKilled,
				wire.NetDropped}).Draw(t, "reason"),
			Count: rapid.IntRange(0, 9).Draw(t, "count"), PID: rapid.IntRange(0, 3).Draw(t, "pid"),
			Time: time.Unix(int64(rapid.IntRange(0, 9).Draw(t, "time")), 0)}
	})
	rapid.Check(t, func(t *rapid.T) {
		evs := rapid.SliceOfN(event, 0, 20).Draw(t, "events")
		want := int64(0)
		for _, ev := range evs {
			want += int64(max(1, ev.Count))
		}
		cut := rapid.IntRange(0, len(evs)).Draw(t, "cut")
		for _, parts := range [][][]wire.NetEvent{{evs}, {evs[:cut], evs[cut:]}} {
			got := int64(0)
			for _, part := range parts {
				for _, s := range EvidenceOf(part, same) {
					if !isEvidence(&format.Record{Observer: s.By, Body: s.Body}) {
						t.Fatalf("isEvidence does not recognize %+v", s.Body)
					}
					switch b := s.Body.(type) {
					case *format.Network:
						got += b.Count
					case *format.Denial:
						got += b.Count
					case *format.Lost:
						got += b.Count
					}
				}
			}
			if got != want {
				t.Fatalf("%d counted of %d", got, want)
			}
		}
	})
	if m := lostEvidence(); !isEvidence(&format.Record{Observer: format.ByDaemon, Body: &m}) {
		t.Error("isEvidence does not recognize a lost record")
	}
}
