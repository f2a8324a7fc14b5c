package timeline

import (
	"slices"
	"time"
)

// Keep is one rule of a retention policy: of the snapshots not older than Within, keep one for every span of Every.
// Every 0 keeps all, and Every None keeps none; Within 0 has no limit.
type Keep struct {
	Within time.Duration
	Every  time.Duration
}

// None is the Every of a rule that keeps no snapshot.
const None = time.Duration(-1)

// Retention is a policy. The first rule that covers a snapshot's age decides; snapshots that no rule covers are kept.
// The zero value keeps everything.
type Retention []Keep

// DefaultRetention keeps all snapshots of the last day, then one an hour for a week, one a day for 90 days, and one a
// week before that.
func DefaultRetention() Retention {
	const day = 24 * time.Hour
	return Retention{
		{Within: day},
		{Within: 7 * day, Every: time.Hour},
		{Within: 90 * day, Every: day},
		{Every: 7 * day},
	}
}

// AutoRetention is the policy for automatic snapshots: all for the given time, then one a minute for a day, one an
// hour for a week, one a day for 90 days, and one a week before that.
func AutoRetention(all time.Duration) Retention {
	return append(Retention{{Within: all}, {Within: 24 * time.Hour, Every: time.Minute}}, DefaultRetention()[1:]...)
}

// Sparse returns the policy that keeps all snapshots within a time, then the newest of each of the given numbers of
// hours, days and weeks before now, and nothing older.
func Sparse(within time.Duration, hours, days, weeks int) Retention {
	var p Retention
	add := func(every time.Duration, n int) {
		if n > 0 {
			p = append(p, Keep{Within: time.Duration(n) * every, Every: every})
		}
	}
	if within > 0 {
		p = append(p, Keep{Within: within})
	}
	add(time.Hour, hours)
	add(24*time.Hour, days)
	add(7*24*time.Hour, weeks)
	return append(p, Keep{Every: None})
}

// Retain lists the snapshots that policy removes at now, oldest first. Each of them has a parent and exactly one
// child, so each can be merged into its child, in any order.
//
// Retain never removes HEAD, tagged and pinned snapshots, first snapshots (also of a fork or an import), leaves,
// snapshots with several children, those that another sandbox made, and those with cause manual. In each stretch
// between such snapshots it keeps the newest of a span. Spans are counted from the Unix epoch, so that the result
// does not depend on when Retain was called before. pinned may be nil.
func Retain(h *History, policy Retention, now time.Time, pinned func(SnapshotID) bool) (drop []SnapshotID) {
	return retain(h, policy, now, pinned, nil)
}

// Thin is Retain for the automatic thinning of a history. Of the snapshots that Retain might remove, it removes only
// those for which may returns true. The others are kept, and count for their spans: if one snapshot of a span is kept
// anyway, no other is kept for it.
func Thin(
	h *History, policy Retention, now time.Time, pinned func(SnapshotID) bool, may func(Snapshot) bool,
) (drop []SnapshotID) {
	return retain(h, policy, now, pinned, may)
}

func retain(
	h *History, policy Retention, now time.Time, pinned func(SnapshotID) bool, may func(Snapshot) bool,
) (drop []SnapshotID) {
	kids := h.childCount()
	fixed := map[SnapshotID]bool{h.Head: true}
	for _, id := range h.Tags {
		fixed[id] = true
	}
	for id, s := range h.Snapshots {
		_, hasParent := h.Snapshots[s.Parent]
		foreign := h.Sandbox != "" && s.Sandbox != h.Sandbox
		meant := s.Cause == CauseManual || s.Cause == CauseImport || s.Cause == CauseFork
		if !hasParent || foreign || kids[id] != 1 || meant || pinned != nil && pinned(id) {
			fixed[id] = true
		}
	}
	for id := range fixed {
		var rule, span int64 = -1, 0
		if top, ok := h.Snapshots[id]; ok && may != nil {
			at, k := policy.spanOf(top.Created, now)
			rule, span = int64(k), at
		}
		s, ok := h.Snapshots[h.Snapshots[id].Parent]
		for ; ok && !fixed[s.ID]; s, ok = h.Snapshots[s.Parent] {
			at, k := policy.spanOf(s.Created, now)
			switch {
			case may != nil && !may(s):
				rule, span = int64(k), at
			case k >= 0 && policy[k].Every < 0:
				drop = append(drop, s.ID)
			case k < 0 || policy[k].Every == 0, int64(k) != rule, at != span:
				rule, span = int64(k), at
			default:
				drop = append(drop, s.ID)
			}
		}
	}
	h.sortByTime(drop)
	return slices.Clip(drop)
}

// spanOf returns the rule that covers a snapshot made at t, -1 for none, and the number of the span that contains t.
func (p Retention) spanOf(t, now time.Time) (span int64, rule int) {
	age := now.Sub(t)
	for i, k := range p {
		if k.Within > 0 && age > k.Within {
			continue
		}
		if k.Every <= 0 {
			return 0, i
		}
		ns := t.UnixNano()
		span = ns / int64(k.Every)
		if ns%int64(k.Every) < 0 {
			span--
		}
		return span, i
	}
	return 0, -1
}

// Runs groups dropped snapshots into runs of adjacent ones, each of at most most and newest first: each snapshot is
// the parent of the one before it.
func Runs(h *History, drop []SnapshotID, most int) (runs [][]SnapshotID) {
	left := make(map[SnapshotID]bool, len(drop))
	for _, id := range drop {
		left[id] = true
	}
	child := make(map[SnapshotID]bool, len(drop)) // dropped snapshots with a child that is dropped too
	for _, id := range drop {
		child[h.Snapshots[id].Parent] = true
	}
	for _, id := range drop {
		if child[id] {
			continue
		}
		var run []SnapshotID
		for ; left[id]; id = h.Snapshots[id].Parent {
			if delete(left, id); len(run) == most {
				runs, run = append(runs, run), nil
			}
			run = append(run, id)
		}
		runs = append(runs, run)
	}
	return runs
}
