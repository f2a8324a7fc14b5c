//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// lives is the true state of a process.
type lives struct {
	pid     int
	program uint64 // its program, or 0
	parent  uint64 // the program of its parent, or of the nearest ancestor with one, when it was cloned
	exec    string
}

// TestRecord_ProgramsHaveParentAndOneExit checks that each start of a program has the right parent, command and
// predecessor, and that each program has one exit, whatever processes do.
func TestRecord_ProgramsHaveParentAndOneExit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, open := newRecord(), map[uint64]bool{}
		var all []lives
		check := func(out []initlink.ProgramEvent, began int, ended uint64, next bool) *initlink.Program {
			t.Helper()
			var n *initlink.Program
			for _, e := range out {
				if e.Began != nil {
					if n = e.Began; open[n.ID] {
						t.Fatalf("program %d began twice", n.ID)
					}
					open[n.ID] = true
					began--
				} else {
					if !open[e.Ended.ID] || e.Ended.ID != ended || (e.Ended.Next != 0) != next {
						t.Fatalf("%+v ended, want %d", e.Ended, ended)
					}
					delete(open, e.Ended.ID)
					ended = 0
				}
			}
			if began != 0 || ended != 0 {
				t.Fatalf("%d starts missing, or no exit of %d: %+v", began, ended, out)
			}
			return n
		}
		last, execs := 1, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at := -1
			if len(all) > 0 {
				at = rapid.IntRange(-1, len(all)-1).Draw(t, "who")
			}
			if at < 0 { // init starts a command
				last++
				execs++
				check(r.cloned(event{PID: last, Parent: initPID}), 0, 0, false)
				exec := fmt.Sprint("x", execs)
				r.alive[last].exec = exec
				all = append(all, lives{pid: last, exec: exec})
				continue
			}
			p := &all[at]
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				n := check(r.began(event{PID: p.pid, Parent: 7, At: 5}), 1, p.program, true)
				if n.PID != p.pid || n.Parent != p.parent || n.Before != p.program || n.Exec != p.exec || n.Lost {
					t.Fatalf("program %+v of process %+v", n, *p)
				}
				p.program = n.ID
			case 2:
				last++
				check(r.cloned(event{PID: last, Parent: p.pid}), 0, 0, false)
				child := lives{pid: last, parent: p.program, exec: p.exec}
				if child.parent == 0 {
					child.parent = p.parent
				}
				all = append(all, child)
			case 3:
				status := uint32(0)
				check(r.gone(p.pid, time.Unix(1, 0), &status), 0, p.program, false)
				all = append(all[:at], all[at+1:]...)
			}
		}
		if len(r.alive) != len(all) {
			t.Fatalf("the record holds %d processes of %d", len(r.alive), len(all))
		}
	})
}

// TestRecord_BoundsLiveProcesses checks that the record holds a bounded number of live
// processes, and that programs beyond it are still reported, without an exit.
func TestRecord_BoundsLiveProcesses(t *testing.T) {
	t.Parallel()
	r := newRecord()
	for i := range maxAlive + 10 {
		out := r.began(event{PID: i + 2, Parent: initPID})
		if len(out) != 1 || out[0].Began.Lost != (i >= maxAlive) {
			t.Fatalf("process %d: %+v", i, out[0].Began)
		}
	}
	if out := r.gone(maxAlive+5, time.Now(), nil); len(out) != 0 {
		t.Errorf("reported an exit for a program without one: %+v", out)
	}
	ends := r.forget(map[int]int{1: 0, 2: 1, 3: 1}, time.Now())
	if len(ends) != maxAlive-2 || len(r.alive) != 2 || ends[0].Ended.Status != nil {
		t.Errorf("%d exits, %d running", len(ends), len(r.alive))
	}
	if out := r.began(event{PID: 99999, Parent: 2}); out[0].Began.Lost || out[0].Began.Parent != 1 {
		t.Errorf("%+v", out[0].Began)
	}
}

// TestRecord_HandlesReusedPID checks that a PID whose exit was lost belongs to a new process
// when it is used again.
func TestRecord_HandlesReusedPID(t *testing.T) {
	t.Parallel()
	r := newRecord()
	r.cloned(event{PID: 5, Parent: initPID})
	r.alive[5].exec = "one"
	r.began(event{PID: 5, Parent: initPID})
	out := r.cloned(event{PID: 5, Parent: initPID})
	if len(out) != 1 || out[0].Ended == nil || out[0].Ended.Status != nil {
		t.Fatalf("%+v", out)
	}
	if n := r.began(event{PID: 5, Parent: initPID})[0].Began; n.Before != 0 || n.Exec != "" {
		t.Errorf("%+v", n)
	}
}

// TestRecord_ResumedProcessesKeepCommand checks that after a resume each process belongs to
// the command above it, whatever the kernel reports.
func TestRecord_ResumedProcessesKeepCommand(t *testing.T) {
	t.Parallel()
	r := newRecord()
	r.resume(map[int]int{1: 0, 4: 1, 5: 4, 6: 5, 9: 1, 20: 21, 21: 20}, map[int]string{4: "shell"})
	for pid, want := range map[int]string{4: "shell", 5: "shell", 6: "shell", 9: "", 20: ""} {
		if n := r.began(event{PID: pid, Parent: 3})[0].Began; n.Exec != want || n.Lost {
			t.Errorf("%d: %+v", pid, n)
		}
	}
	if r.alive[initPID] != nil {
		t.Error("init was recorded")
	}
}
