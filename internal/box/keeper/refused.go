//go:build linux && (amd64 || arm64)

package keeper

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/refusals"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
)

// refused writes refused system calls to the journal. It runs in the goroutine of receive, except for tally, so the
// refusals of a command are recorded before its exit.
type refused struct {
	at    journal.Place
	tally *refusals.Tally  // all refusals, counted by init
	told  uint64           // number of those that were reported
	tell  *journal.Journal // nil until the first record
	execs map[int]string   // commands by their pids, including those that have exited
}

// maxRefusedExecs is how many commands are remembered.
const maxRefusedExecs = 4096

// watchRefused returns the descriptor of the tally in which init counts refusals. The caller closes it.
func (k *keeper) watchRefused() (fd int, err error) {
	r := &refused{at: journal.Place{Dir: k.config.Journal, Key: k.config.JournalKey}, execs: map[int]string{}}
	if r.tally, fd, err = refusals.NewTally(); err != nil {
		return -1, err
	}
	k.refused = r
	return fd, nil
}

// started records a command. r may be nil.
func (r *refused) started(pid int, exec string) {
	if r == nil {
		return
	}
	for other := range r.execs {
		if len(r.execs) < maxRefusedExecs {
			break
		}
		delete(r.execs, other)
	}
	r.execs[pid] = exec
}

// recordRefused records the refusals that init reported.
func (k *keeper) recordRefused(m initlink.Refused) {
	r := k.refused
	if r == nil {
		return
	}
	for _, c := range m.Calls {
		ev := wire.NetEvent{Syscall: c.Call, Program: c.Program, PID: c.PID, Reason: c.Errno, Exec: r.execs[c.Command]}
		if f := c.File; f != nil {
			ev.Path, ev.Op, ev.Rule, ev.First, ev.Last = f.Path, f.Op, f.Rule, f.First.UTC(), f.Last.UTC()
		}
		k.mu.Lock()
		e := k.byPID[c.Command]
		k.mu.Unlock()
		switch {
		case e != nil:
			e.denials += c.Count
		case c.Lives: // its pid belonged to a command before
			ev.Exec = ""
		}
		r.append(ev, c.Count)
	}
	if m.More > 0 {
		r.append(wire.NetEvent{Reason: wire.RefusedUntold}, m.More)
	}
	if m.Files > 0 {
		r.append(wire.NetEvent{Reason: wire.RefusedFiles}, m.Files)
	}
}

// recordKilled records that the filter killed a command, if the wait status shows it. In tier gvisor there is no
// filter.
func (k *keeper) recordKilled(e *execution, ws unix.WaitStatus) {
	if k.refused == nil || k.config.Tier == plan.TierGvisor || !ws.Signaled() || ws.Signal() != unix.SIGSYS {
		return
	}
	k.refused.tally.Add()
	e.denials++
	k.refused.append(wire.NetEvent{PID: e.pid, Exec: e.id, Reason: wire.RefusedKilled}, 1)
}

// append records one event. If that fails, close counts the event as missing.
func (r *refused) append(ev wire.NetEvent, count int64) {
	err := error(nil)
	if r.tell == nil {
		r.tell, err = journal.Open(r.at)
	}
	if err == nil {
		ev.Time, ev.Kind, ev.Verdict = time.Now().UTC(), wire.NetRefused, wire.VerdictDeny
		if count > 1 {
			ev.Count = int(count)
		}
		err = r.tell.Append(ev)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: could not record a refused system call:", err)
		return
	}
	r.told += uint64(count)
}

// close records how many refusals init did not report or the journal did not store. Init is gone, and receive has
// returned. r may be nil.
func (r *refused) close() {
	if r == nil {
		return
	}
	if missing := r.tally.Count() - r.told; missing > 0 {
		r.append(wire.NetEvent{Reason: wire.RefusedUntold}, int64(missing))
	}
	if r.tell == nil {
		return
	}
	if err := r.tell.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: close the journal of refused system calls:", err)
	}
}
