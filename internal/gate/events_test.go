package gate

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// clock is a time that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

func TestJournal_CountsRepeatedDenials(t *testing.T) {
	t.Parallel()
	var got []Event
	c := &clock{now: noon}
	j, wait := newJournal(c.Now, func(e Event) { got = append(got, e) })
	a := Event{Proto: TCP, Name: "a.example", Addr: netip.MustParseAddr("1.1.1.1"), Port: 80, Reason: "no"}
	b := a
	b.Port = 81
	for range 5 {
		j.deny(a)
	}
	j.deny(b)
	j.sweep(c.pass(repeatFor - 1))
	j.deny(a)
	j.sweep(c.pass(1)) // reports the five repetitions
	j.deny(a)          // the first of a new series, reported at once
	j.deny(a)
	j.close() // reports the last one
	j.close()
	if j.emit(a) {
		t.Error("a closed journal accepts an event")
	}
	wait()
	var counts []int
	for _, e := range got {
		if e.Kind != KindDeny {
			t.Errorf("%+v", e)
		}
		counts = append(counts, e.Count)
	}
	if !slices.Equal(counts, []int{1, 1, 5, 1, 1}) || got[1].Port != 81 {
		t.Errorf("%v: %+v", counts, got)
	}
}

// TestJournal_SettleReportsDenials checks that settle returns only after all earlier denials were reported, even if
// reporting them is slow.
func TestJournal_SettleReportsDenials(t *testing.T) {
	t.Parallel()
	block, reported := make(chan struct{}), 0
	j, wait := newJournal(time.Now, func(Event) { <-block; reported++ })
	for port := range uint16(3) {
		j.deny(Event{Proto: TCP, Addr: netip.MustParseAddr("1.1.1.1"), Port: port, Reason: "no"})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	j.settle(ended) // does not wait for the reports
	go func() {
		for range 3 {
			block <- struct{}{}
		}
	}()
	j.settle(t.Context())
	if reported != 3 {
		t.Errorf("%d of 3 denials were reported", reported)
	}
	j.close()
	wait()
}

// TestJournal_CountsDroppedBeyondLimit checks that the flood which reaches the limit of different denials does not hide
// the number of packets that were dropped.
func TestJournal_CountsDroppedBeyondLimit(t *testing.T) {
	t.Parallel()
	dropped := 0
	c := &clock{now: noon}
	j, wait := newJournal(c.Now, func(e Event) {
		if e.Reason == Dropped {
			dropped += e.Count
		}
	})
	for i := range limit.JournalDenials + 1 {
		j.deny(Event{Proto: TCP, Port: uint16(i), Reason: "no"})
	}
	for range 3 {
		j.deny(Event{Reason: Dropped, Count: 7})
	}
	j.close()
	wait()
	if dropped != 21 {
		t.Errorf("%d of 21 dropped packets were reported", dropped)
	}
}

func TestJournal_IsBounded(t *testing.T) {
	t.Parallel()
	var got []Event
	c := &clock{now: noon}
	block := make(chan struct{})
	j, wait := newJournal(c.Now, func(e Event) { <-block; got = append(got, e) })
	for i := range 10000 {
		j.deny(Event{Proto: TCP, Port: uint16(i), Reason: "no"})
	}
	if len(j.denied) > limit.JournalDenials+1 {
		t.Errorf("%d denials are counted", len(j.denied))
	}
	n := 0
	for j.emit(Event{Kind: KindConnect}) {
		n++
	}
	if n > limit.JournalEvents || j.dropped() != 1 {
		t.Errorf("%d events are queued, %d are lost", n, j.dropped())
	}
	j.sweep(c.pass(time.Hour)) // the queue is full: the counts are kept
	if len(j.denied) != 1 {
		t.Errorf("%d denials are counted", len(j.denied))
	}
	close(block)
	j.close()
	wait()
	total := 0
	for _, e := range got {
		if e.Kind == KindDeny {
			total += e.Count
		}
	}
	if total != 10000 {
		t.Errorf("%d denials were reported", total)
	}
}

// TestDeny_WaitsForRoomInAFlood checks that a flood of allowed requests hides no denial: a denial that does not fit in
// the queue is reported later.
func TestDeny_WaitsForRoomInAFlood(t *testing.T) {
	t.Parallel()
	var got []Event
	c := &clock{now: noon}
	block := make(chan struct{})
	j, wait := newJournal(c.Now, func(e Event) { <-block; got = append(got, e) })
	for j.emit(Event{Kind: KindConnect}) {
	}
	lost := j.dropped()
	j.deny(Event{Proto: TCP, Name: "denied.example", Reason: "no"})
	j.sweep(c.pass(repeatFor)) // no room yet
	close(block)
	j.close()
	wait()
	denied := 0
	for _, e := range got {
		if e.Name == "denied.example" {
			denied += e.Count
		}
	}
	if denied != 1 || j.dropped() != lost {
		t.Errorf("the denial was reported %d times; %d events are lost", denied, j.dropped()-lost)
	}
}
