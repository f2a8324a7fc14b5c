//go:build linux

package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// gateTells appends events to the journal of a sandbox, as its gate does.
func (h *home) gateTells(id timeline.SandboxID, evs ...wire.NetEvent) {
	h.t.Helper()
	if err := os.MkdirAll(h.journalDir(id), 0o700); err != nil {
		h.t.Fatal(err)
	}
	j, err := journal.Open(h.journalAt(id))
	if err != nil {
		h.t.Fatal(err)
	}
	defer j.Close()
	for _, ev := range evs {
		ev.Time = time.Now()
		if err := j.Append(ev); err != nil {
			h.t.Fatal(err)
		}
	}
}

// unread calls do while the engine does not read the journal of a sandbox, which it otherwise reads in the
// background.
func (h *home) unread(id timeline.SandboxID, do func()) {
	h.t.Helper()
	defer h.journals.Hold(id)()
	do()
}

// hosts returns the hosts of the network records of a sandbox.
func (h *home) hosts(id timeline.SandboxID) (out []string) {
	h.t.Helper()
	for _, r := range h.told(id, format.KindNetwork) {
		out = append(out, r.Body.(*format.Network).Host)
	}
	return out
}

func to(host string) wire.NetEvent {
	return wire.NetEvent{Kind: wire.NetDeny, Proto: "tcp", Name: host, Port: 443, Verdict: wire.VerdictDeny,
		Reason: "no rule names it", Policy: "sha256:1"}
}

func TestJournal_IsRecordedOnce(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	id := h.id("a")
	again := func() { h.journals.CatchUp(ctx, id) }
	again()
	h.gateTells(id, to("one.example"), to("one.example"),
		wire.NetEvent{Kind: wire.NetEnd, Proto: "tcp", Name: "two.example", In: 5, Out: 7},
		wire.NetEvent{Kind: wire.NetPolicy, Reason: "coppice net allow", Policy: "sha256:2"},
		wire.NetEvent{Kind: wire.NetPolicy, Reason: wire.NetRulesEnded, Policy: "sha256:3"},
		wire.NetEvent{Kind: wire.NetDecoy, Decoy: "/home/me/.aws/credentials", Reason: "opened"},
		wire.NetEvent{Kind: wire.NetAnswer, Name: "three.example", Method: "GET", Path: "/x", Status: 404})
	again()
	again()
	want := []string{"one.example", "two.example", "three.example"}
	if got := h.hosts(id); !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	all := h.told(id, format.KindNetwork)
	one, two := all[0].Body.(*format.Network), all[1].Body.(*format.Network)
	if one.Count != 2 || one.Verdict != "deny" || one.Port != 443 || all[0].Policy != "sha256:1" ||
		all[0].Observer != format.ByGate || two.BytesIn != 5 || two.BytesOut != 7 {
		t.Errorf("%+v, %+v", one, two)
	}
	if p := h.told(id, format.KindPolicy); len(p) != 1 || p[0].Observer != format.ByGate || p[0].Body.(*format.Policy).
		After != "sha256:3" {
		t.Errorf("%d changes of the policy", len(p))
	}
	if d := last[*format.Denial](h, id); d == nil || d.Path != "/home/me/.aws/credentials" {
		t.Errorf("%+v", d)
	}

	// A crash before the records are appended, and restarts afterwards: each event is recorded once.
	h.unread(id, func() {
		h.gateTells(id, to("four.example"))
		var told struct{ Next journal.Cursor } // the position up to which records exist
		text, err := os.ReadFile(filepath.Join(h.sandboxDir(id), journalPosition))
		if err == nil {
			err = json.Unmarshal(text, &told)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, next, _, err := journal.From(h.journalAt(id), told.Next)
		if err != nil {
			t.Fatal(err)
		}
		seq, err := h.Ledger.Last(ctx, format.Sandbox(id))
		if err != nil {
			t.Fatal(err)
		}
		text, err = json.Marshal(map[string]any{"done": told.Next, "next": next, "seq": seq})
		if err == nil {
			err = vfs.WriteFile(vfs.OS(), filepath.Join(h.sandboxDir(id), journalPosition), text)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	for i := range 3 {
		h.close()
		h.open()
		again()
		want := slices.Concat(want, []string{"four.example"})
		if got := h.hosts(id); !slices.Equal(got, want) {
			t.Fatalf("after %d restarts: %q", i+1, got)
		}
	}

	// Events that the journal dropped are recorded as lost.
	h.unread(id, func() {
		long := to("long.example")
		for i := range 9000 {
			long.Rule = fmt.Sprintf("%0800d", i)
			if i%1000 == 0 {
				h.gateTells(id, to(fmt.Sprint(i)))
			}
			if err := h.NoteEvent(id, long); err != nil {
				t.Fatal(err)
			}
		}
	})
	again()
	if l := last[*format.Lost](h, id); l == nil || l.Of != "network" {
		t.Errorf("%+v", l)
	}
	if _, err := h.Ledger.Verify(ctx, format.Sandbox(id), nil, nil); err != nil {
		t.Error(err)
	}
}
