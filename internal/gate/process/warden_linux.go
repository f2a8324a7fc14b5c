//go:build linux && (amd64 || arm64)

package process

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/gate/entrance"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

// warden enforces the phases of a policy on a gate, and writes its events to the journal.
type warden struct {
	sandbox  string // its ID, for hints
	wallet   *wallet.Wallet
	line     *line.Client // to the broker of secrets; nil without; used by the goroutine of serve
	gate     *gate.Gate
	entrance *entrance.Entrance // nil if the sandbox has a network stack
	journal  *journal.Journal
	lost     atomic.Int64 // events that could not be written
	blind    atomic.Bool  // the journal cannot be written: nothing passes
	stops    bool         // a token of a decoy kills the sandbox's processes

	clock func() time.Time

	mu     sync.Mutex
	phases []phase // guarded by mu; never empty
	// ended is the digest of the policy after rules expired, if the journal has no record of that yet; else nil.
	// Guarded by mu.
	ended *string
	// inspects means that the sandbox trusts the gate's authority: the first phases inspect HTTP requests, or there were
	// grants, or could be later.
	// Guarded by mu.
	inspects bool
	force    string // guarded by mu; digest of the policy in force, "" if nothing passes

	digest  atomic.Pointer[string] // force, for events
	changed chan struct{}          // holds one token
	stop    chan struct{}
	own     sync.WaitGroup
}

// phase is a parsed plan.Phase.
type phase struct {
	rules    gate.Policy
	inspects bool // it inspects HTTP requests
	digest   string
	until    time.Time
}

// parse parses phases, and refuses one that does not match its digest.
func parse(phases []plan.Phase) ([]phase, error) {
	if len(phases) == 0 || !phases[len(phases)-1].Until.IsZero() {
		return nil, fault.New(fault.Internal, "invalid gate policies: the last must not expire")
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
			return nil, fault.New(fault.Corrupt, "expected policy %s, got %s", p.Digest, digest)
		}
		out[i] = phase{gate.Rules(said.Network), said.Network.Inspects(), digest, p.Until}
	}
	return out, nil
}

// rest returns the phases that have not ended at a time; the first of them is in force.
func rest(phases []phase, now time.Time) []phase {
	for len(phases) > 1 && !now.Before(phases[0].until) {
		phases = phases[1:]
	}
	return phases
}

// take replaces the phases; step puts them in force.
func (w *warden) take(phases []plan.Phase) error {
	read, err := parse(phases)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holdLocked(read)
}

// holdLocked replaces the phases, if the sandbox trusts the authority that they need.
func (w *warden) holdLocked(read []phase) error {
	inspects := slices.ContainsFunc(read, func(p phase) bool { return p.inspects })
	switch {
	case w.phases == nil:
		w.inspects = inspects
	case inspects && !w.inspects:
		return fault.New(fault.Unsupported,
			"rules about HTTP requests require a certificate, which a sandbox gets when it starts").
			WithHint("stop the sandbox, then try again: coppice stop NAME; the next command starts it")
	}
	w.phases = read
	return nil
}

// keepTo changes the policy. It is in force when keepTo returns. The caller knows which earlier phases have ended by
// now and does not send them; if keepTime has not recorded that yet, keepTo does.
func (w *warden) keepTo(phases []plan.Phase) error {
	read, err := parse(phases)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.stepLocked()
	if err = w.holdLocked(read); err == nil {
		w.stepLocked()
	}
	w.mu.Unlock()
	w.recordExpired()
	if err != nil {
		return err
	}
	select {
	case w.changed <- struct{}{}:
	default: // keepTime will check in any case
	}
	return nil
}

// step puts the current phase in force.
func (w *warden) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stepLocked()
}

// stepLocked is step with w.mu held.
func (w *warden) stepLocked() {
	left := rest(w.phases, w.clock())
	p := left[0]
	if len(left) < len(w.phases) {
		w.phases, w.ended = left, &left[0].digest
	}
	if w.blind.Load() {
		p = phase{}
	}
	if p.digest == w.force && w.digest.Load() != nil {
		return
	}
	w.force = p.digest
	w.digest.Store(&p.digest)
	w.gate.SetPolicy(p.rules)
}

// often is the interval at which the time is checked while a phase has an end, and the journal while it cannot be
// written. Timers are suspended while the machine sleeps, so the end must be polled.
const often = time.Second

// keepTime steps when a phase has ended, records that in the journal, and checks whether a failed journal can be
// written again.
func (w *warden) keepTime() {
	for {
		var tick <-chan time.Time
		w.mu.Lock()
		if until := w.phases[0].until; w.blind.Load() {
			tick = time.After(often)
		} else if !until.IsZero() {
			tick = time.After(min(often, until.Sub(w.clock())))
		}
		w.mu.Unlock()
		select {
		case <-w.stop:
			return
		case <-w.changed:
		case <-tick:
		}
		w.look()
	}
}

// look steps, records expired rules, and leaves the blind state if the journal can be written again.
func (w *warden) look() {
	if w.blind.Load() {
		w.recover()
	}
	w.step()
	w.recordExpired()
}

// recordExpired records that temporary rules have expired. If the journal cannot be written, a later call records it.
func (w *warden) recordExpired() {
	if w.blind.Load() {
		return
	}
	w.mu.Lock()
	ended := w.ended
	w.ended = nil
	w.mu.Unlock()
	if ended == nil ||
		w.write(wire.NetEvent{Time: w.clock(), Kind: wire.NetPolicy, Reason: wire.NetRulesEnded, Policy: *ended}) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended == nil {
		w.ended = ended
	}
}

// recover ends the blind state if its own event can be written.
func (w *warden) recover() {
	err := w.journal.Append(wire.NetEvent{
		Time: w.clock(), Kind: wire.NetDeny, Verdict: gate.Deny.String(),
		Reason: fmt.Sprintf("the journal could not be written, so all connections were blocked; it lacks %d events",
			w.lost.Load()),
	})
	if err == nil {
		w.blind.Store(false)
	}
}

// report writes an event to the journal. An event that cannot be recorded must not happen: while the journal cannot
// be written, nothing passes.
func (w *warden) report(e gate.Event) {
	ev := wire.NetEvent{
		Time: e.Time, Kind: string(e.Kind), Proto: string(e.Proto), Name: e.Name, Port: int(e.Port),
		Verdict: e.Verdict.String(), Rule: e.Rule, Reason: e.Reason, Hint: e.Hint, Fix: e.Fix,
		In: e.In, Out: e.Out,
		Method: e.Method, Path: e.Path, Status: e.Status, Grants: e.Grants, Until: e.Until, Decoy: e.Decoy,
		Question: questionOf(e.Question),
	}
	touched := e.Kind == gate.KindDecoy
	if touched && w.stops {
		ev.Verdict = wire.VerdictStop
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
	if touched {
		// Errors are ignored: the keeper needs only one byte, and has exited or has it if the pipe is full.
		_, _ = unix.Write(control.TouchFD, []byte{0})
	}
}

// tell writes an event, or blocks all traffic until it can be written.
func (w *warden) tell(ev wire.NetEvent) {
	if !w.write(ev) {
		w.lost.Add(1)
	}
}

// write writes an event like tell, and reports whether it was written, but does not count it as lost.
func (w *warden) write(ev wire.NetEvent) bool {
	err := w.journal.Append(ev)
	if err == nil {
		return true
	}
	if w.blind.Swap(true) {
		return false
	}
	fmt.Fprintln(os.Stderr, "coppice-gate: all connections are blocked:", err)
	w.step()
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return false
}

// close closes the gate, then the entrance, whose packets it has decided about, and writes the remaining events.
func (w *warden) close() {
	close(w.stop)
	w.own.Wait()
	w.look()
	if err := w.gate.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
	}
	w.hangUp()
	if w.entrance != nil {
		if err := w.entrance.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "coppice-gate:", err)
		}
	}
	if err := w.journal.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gate:", err)
	}
}
