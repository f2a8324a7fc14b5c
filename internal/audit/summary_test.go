package audit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// summed returns the summary of records with these bodies, numbered from 1, one second apart.
func summed(bodies ...format.Body) wire.LedgerSummary {
	var a audit.Summary
	for i, b := range bodies {
		a.Add(&format.Record{Sandbox: "0123456789ab", Name: "try", Seq: int64(i + 1), Time: time.Unix(int64(i), 0).
			UTC(), Body: b})
	}
	return a.Result()
}

func TestSummary(t *testing.T) {
	t.Parallel()
	s := summed(
		&format.Create{Base: "host"},
		&format.Exec{Exec: "1"},
		&format.Network{Verdict: "allow", Proto: "dns", Host: "asked.example", Count: 2},
		&format.Network{Verdict: "allow", Proto: "tcp", Host: "b.example", Count: 1, BytesIn: 10, BytesOut: 3 << 20},
		&format.Network{Verdict: "allow", Proto: "tcp", Addr: "192.0.2.1", Count: 1, BytesOut: 1},
		&format.Network{Verdict: "deny", Proto: "tcp", Host: "c.example", Count: 4},
		&format.Denial{Count: 2, Reason: "policy"},
		&format.Program{Path: "/bin/sh", Count: 7, Failed: 1},
		&format.Snapshot{Snapshot: "a", Changes: 101},
		&format.Exit{Exec: "1", DurationNanos: 5,
			Changes: []format.Change{{Change: "added", Path: "/w"}, {Change: "added", Path: "/a"},
				{Change: "changed", Path: "/w"}}},
		&format.Exec{Exec: "2"},
		&format.Limit{Exec: "2", Limit: "time"},
		&format.Exit{Exec: "2", DurationNanos: 7, Code: 124, Reason: "limit: time"},
		&format.Rollback{To: "a"},
		&format.Delete{Sandbox: "0123456789ab"},
	)
	code := 124
	want := wire.LedgerSummary{Sandbox: "0123456789ab", Name: "try", Removed: true, Records: 15, First: time.Unix(0, 0).
		UTC(), Last: time.Unix(14, 0).UTC(),
		Commands: 2, Ended: 2, Failed: 1, Code: &code, Outcome: "limit: time", DurationNS: 12, Snapshots: 1, Rollbacks: 1,
		Changes: 101, PathNames: []string{"/a", "/w"},
		Denied: 2, NetAllowed: 4, NetDenied: 4, Hosts: 2, HostNames: []string{"192.0.2.1", "b.example"}, BytesIn: 10,
		BytesOut: 3<<20 + 1, Limits: 1, Programs: 7, ProgramsFailed: 1,
		Risk: 12 + 5 + 2 + 2 + 4 + 10,
		Risks: []wire.LedgerRisk{{What: "refused", Count: 6, Points: 12}, {What: "limits", Count: 1, Points: 5},
			{What: "changes, in hundreds", Count: 2, Points: 2},
			{What: "hosts reached", Count: 2, Points: 2}, {What: "sent, in MiB", Count: 4, Points: 4},
			{What: "last command failed", Count: 1, Points: 10}}}
	if got, want := plain(s), plain(want); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// plain formats a summary, including the values that it points to.
func plain(s wire.LedgerSummary) string {
	code := "none"
	if s.Code != nil {
		code = fmt.Sprint(*s.Code)
	}
	s.Code = nil
	return fmt.Sprintf("%+v code %s", s, code)
}

// TestSummary_IgnoresUndoneRecords checks that a record marked as undone does not count.
func TestSummary_IgnoresUndoneRecords(t *testing.T) {
	t.Parallel()
	s := summed(&format.Exec{Exec: "1"}, &format.Undone{Seq: 1}, &format.Snapshot{Changes: 5}, &format.Undone{Seq: 3},
		&format.Rollback{}, &format.Undone{Seq: 5},
		&format.Undone{Seq: 5}, &format.Undone{Seq: 99}, &format.Exec{Exec: "2"}, &format.Snapshot{Changes: 3})
	if s.Commands != 1 || s.Snapshots != 1 || s.Changes != 3 || s.Rollbacks != 0 || s.Risk != 1 {
		t.Errorf("%+v", s)
	}
}

func TestSummary_HasNoRiskWithoutChanges(t *testing.T) {
	t.Parallel()
	if s := summed(); s.Risk != 0 || len(s.Risks) != 0 || s.Outcome != "" {
		t.Errorf("%+v", s)
	}
	if s := summed(&format.Exec{Exec: "1"}, &format.Exit{Exec: "1"}); s.Risk != 0 || s.Outcome != "succeeded" {
		t.Errorf("%+v", s)
	}
}

// TestRisk_IsBoundedAndMonotonic checks that the score is between 0 and 100, is the sum of its parts, and does not
// fall when any input rises.
func TestRisk_IsBoundedAndMonotonic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.OneOf(rapid.Int64Range(0, 40), rapid.Int64Range(0, 1<<60))
		draw := func() wire.LedgerSummary {
			s := wire.LedgerSummary{Denied: count.Draw(t, "denied"), NetDenied: count.Draw(t, "net"),
				Limits: count.Draw(t, "limits"), Changes: count.Draw(t, "changes"),
				Hosts: count.Draw(t, "hosts"), BytesOut: count.Draw(t, "bytes"), Lost: rapid.Bool().Draw(t, "lost")}
			if rapid.Bool().Draw(t, "ended") {
				code := rapid.IntRange(0, 3).Draw(t, "code")
				s.Code, s.Outcome = &code, []string{"succeeded", "code 1", "code 2", "SIGKILL"}[code]
			}
			return s
		}
		s := draw()
		score, parts := audit.Risk(&s)
		sum := 0
		for _, p := range parts {
			sum += p.Points
			if p.Points <= 0 || p.Count <= 0 {
				t.Fatalf("%+v", p)
			}
		}
		if score != sum || score < 0 || score > 100 {
			t.Fatalf("%d of %+v", score, parts)
		}
		more := s
		if files := rapid.Int64Range(0, 1<<59).Draw(t, "files"); files > 0 { // they do not count
			with := s
			with.Denied, with.FilesDenied = with.Denied+files, files
			if same, _ := audit.Risk(&with); same != score {
				t.Fatalf("%d, and %d with refused files", score, same)
			}
		}
		for _, n := range []*int64{&more.Denied, &more.NetDenied, &more.Limits, &more.Changes, &more.Hosts, &more.BytesOut} {
			*n += rapid.Int64Range(0, 1<<59).Draw(t, "more")
		}
		if higher, _ := audit.Risk(&more); higher < score {
			t.Fatalf("%d, and %d for more: %+v, %+v", score, higher, s, more)
		}
	})
}

// TestSummary_NamesFirstHosts checks that the first hosts, in order, are named however many a sandbox reaches.
func TestSummary_NamesFirstHosts(t *testing.T) {
	t.Parallel()
	var bodies []format.Body
	for i := range 300 {
		bodies = append(bodies,
			&format.Network{Verdict: "allow", Proto: "tcp", Host: fmt.Sprintf("h%03d.example", (i*7)%300), Count: 1})
	}
	s := summed(bodies...)
	if s.Hosts != 300 || len(s.HostNames) != 20 || s.HostNames[0] != "h000.example" || s.HostNames[19] != "h019.example" ||
		!slices.IsSorted(s.HostNames) {
		t.Errorf("%d: %q", s.Hosts, s.HostNames)
	}
}
