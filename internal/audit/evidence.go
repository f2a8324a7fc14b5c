package audit

import (
	"fmt"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Evidence is the body of a record that the daemon did not observe itself, and its observer.
type Evidence struct {
	By     format.Observer
	Policy string // digest of the policy in force at that time, or ""
	Body   format.Body
}

// DecoyPrefix is the prefix of the reason of each record about a decoy.
const DecoyPrefix = "a decoy: "

// EvidenceOf returns the records of a journal's events; equal events become one record. Texts are hostile, and are
// passed through clean. Events that are recorded elsewhere are skipped.
func EvidenceOf(evs []wire.NetEvent, clean func(string) string) (out []Evidence) {
	seen := map[string]int{} // index in out
	for _, ev := range evs {
		alike := ev
		alike.Time, alike.Count, alike.In, alike.Out, alike.Until, alike.Hint, alike.PID = time.Time{}, 0, 0, 0,
			time.Time{}, "", 0
		alike.First, alike.Last = time.Time{}, time.Time{}
		n, key := int64(max(1, ev.Count)), fmt.Sprintf("%#v", alike)
		if i, ok := seen[key]; ok {
			switch b := out[i].Body.(type) {
			case *format.Network:
				b.Count, b.BytesIn, b.BytesOut = b.Count+n, b.BytesIn+ev.In, b.BytesOut+ev.Out
			case *format.Denial:
				b.Count += n
				if b.Last != "" {
					b.Last = moment(ev.Last)
				}
			case *format.Lost:
				b.Count += n
			}
			continue
		}
		t, ok := evidence(ev, n, clean)
		if !ok {
			continue
		}
		t.Policy = ev.Policy
		seen[key] = len(out)
		out = append(out, t)
	}
	return append(out, grantEvidence(evs, clean)...)
}

// grantEvidence returns a record for each grant that requests used, or that refused requests, and host.
func grantEvidence(evs []wire.NetEvent, clean func(string) string) (out []Evidence) {
	seen := map[format.Grant]bool{}
	for _, ev := range evs {
		b := format.Grant{Event: "used", Host: clean(ev.Name)}
		switch ev.Kind {
		case wire.NetHTTP:
		case wire.NetDeny:
			b.Event = "refused"
		default:
			continue
		}
		for _, name := range ev.Grants {
			b.Grant = clean(name)
			if !seen[b] {
				seen[b] = true
				one := b
				out = append(out, Evidence{By: format.ByGate, Policy: ev.Policy, Body: &one})
			}
		}
	}
	return out
}

// lostEvidence returns the record of events for which the journal had no space; their number is unknown.
func lostEvidence() format.Lost {
	return format.Lost{Of: string(format.KindNetwork),
		Reason: "the journal was full; an unknown number of events was lost"}
}

// isEvidence reports whether a record was made from a journal.
func isEvidence(r *format.Record) bool {
	switch b := r.Body.(type) {
	case *format.Network:
		return true
	case *format.Lost:
		return b.Of == string(format.KindNetwork) || b.Of == string(format.KindDenial)
	case *format.Denial:
		return strings.HasPrefix(b.Reason, DecoyPrefix) || r.Observer == format.ByKernel
	case *format.Policy, *format.Grant:
		return r.Observer == format.ByGate
	}
	return false
}

// evidence returns the record of an event that happened n times.
func evidence(ev wire.NetEvent, n int64, clean func(string) string) (t Evidence, ok bool) {
	switch ev.Kind {
	case wire.NetPolicy:
		return Evidence{By: format.ByGate, Body: &format.Policy{After: ev.Policy, Reason: clean(words(ev.Reason, ev.Rule))}},
			ev.Reason == wire.NetRulesEnded
	case wire.NetRefused:
		return refused(ev, n, clean), true
	case wire.NetDeny:
		if ev.Reason == wire.NetDropped { // a denial without a destination would count as one
			return Evidence{By: format.ByGate,
				Body: &format.Lost{Of: string(format.KindNetwork), Count: n, Reason: ev.Reason}}, true
		}
	case wire.NetDecoy:
		if ev.Place() == "" {
			return Evidence{By: format.ByKeeper,
				Body: &format.Denial{Path: clean(ev.Decoy), Reason: clean(DecoyPrefix + DecoyTouch(ev)), Count: n}}, true
		}
	}
	return Evidence{By: format.ByGate, Body: network(ev, n, clean)}, true
}

// network returns the record of a decision of the gate, or of traffic that it reported.
func network(ev wire.NetEvent, n int64, clean func(string) string) *format.Network {
	b := &format.Network{Addr: clean(ev.Addr), BytesIn: ev.In, BytesOut: ev.Out, Count: n, Host: clean(ev.Name),
		Method: clean(ev.Method), Path: clean(ev.Path),
		Port: ev.Port, Proto: clean(ev.Proto), Reason: clean(ev.Reason), Rule: clean(ev.Rule), Verdict: wire.VerdictAllow}
	switch ev.Kind {
	case wire.NetDeny:
		b.Verdict = wire.VerdictDeny
	case wire.NetDNS:
		b.Proto = "dns"
	case wire.NetEnd:
		if b.Proto != "dns" { // for dns, the name was not resolved
			b.Reason = words("it ended", b.Reason)
		}
	case wire.NetHTTP:
		b.Proto = "http"
	case wire.NetAnswer:
		b.Proto, b.Reason = "http", words(fmt.Sprintf("answered with %d", ev.Status), b.Reason)
	case wire.NetAsk:
		b.Verdict, b.Reason = clean(ev.Verdict), words("approval is requested", b.Reason)
	case wire.NetDecoy:
		b.Verdict, b.Reason = wire.VerdictDeny, clean(DecoyPrefix+DecoyTouch(ev))
	}
	return b
}

// refused returns the record of a refused system call, or of several that are not listed.
func refused(ev wire.NetEvent, n int64, clean func(string) string) Evidence {
	why := ev.Reason
	switch {
	case ev.Syscall != "":
		why = "answered with " + why
	case why == wire.RefusedUntold, why == wire.RefusedFiles:
		return Evidence{By: format.ByKeeper, Body: &format.Lost{Of: string(format.KindDenial), Count: n, Reason: ev.Reason}}
	}
	b := &format.Denial{Count: n, Exec: clean(ev.Exec), PID: int64(ev.PID), Program: clean(ev.Program),
		Reason: clean(why), Syscall: clean(ev.Syscall)}
	if ev.Op != "" {
		b.Path, b.Op, b.Rule = clean(ev.Path), clean(ev.Op), clean(ev.Rule)
		b.First, b.Last = moment(ev.First), moment(ev.Last)
	}
	return Evidence{By: format.ByKernel, Body: b}
}

// moment returns a time as records have it.
func moment(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// DecoyTouch describes the use of a decoy, and the reaction.
func DecoyTouch(ev wire.NetEvent) string {
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

// words joins the words that are not empty.
func words(list ...string) string {
	var out []string
	for _, w := range list {
		if w != "" {
			out = append(out, w)
		}
	}
	return strings.Join(out, " ")
}
