package gate

import (
	"context"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// Kind is the kind of an event.
type Kind string

// The kinds of events.
const (
	KindDNS     Kind = "dns"     // a name is looked up outside
	KindConnect Kind = "connect" // a connection is dialled, or a UDP flow started
	KindDeny    Kind = "deny"    // something was refused
	KindEnd     Kind = "end"     // a connection or flow ended, or a lookup returned no address
	KindRequest Kind = "request" // an HTTP request is forwarded
	KindAnswer  Kind = "answer"  // an HTTP request was answered
	// KindAsk: a request is pending, with the verdict Ask, or was settled, with its outcome.
	KindAsk Kind = "ask"
	// KindDecoy: a token of a decoy was about to be sent and was stopped. It counts as a denial.
	KindDecoy Kind = "decoy"
)

// The reasons of a KindDecoy.
const (
	DecoySent  = "a token of it was to be sent"
	DecoyAsked = "a token of it is in a name that was asked for"
)

// Dropped is the reason of a KindDeny that counts packets whose destinations are unknown.
const Dropped = "packets were dropped before the gate had read them"

// Event is one event at the gate. Name comes from the sandbox, but contains no control bytes and no quotes.
type Event struct {
	Time    time.Time
	Kind    Kind
	Proto   Proto
	Name    string     // host name; "" for an address without one
	Addr    netip.Addr // not valid if only the name is known
	Port    uint16
	Verdict Verdict
	Rule    string
	Reason  string
	Hint    string
	Fix     string // the rule that would allow the denied address
	// Method and Path are those of an HTTP request, the path as sent and without the query, which may be secret.
	// Status is that of its response, 0 for none.
	Method, Path string
	Status       int
	// Decoy is the path of the decoy inside, with KindDecoy.
	Decoy string
	// Grants are those whose secrets a request carries, with KindRequest; or that which was refused.
	Grants []string
	// Question identifies a KindAsk about a grant; Grants, Method and Path are what it is about.
	Question string
	// Until is when a pending KindAsk is denied if unanswered.
	Until time.Time
	// In and Out are the bytes into the sandbox and out of it, with KindEnd and KindAnswer.
	In, Out int64
	// Count is the number of occurrences: a repeated denial is reported once, and some seconds later again with the
	// number of times since.
	Count int
}

// Bounds of the journal.
const (
	repeatFor = 10 * time.Second // how long a repeated denial is counted before it is reported again
)

// journal passes events to Options.Report, in order, without blocking. If an event must be recorded before its
// effect, the result of emit must be checked.
type journal struct {
	now   func() time.Time
	queue chan Event

	mu       sync.Mutex
	closed   bool              // guarded by mu
	denied   map[denial]*tally // guarded by mu
	lost     int64             // events that found no room; guarded by mu
	queued   int64             // events; guarded by mu
	reported int64             // events; guarded by mu
	report   chan struct{}     // closed at the next report; guarded by mu
}

// denial is the key by which equal denials are counted. A catch-all key stands for those beyond the limit.
type denial struct {
	proto  Proto
	name   string
	addr   netip.Addr
	port   uint16
	method string
	path   string
	reason string
	decoy  string
}

// tally counts a denial since its last report.
type tally struct {
	last  Event
	since time.Time
	count int
}

// newJournal returns a journal that calls report for each event, in order, from one goroutine that ends after close;
// wait waits for it.
func newJournal(now func() time.Time, report func(Event)) (j *journal, wait func()) {
	j = &journal{now: now, queue: make(chan Event, limit.JournalEvents), denied: map[denial]*tally{},
		report: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range j.queue {
			report(e)
			j.mu.Lock()
			j.reported++
			close(j.report)
			j.report = make(chan struct{})
			j.mu.Unlock()
		}
	}()
	return j, func() { <-done }
}

// settle waits until all events queued so far are reported, or ctx ends. It reports which.
func (j *journal) settle(ctx context.Context) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for all := j.queued; j.reported < all; {
		next := j.report
		j.mu.Unlock()
		select {
		case <-next:
			j.mu.Lock()
		case <-ctx.Done():
			j.mu.Lock()
			return false
		}
	}
	return true
}

// emit queues e and reports whether there was room. If there was none, what e reports must not happen.
func (j *journal) emit(e Event) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.emitLocked(e)
}

func (j *journal) emitLocked(e Event) bool {
	if j.queueLocked(e) {
		return true
	}
	j.lost++
	return false
}

// queueLocked is emitLocked for events that are retried later if the queue is full.
func (j *journal) queueLocked(e Event) bool {
	if e.Time.IsZero() {
		e.Time = j.now()
	}
	e.Count = max(e.Count, 1)
	if j.closed {
		return false
	}
	select {
	case j.queue <- e:
		j.queued++
		return true
	default:
		return false
	}
}

// deny reports a denial that occurred e.Count times, or once if that is 0; it only counts it if the same one was just
// reported or the queue is full. Dropped has its own count even beyond the limit: the flood that reaches the limit
// must not hide it.
func (j *journal) deny(e Event) {
	if e.Kind != KindDecoy {
		e.Kind = KindDeny
	}
	e.Time = j.now()
	if e.Verdict == Ask { // approval is not requested for it
		e.Verdict = Deny
	}
	k := denial{e.Proto, e.Name, e.Addr, e.Port, e.Method, e.Path, e.Reason, e.Decoy}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		j.lost++
		return
	}
	t := j.denied[k]
	n := max(e.Count, 1)
	if t == nil && len(j.denied) >= limit.JournalDenials && e.Reason != Dropped {
		k = denial{reason: "others"}
		if t = j.denied[k]; t == nil {
			t = &tally{last: Event{Kind: KindDeny, Reason: "too many different denials to record each"}, since: e.Time}
			j.denied[k] = t
		}
		t.last.Time = e.Time
		t.count += n
		return
	}
	if t == nil {
		t = &tally{last: e, since: e.Time}
		j.denied[k] = t
		if j.queueLocked(e) {
			return
		}
	}
	t.last.Time = e.Time
	t.count += n
}

// sweep reports the counts of denials that were repeated some time ago.
func (j *journal) sweep(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k, t := range j.denied {
		if now.Sub(t.since) >= repeatFor {
			j.reportLocked(k, t)
		}
	}
}

// reportLocked reports a count and forgets it, unless the queue is full: then it continues to be counted.
func (j *journal) reportLocked(k denial, t *tally) {
	if t.count > 0 {
		e := t.last
		if e.Count = t.count; !j.queueLocked(e) {
			return
		}
	}
	delete(j.denied, k)
}

// close reports the remaining events, waiting for room, and lets the goroutine end.
func (j *journal) close() {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return
	}
	j.closed = true // nothing else sends from here on
	var left []Event
	for _, t := range j.denied {
		if e := t.last; t.count > 0 {
			e.Count = t.count
			left = append(left, e)
		}
	}
	j.denied = nil
	j.mu.Unlock()
	for _, e := range left {
		j.queue <- e
	}
	close(j.queue)
}

func (j *journal) dropped() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lost
}

// protocol names an IP protocol number for an event.
func protocol(n uint8) Proto {
	switch n {
	case 2:
		return "igmp"
	case 6:
		return TCP
	case 17:
		return UDP
	case 1, 58:
		return ICMP
	case 33:
		return "dccp"
	case 47:
		return "gre"
	case 50, 51:
		return "ipsec"
	case 132:
		return "sctp"
	case 136:
		return "udplite"
	}
	return Proto("ip-" + strconv.Itoa(int(n)))
}
