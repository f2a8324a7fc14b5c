// Package testimony is what gate and keeper tell of a sandbox in its journal, as bodies of
// records. It is pure: whoever appends them decides when, and to what.
//
// The engine may import it.
package testimony

import (
	"fmt"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Testimony is what a record tells, and by whose word.
type Testimony struct {
	By     format.Observer
	Policy string // digest of the policy in force then; "" where it is not told
	Body   format.Body
}

// Decoy is how the reason of a record of a decoy begins.
const Decoy = "a decoy: "

// Of makes records of events; those that are alike become one. Texts, which are hostile,
// pass through clean. What is told elsewhere as well makes none.
func Of(evs []wire.NetEvent, clean func(string) string) (out []Testimony) {
	seen := map[wire.NetEvent]int{} // where in out
	for _, ev := range evs {
		alike := ev
		alike.Time, alike.Count, alike.In, alike.Out, alike.Until, alike.Hint, alike.PID = time.Time{}, 0, 0, 0, time.Time{}, "", 0
		n := int64(max(1, ev.Count))
		if i, ok := seen[alike]; ok {
			switch b := out[i].Body.(type) {
			case *format.Network:
				b.Count, b.BytesIn, b.BytesOut = b.Count+n, b.BytesIn+ev.In, b.BytesOut+ev.Out
			case *format.Denial:
				b.Count += n
			case *format.Lost:
				b.Count += n
			}
			continue
		}
		t, ok := of(ev, n, clean)
		if !ok {
			continue
		}
		t.Policy = ev.Policy
		seen[alike] = len(out)
		out = append(out, t)
	}
	return out
}

// Missing is the loss of events for which the journal had no room; their number is not known.
func Missing() format.Lost {
	return format.Lost{Of: string(format.KindNetwork), Reason: "the journal was full before it was read; how many there were is not known"}
}

// Is reports whether a record is one that comes of a journal.
func Is(r *format.Record) bool {
	switch b := r.Body.(type) {
	case *format.Network:
		return true
	case *format.Lost:
		return b.Of == string(format.KindNetwork) || b.Of == string(format.KindDenial)
	case *format.Denial:
		return strings.HasPrefix(b.Reason, Decoy) || r.Observer == format.ByKernel
	case *format.Policy:
		return r.Observer == format.ByGate
	}
	return false
}

// of makes the record of an event that happened n times.
func of(ev wire.NetEvent, n int64, clean func(string) string) (t Testimony, ok bool) {
	switch ev.Kind {
	case wire.NetPolicy:
		return Testimony{By: format.ByGate, Body: &format.Policy{After: ev.Policy, Reason: clean(words(ev.Reason, ev.Rule))}}, ev.Reason == wire.NetRulesEnded
	case wire.NetRefused:
		return refused(ev, n, clean), true
	case wire.NetDecoy:
		if ev.Place() == "" {
			return Testimony{By: format.ByKeeper, Body: &format.Denial{Path: clean(ev.Decoy), Reason: clean(Decoy + Touch(ev)), Count: n}}, true
		}
	}
	return Testimony{By: format.ByGate, Body: network(ev, n, clean)}, true
}

// network tells of what the gate decided, or was told.
func network(ev wire.NetEvent, n int64, clean func(string) string) *format.Network {
	b := &format.Network{Addr: clean(ev.Addr), BytesIn: ev.In, BytesOut: ev.Out, Count: n, Host: clean(ev.Name), Method: clean(ev.Method), Path: clean(ev.Path),
		Port: ev.Port, Proto: clean(ev.Proto), Reason: clean(ev.Reason), Rule: clean(ev.Rule), Verdict: wire.VerdictAllow}
	switch ev.Kind {
	case wire.NetDeny:
		b.Verdict = wire.VerdictDeny
	case wire.NetDNS:
		b.Proto = "dns"
	case wire.NetEnd:
		b.Reason = words("it ended", b.Reason)
	case wire.NetHTTP:
		b.Proto = "http"
	case wire.NetAnswer:
		b.Proto, b.Reason = "http", words(fmt.Sprintf("answered with %d", ev.Status), b.Reason)
	case wire.NetAsk:
		b.Verdict, b.Reason = clean(ev.Verdict), words("a person is asked", b.Reason)
	case wire.NetDecoy:
		b.Verdict, b.Reason = wire.VerdictDeny, clean(Decoy+Touch(ev))
	}
	return b
}

// refused tells of a system call that was refused, or of many that are not told of.
func refused(ev wire.NetEvent, n int64, clean func(string) string) Testimony {
	why := ev.Reason
	switch {
	case ev.Syscall != "":
		why = "answered with " + why
	case why == wire.RefusedUntold:
		return Testimony{By: format.ByKeeper, Body: &format.Lost{Of: string(format.KindDenial), Count: n, Reason: ev.Reason}}
	}
	return Testimony{By: format.ByKernel, Body: &format.Denial{Count: n, Exec: clean(ev.Exec), PID: int64(ev.PID), Program: clean(ev.Program),
		Reason: clean(why), Syscall: clean(ev.Syscall)}}
}

// Touch says what was done to a decoy, and what followed.
func Touch(ev wire.NetEvent) string {
	s := ev.Reason
	if to := ev.Place(); to != "" {
		s += " (" + to + ")"
	}
	if ev.Count > 1 {
		s += fmt.Sprintf(", %d times", ev.Count)
	}
	if ev.Verdict == wire.VerdictStop {
		s += "; all processes were killed"
	}
	return s
}

// words joins those that are there.
func words(list ...string) string {
	var out []string
	for _, w := range list {
		if w != "" {
			out = append(out, w)
		}
	}
	return strings.Join(out, " ")
}
