//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// TestPrograms_ReportCommandBeforeRefusals checks that the monitor learns of a command before it learns of refused
// calls of that command, in whichever order the conductor receives them.
func TestPrograms_ReportCommandBeforeRefusals(t *testing.T) {
	t.Parallel()
	ours, keeper := initlink.NewLinks()
	defer ours.Close()
	defer keeper.Close()
	p := &programs{link: ours, record: newRecord(), commands: map[int]string{}}
	p.changed = sync.NewCond(&p.mu)
	message := func(kind initlink.Kind, v any) initlink.Message {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return initlink.Message{Kind: kind, Payload: b}
	}
	spawned := func(pid int) {
		t.Helper()
		if err := p.spawned(message(initlink.MsgSpawned, initlink.Spawned{PID: pid})); err != nil {
			t.Fatal(err)
		}
		if err := ours.Send(initlink.MsgCounted, initlink.Counted{Procs: pid}); err != nil { // a mark
			t.Fatal(err)
		}
	}
	refused := func(commands ...int) {
		t.Helper()
		r := initlink.Refused{}
		for _, c := range commands {
			r.Calls = append(r.Calls, initlink.RefusedCall{Call: "bpf", Command: c, Count: 1})
		}
		if err := p.tell(batch{Refused: &r}); err != nil {
			t.Fatal(err)
		}
	}
	told := func(want ...int) {
		t.Helper()
		for _, w := range want {
			m, err := keeper.Recv()
			if err != nil {
				t.Fatal(err)
			}
			switch m.Kind {
			case initlink.MsgRefused:
				var r initlink.Refused
				if err := m.Decode(&r); err != nil || len(r.Calls) != 1 || r.Calls[0].Command != w {
					t.Fatalf("%+v, %v; want a refusal of command %d", r, err, w)
				}
			case initlink.MsgCounted:
				if w != 0 {
					t.Fatalf("no refusal; want one of command %d", w)
				}
			}
		}
	}
	p.asks(message(initlink.MsgSpawn, initlink.Spawn{Exec: "x1"}))
	p.asks(message(initlink.MsgSpawn, initlink.Spawn{Exec: "x2"}))
	refused(8) // may be of x1 or x2
	spawned(7)
	told(0)
	refused(7)
	told(7)
	spawned(8)
	told(8, 0)
	refused(9) // belongs to neither, and no other command is starting
	told(9)
	p.asks(message(initlink.MsgSpawn, initlink.Spawn{Exec: "x3"}))
	refused(10)
	spawned(0) // the command did not start
	told(10, 0)
	p.asks(message(initlink.MsgSpawn, initlink.Spawn{Exec: "x4"}))
	p.asks(message(initlink.MsgSpawn, initlink.Spawn{Exec: "x5"}))
	refused(12)
	refused(11)
	spawned(11) // may exit before the other spawn is answered
	told(11, 0)
	spawned(12)
	told(12, 0)
}
