//go:build linux && (amd64 || arm64)

package process

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/policy"
)

// warden keeps a gate to its phases, and the journal up to date.
type warden struct {
	gate    *gate.Gate
	journal *journal.Journal
	lost    atomic.Int64 // events that could not be written
	blind   atomic.Bool  // the journal cannot be written: nothing passes

	mu     sync.Mutex
	phases []phase // guarded by mu; never empty
	// inspects says that the first phases look at HTTP requests, so that the sandbox
	// trusts the gate's authority. Guarded by mu.
	inspects bool
	force    string // guarded by mu; digest of the policy in force, "" where nothing passes

	digest  atomic.Pointer[string] // force, for events
	changed chan struct{}          // holds one token
	stop    chan struct{}
	own     sync.WaitGroup
}

// phase is a plan.Phase that was read.
type phase struct {
	rules    gate.Policy
	inspects bool // it looks at HTTP requests
	digest   string
	until    time.Time
}

// parse reads phases, and refuses what is not what its digest says.
func parse(phases []plan.Phase) ([]phase, error) {
	if len(phases) == 0 || !phases[len(phases)-1].Until.IsZero() {
		return nil, fault.New(fault.Internal, "a gate without a policy that holds for ever")
	}
	out := make([]phase, len(phases))
	for i, p := range phases {
		said, err := policy.ParseCanonical([]byte(p.Policy))
		if err != nil {
			return nil, fault.Wrap(err, "read the policy of the gate")
		}
		digest, err := said.Digest()
		if err != nil {
			return nil, fault.Wrap(err, "read the policy of the gate")
		}
		if digest != p.Digest {
			return nil, fault.New(fault.Corrupt, "the policy that should be %s is %s", p.Digest, digest)
		}
		out[i] = phase{gate.Rules(said.Network), said.Network.Inspects(), digest, p.Until}
	}
	return out, nil
}

// due gives the phase that holds at a time.
func due(phases []phase, now time.Time) phase {
	for _, p := range phases {
		if p.until.IsZero() || now.Before(p.until) {
			return p
		}
	}
	return phases[len(phases)-1]
}

// take puts phases in the place of others; step carries it out.
func (w *warden) take(phases []plan.Phase) error {
	read, err := parse(phases)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holdLocked(read)
}

// holdLocked puts phases in the place of others, if the sandbox trusts what they need.
func (w *warden) holdLocked(read []phase) error {
	inspects := slices.ContainsFunc(read, func(p phase) bool { return p.inspects })
	switch {
	case w.phases == nil:
		w.inspects = inspects
	case inspects && !w.inspects:
		return fault.New(fault.Unsupported, "rules about HTTP requests need a certificate in the sandbox, which it is given as it starts").
			WithHint("stop the sandbox and say it again: coppice stop NAME; the next command starts it")
	}
	w.phases = read
	return nil
}

// keepTo changes the policy. It is in force when keepTo returns.
func (w *warden) keepTo(phases []plan.Phase) error {
	read, err := parse(phases)
	if err != nil {
		return err
	}
	w.mu.Lock()
	if err = w.holdLocked(read); err == nil {
		w.stepLocked()
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case w.changed <- struct{}{}:
	default: // keepTime will look in any case
	}
	return nil
}

// step puts in force what is due; changed says that it is another policy than before,
// and that neither of the two is the one that lets nothing pass.
func (w *warden) step() (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stepLocked()
}

// stepLocked is step for who holds w.mu.
func (w *warden) stepLocked() (changed bool) {
	p := due(w.phases, time.Now())
	if w.blind.Load() {
		p = phase{}
	}
	if p.digest == w.force && w.digest.Load() != nil {
		return false
	}
	changed = w.force != "" && p.digest != ""
	w.force = p.digest
	w.digest.Store(&p.digest)
	w.gate.SetPolicy(p.rules)
	return changed
}

// often is how often the time is looked at while a phase has an end, and the journal
// while it cannot be written. Timers stand still while the machine sleeps, and ends
// do not.
const often = time.Second

// keepTime steps when an end has come, of which it tells the journal, and looks whether
// that can be written again.
func (w *warden) keepTime() {
	for {
		var tick <-chan time.Time
		w.mu.Lock()
		if now := time.Now(); w.blind.Load() {
			tick = time.After(often)
		} else if p := due(w.phases, now); !p.until.IsZero() {
			tick = time.After(min(often, p.until.Sub(now)))
		}
		w.mu.Unlock()
		select {
		case <-w.stop:
			return
		case <-w.changed:
		case <-tick:
		}
		if w.blind.Load() {
			w.recover()
		}
		if w.step() { // keepTo has carried out its own
			w.tell(wire.NetEvent{Time: time.Now(), Kind: wire.NetPolicy, Reason: wire.NetRulesEnded, Policy: *w.digest.Load()})
		}
	}
}

// recover ends a blindness, when its own event can be written.
func (w *warden) recover() {
	err := w.journal.Append(wire.NetEvent{
		Time: time.Now(), Kind: wire.NetDeny, Verdict: gate.Deny.String(),
		Reason: fmt.Sprintf("the journal could not be written, so nothing passed; %d events are not in it", w.lost.Load()),
	})
	if err == nil {
		w.blind.Store(false)
	}
}

// report tells the journal of an event. What cannot be told is not to happen: while
// the journal cannot be written, nothing passes.
func (w *warden) report(e gate.Event) {
	ev := wire.NetEvent{
		Time: e.Time, Kind: string(e.Kind), Proto: string(e.Proto), Name: e.Name, Port: int(e.Port),
		Verdict: e.Verdict.String(), Rule: e.Rule, Reason: e.Reason, Hint: e.Hint, In: e.In, Out: e.Out,
		Method: e.Method, Path: e.Path, Status: e.Status, Until: e.Until,
	}
	if e.Addr.IsValid() {
		ev.Addr = e.Addr.String()
	}
	if e.Count > 1 {
		ev.Count = e.Count
	}
	if d := w.digest.Load(); d != nil {
		ev.Policy = *d
	}
	w.tell(ev)
}

// tell writes an event, or lets nothing pass until that is possible.
func (w *warden) tell(ev wire.NetEvent) {
	err := w.journal.Append(ev)
	if err == nil {
		return
	}
	w.lost.Add(1)
	if w.blind.Swap(true) {
		return
	}
	fmt.Fprintln(os.Stderr, "coppice-gate: nothing passes:", err)
	w.step()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// close ends the gate, and tells what is left to tell.
func (w *warden) close() {
	close(w.stop)
	w.own.Wait()
	if err := w.gate.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
	}
	if err := w.journal.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
	}
}
