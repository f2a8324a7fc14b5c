//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// patience bounds the wait for an event from the other side. Only a sandbox that has compromised its init, or starts
// programs faster than they are read, causes such a wait.
const patience = 2 * time.Second

// maxHeld bounds the refusals that are held until init answers a spawn. Further ones are reported without a command.
const maxHeld = 256

// programs reports the programs of the sandbox and their refused system calls to the keeper, from the events of its
// kernel.
//
// The kernel knows processes, and init knows which of them are commands, so each start of a child of init waits for the
// Spawned that belongs to it. All programs of a command are reported before its exit.
type programs struct {
	kernel *kernel
	link   *initlink.Link
	traced bool     // whether programs are recorded; otherwise the kernel reports only exits
	from   *os.File // the kernel's events

	mu       sync.Mutex
	changed  *sync.Cond             // of mu
	record   *record                // guarded by mu
	asked    []string               // guarded by mu; ids of the spawns that were not answered yet
	held     []initlink.RefusedCall // guarded by mu; see refused
	commands map[int]string         // guarded by mu; ids of the running commands, by pid
	marks    int                    // guarded by mu; number of marks that were read
	marked   int                    // guarded by mu; number of marks that were requested
	dropped  bool                   // guarded by mu; whether events were dropped since a command began
	over     bool                   // guarded by mu; the kernel sends no more events
}

// watchPrograms makes the kernel report programs, and answer calls as the plan says, from now on.
func watchPrograms(k *kernel, g plan.Guest, tally *os.File, link *initlink.Link) (*programs, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fault.Wrap(err, "create the pipe from the sandbox's kernel")
	}
	_ = unix.SetNonblock(ends[0], true)
	p := &programs{kernel: k, link: link, traced: g.Trace, from: os.NewFile(uintptr(ends[0]), "programs"),
		record: newRecord(), commands: map[int]string{}}
	p.changed = sync.NewCond(&p.mu)
	to := os.NewFile(uintptr(ends[1]), "programs") // blocking, at the kernel's end
	defer to.Close()
	return p, failed(k.trace(g, tally, to), "enable reports of programs in the sandbox's kernel")
}

// asks records a spawn that is sent to init.
func (p *programs) asks(m initlink.Message) {
	var s initlink.Spawn
	if m.Decode(&s) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, s.Exec)
}

// spawned records the answer to a spawn, after the keeper has received it.
func (p *programs) spawned(m initlink.Message) error {
	var s initlink.Spawned
	if err := m.Decode(&s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 {
		return nil
	}
	if s.PID != 0 {
		p.commands[s.PID] = p.asked[0]
		p.dropped = false
	}
	p.asked = p.asked[1:]
	p.changed.Broadcast()
	return p.refused(initlink.Refused{Calls: p.held})
}

// adopted registers a command of a resumed sandbox.
func (p *programs) adopted(m initlink.Message) {
	var a initlink.Adopt
	if m.Decode(&a) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commands[a.PID] = a.Exec
}

// exited waits until the kernel has reported the exit that init now reports. If no process is left, the programs so far
// do not label a later snapshot.
func (p *programs) exited(m initlink.Message) {
	var x initlink.Exited
	if m.Decode(&x) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.await(func() bool { _, lives := p.commands[x.PID]; return !lives || p.dropped })
	delete(p.commands, x.PID)
	if x.Alone {
		p.record.labels.Take()
	}
}

// labels returns the programs of a frozen sandbox since the previous call.
func (p *programs) labels() []wire.Program {
	if !p.traced {
		return nil
	}
	err := p.kernel.mark()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.marked++
		p.await(func() bool { return p.marks >= p.marked })
	}
	return p.record.labels.Take()
}

// await waits until so returns true, at most for patience. p.mu is held, and released during the wait.
func (p *programs) await(so func() bool) {
	late := false
	t := time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		late = true
		p.changed.Broadcast()
	})
	defer t.Stop()
	for !so() && !late && !p.over {
		p.changed.Wait()
	}
}

// resumed starts to follow a resumed sandbox after all of its commands were adopted.
func (p *programs) resumed() {
	go func() {
		if parents, err := p.kernel.processes(); err == nil {
			p.mu.Lock()
			p.record.resume(parents, p.commands)
			p.mu.Unlock()
		}
		p.follow()
	}()
}

// follow reports the kernel's events until their end, which is that of the sandbox.
func (p *programs) follow() {
	defer p.from.Close()
	for {
		b, err := readBatch(p.from)
		if err == nil {
			err = p.tell(b)
		}
		if err != nil {
			p.end(err)
			return
		}
	}
}

// end ends the sandbox, because its kernel has exited or sent invalid data, after which no program would be recorded.
func (p *programs) end(err error) {
	if !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "coppice-gvisor: programs:", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.changed.Broadcast()
	p.link.Shutdown()
}

// tell reports a batch.
func (p *programs) tell(b batch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := initlink.Programs{Dropped: b.Dropped}
	if b.Dropped > 0 {
		p.dropped = true
		if len(p.record.alive) > maxAlive/2 {
			if parents, err := p.kernel.processes(); err == nil {
				out.Events = p.record.forget(parents, time.Now())
			}
		}
	}
	send := func() error {
		if len(out.Events) == 0 && out.Dropped == 0 {
			return nil
		}
		defer func() { out = initlink.Programs{} }()
		return p.link.Send(initlink.MsgPrograms, out)
	}
	if b.Refused != nil {
		b.Refused.Calls = slices.Concat(p.held, b.Refused.Calls)
		if err := p.refused(*b.Refused); err != nil {
			return err
		}
	}
	for _, e := range b.Events {
		switch e.Kind {
		case eventMark:
			p.marks++
		case eventCloned:
			out.Events = append(out.Events, p.record.cloned(e)...)
		case eventBegan:
			if p.isCommand(e) {
				if err := send(); err != nil { // a caller of await may wait for this
					return err
				}
				p.name(e.PID)
			}
			out.Events = append(out.Events, p.record.began(e)...)
		case eventEnded:
			if p.traced {
				out.Events = append(out.Events, p.record.gone(e.PID, time.Unix(0, e.At), &e.Status)...)
			}
			delete(p.commands, e.PID)
			p.changed.Broadcast() // the next event may wait for its Exited
		default:
			return fmt.Errorf("unknown event %q", e.Kind)
		}
	}
	err := send()
	p.changed.Broadcast()
	return err
}

// refused reports refusals. While a spawn is unanswered, it holds back those of commands that the keeper may not know
// yet. p.mu is held.
func (p *programs) refused(r initlink.Refused) error {
	tell := r.Calls[:0:0]
	p.held = nil
	for _, c := range r.Calls {
		if len(p.asked) > 0 && len(p.held) < maxHeld && c.Command != 0 && p.commands[c.Command] == "" {
			p.held = append(p.held, c)
		} else {
			tell = append(tell, c)
		}
	}
	if r.Calls = tell; r.Empty() {
		return nil
	}
	return p.link.Send(initlink.MsgRefused, r)
}

// isCommand reports whether a start may be that of a command that was not identified yet. p.mu is held.
func (p *programs) isCommand(e event) bool {
	a := p.record.alive[e.PID]
	return e.Parent == initPID && (a == nil || a.id == 0 && a.parent == 0 && a.exec == "")
}

// name waits until init has reported which command a process is. p.mu is held, and released during the wait.
func (p *programs) name(pid int) {
	p.await(func() bool { return p.commands[pid] != "" || len(p.asked) == 0 })
	if a := p.record.alive[pid]; a != nil {
		a.exec = p.commands[pid]
		return
	}
	p.record.keep(pid, &process{exec: p.commands[pid]})
}
