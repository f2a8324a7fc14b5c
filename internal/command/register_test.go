//go:build linux

package command

import (
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// TestRegister_StatesGoOneWay checks that the state of a command only advances, whatever is noted later.
func TestRegister_StatesGoOneWay(t *testing.T) {
	t.Parallel()
	g := NewRegister()
	c := newCommand("a", "x1", time.Unix(1, 0), "s1")
	g.add(c)
	if got := g.Open(); len(got) != 1 || got[0].ID != "x1" || got[0].Seq != 0 {
		t.Fatalf("opening: %+v", got)
	}
	g.runs(c, 7)
	if _, known := g.endOf(c); known || c.state != running {
		t.Errorf("running: state %d, exit is known: %v", c.state, known)
	}
	g.ends(c, Ended{Exit: wire.Exit{Code: 3}})
	g.ends(c, Ended{Exit: wire.Exit{Code: 4}}) // the first exit counts
	g.runs(c, 7)
	if end, known := g.endOf(c); !known || end.Code != 3 {
		t.Errorf("ending: %+v, %v", end, known)
	}
	g.settle(c)
	g.settle(c)
	g.ends(c, Ended{Exit: wire.Exit{Code: 5}})
	if g.isOpen(c) || g.In("a") != 0 || c.state != settled {
		t.Errorf("settled: state %d, %d are open", c.state, g.In("a"))
	}
}

// TestRegister_ReplacedCommand checks that the exit of a command is not taken for that of a later command with its
// id.
func TestRegister_ReplacedCommand(t *testing.T) {
	t.Parallel()
	g := NewRegister()
	before, after := newCommand("a", "x1", time.Unix(1, 0), ""), newCommand("a", "x1", time.Unix(2, 0), "")
	g.add(before)
	g.replace(after)
	g.settle(before)
	if g.isOpen(before) || !g.isOpen(after) {
		t.Errorf("open: before %v, after %v", g.isOpen(before), g.isOpen(after))
	}
}

// TestRegister_AddKeepsRecordedState covers a command that an earlier daemon recorded and that this one starts: what
// is recorded is kept.
func TestRegister_AddKeepsRecordedState(t *testing.T) {
	t.Parallel()
	g := NewRegister()
	g.Found(audit.OpenCommand{ID: "x1", Sandbox: "a", Seq: 5, At: time.Unix(1, 0), Before: "s1"})
	c := newCommand("a", "x1", time.Unix(9, 0), "s9")
	g.add(c)
	g.starts(c, time.Unix(10, 0))
	if !c.found || c.seq != 5 || !c.at.Equal(time.Unix(1, 0)) || c.before != "s1" || c.state != running {
		t.Errorf("%+v", c)
	}
}

func TestRegister_AppliesRecords(t *testing.T) {
	t.Parallel()
	g := NewRegister()
	hear := func(seq int64, b format.Body) { g.Hear(&format.Record{Sandbox: "a", Seq: seq, Body: b}) }
	hear(1, &format.Exec{Exec: "x1"})
	hear(2, &format.Exec{Exec: "x2"})
	hear(3, &format.Exec{Exec: "x3"})
	hear(4, &format.Exit{Exec: "x1"})
	hear(5, &format.Undone{Seq: 2})
	if got := g.Open(); len(got) != 1 || got[0].ID != "x3" || got[0].Seq != 3 {
		t.Errorf("%+v are open, want x3 alone", got)
	}
}

// TestRegister_Denied checks that denials are counted only for the commands of their sandbox.
func TestRegister_Denied(t *testing.T) {
	t.Parallel()
	g := NewRegister()
	own, other := newCommand("a", "x1", time.Unix(1, 0), ""), newCommand("b", "x1", time.Unix(1, 0), "")
	g.add(own)
	g.add(other)
	g.Denied("a", []ledger.Draft{{Body: &format.Denial{}}, {Body: &format.Network{Verdict: wire.VerdictDeny, Count: 3}},
		{Body: &format.Network{Verdict: wire.VerdictAllow, Count: 3}}})
	if n, _ := g.denied(own); n != 4 {
		t.Errorf("%d denials, want 4", n)
	}
	if n, _ := g.denied(other); n != 0 {
		t.Errorf("%d denials of another sandbox", n)
	}
}
