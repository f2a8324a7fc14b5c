//go:build linux

package gitwork

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/proposal"
)

// retold returns the proposal of records with these bodies, numbered from 1.
func retold(bodies ...format.Body) *proposal.Proposal {
	var t Retelling
	for i, b := range bodies {
		t.Hear(&format.Record{Sandbox: "0123456789ab", Seq: int64(i + 1), Time: time.Unix(int64(i), 0).UTC(), Body: b})
	}
	p := &proposal.Proposal{}
	t.Into(p)
	return p
}

func TestProposal_ReportsAuditRecords(t *testing.T) {
	t.Parallel()
	p := retold(
		&format.Exec{Exec: "1", Args: []string{"make"}, Dir: "/src"},
		&format.Exec{Exec: "2", Args: []string{"refused"}},
		&format.Undone{Seq: 2},
		&format.Program{Exec: "1", Path: "/bin/cc", Count: 3},
		&format.Exit{Exec: "1", Code: 2, DurationNanos: 5_000_000},
		&format.Exec{Exec: "3", Args: []string{"/bin/sh", "-c", insideGit, "coppice"}},
		&format.Exit{Exec: "3", Code: 137, Signal: "KILL"},
		&format.Exec{Exec: "4", Args: []string{"sleep", "\x00\xff"}},
		&format.Denial{Path: "/etc/shadow", Syscall: "open", Count: 2, Reason: "policy"},
		&format.Denial{Syscall: "ptrace", Count: 1, Reason: "never"},
		&format.Network{Verdict: "allow", Proto: "tcp", Host: "a.example", Port: 443, Count: 9},
		&format.Network{Verdict: "deny", Proto: "tcp", Host: "b.example", Port: 443, Count: 4, Reason: "no rule"},
		&format.Network{Verdict: "deny", Proto: "tcp", Host: "b.example", Port: 443, Count: 1, Reason: "no rule"},
		&format.Limit{Limit: "time"},
	)
	want := []proposal.Command{
		{Record: 1, Args: []string{"make"}, Dir: "/src", Ended: true, Code: 2, MS: 5, Programs: 3},
		{Record: 6, Args: []string{"coppice:", "take", "out", "what", "was", "done"}, Ended: true, Code: 137,
			Reason: "SIGKILL"},
		{Record: 8, Args: []string{"sleep", "\ufffd"}},
	}
	if len(p.Commands) != len(want) {
		t.Fatalf("%+v", p.Commands)
	}
	for i, c := range p.Commands {
		if w := want[i]; c.Record != w.Record || strings.Join(c.Args, "|") != strings.Join(w.Args, "|") ||
			c.Ended != w.Ended || c.Code != w.Code || c.Reason != w.Reason || c.MS != w.MS || c.Programs != w.Programs ||
			c.Dir != w.Dir {
			t.Errorf("got %+v, want %+v", c, w)
		}
	}
	refused := []proposal.Refused{
		{Kind: "network", What: "tcp b.example:443", Why: "no rule", Count: 5},
		{Kind: "file", What: "open /etc/shadow", Why: "policy", Count: 2},
		{Kind: "limit", What: "time", Count: 1},
		{Kind: "syscall", What: "ptrace", Why: "never", Count: 1},
	}
	if len(p.Refused) != len(refused) {
		t.Fatalf("%+v", p.Refused)
	}
	for i, r := range p.Refused {
		if r != refused[i] {
			t.Errorf("got %+v, want %+v", r, refused[i])
		}
	}
	if l := p.Ledger; l.Records != 14 || l.Commands != 3 || l.Programs != 3 || l.NetAllowed != 9 || l.NetRefused != 5 ||
		l.FileRefused != 3 {
		t.Errorf("%+v", l)
	}
}

// TestProposal_BoundsReportedRecords checks that the commands and refusals in a proposal are limited, whatever
// their number in the sandbox.
func TestProposal_BoundsReportedRecords(t *testing.T) {
	t.Parallel()
	var bodies []format.Body
	for i := range 5*proposal.MaxCommands + 7 {
		bodies = append(bodies, &format.Exec{Exec: strconv.Itoa(i), Args: []string{strconv.Itoa(i)}})
	}
	for i := range maxRefusals + 50 {
		bodies = append(bodies, &format.Denial{Path: strconv.Itoa(i), Count: 1})
	}
	p := retold(bodies...)
	if n := len(p.Commands); n != proposal.MaxCommands ||
		p.Commands[n-1].Args[0] != strconv.Itoa(5*proposal.MaxCommands+6) {
		t.Errorf("%d commands", n)
	}
	if len(p.Refused) != proposal.MaxRefused || p.Refused[0].Count < 50 ||
		!strings.HasPrefix(p.Refused[0].What, "others") {
		t.Errorf("%d refusals, %+v", len(p.Refused), p.Refused[0])
	}
}
