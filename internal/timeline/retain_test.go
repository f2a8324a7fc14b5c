package timeline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const day = 24 * time.Hour

func TestRetain(t *testing.T) {
	t.Parallel()
	now := epoch.Add(365 * day)
	// A year with a snapshot every quarter of an hour on every seventh day.
	h := &History{Snapshots: map[SnapshotID]Snapshot{}, Tags: map[string]SnapshotID{}, Sandbox: "a"}
	perAge := func() (dense, hourly, daily, weekly int) {
		for _, s := range h.Snapshots {
			switch age := now.Sub(s.Created); {
			case age <= day:
				dense++
			case age <= 7*day:
				hourly++
			case age <= 90*day:
				daily++
			default:
				weekly++
			}
		}
		return
	}
	for i := range 365 * 96 {
		at := epoch.Add(time.Duration(i+1) * 15 * time.Minute)
		if at.After(now) || int(now.Sub(at)/day)%7 > 0 && now.Sub(at) > 7*day {
			continue
		}
		id := SnapshotID(fmt.Sprintf("%012x", i))
		h.Snapshots[id] = Snapshot{ID: id, Parent: h.Head, Sandbox: "a", Created: at}
		h.Head = id
	}
	before, _, _, _ := perAge()
	drop := Retain(h, DefaultRetention(), now, nil)
	for _, id := range drop {
		delete(h.Snapshots, id)
	}
	dense, hourly, daily, weekly := perAge()
	if dense != before || dense != 97 {
		t.Errorf("%d of %d of the last day are left", dense, before)
	}
	if hourly < 6*24-1 || hourly > 6*24+2 || daily < 12 || daily > 26 || weekly < 39 || weekly > 54 {
		t.Errorf("left: %d hourly, %d daily, %d weekly", hourly, daily, weekly)
	}
	if got := Retain(h, nil, now, nil); len(got) > 0 {
		t.Errorf("a policy that says nothing drops %d", len(got))
	}
}

func TestRetainNeverDropsWhatIsReferredTo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t, 40)
		ids := h.NewestFirst()
		some := func(what string) SnapshotID { return rapid.SampledFrom(ids).Draw(t, what) }
		h.Head = some("head")
		h.Tags["t"] = some("tag")
		pinned := some("pinned")
		foreign := some("foreign")
		s := h.Snapshots[foreign]
		s.Sandbox = "other"
		h.Snapshots[foreign] = s
		manual := some("manual")
		s = h.Snapshots[manual]
		s.Cause = CauseManual
		h.Snapshots[manual] = s
		policy := Retention{
			{Within: time.Duration(rapid.IntRange(0, 20).Draw(t, "dense")) * time.Minute},
			{Within: 20 * time.Minute, Every: 3 * time.Minute},
			{Every: time.Duration(rapid.IntRange(1, 20).Draw(t, "every")) * time.Minute},
		}
		if policy[0].Within == 0 {
			policy = policy[1:]
		}
		now := epoch.Add(time.Duration(rapid.IntRange(0, 80).Draw(t, "now")) * time.Minute)
		pin := func(id SnapshotID) bool { return id == pinned }
		drop := Retain(h, policy, now, pin)
		for _, id := range []SnapshotID{h.Head, h.Tags["t"], pinned, foreign, manual} {
			if slices.Contains(drop, id) {
				t.Fatalf("%s is dropped", id)
			}
		}
		for _, id := range drop {
			s := h.Snapshots[id]
			if kids := h.Children(id); len(kids) != 1 || s.Parent == "" {
				t.Fatalf("%s has %d children, parent %q", id, len(kids), s.Parent)
			}
			delete(h.Snapshots, id)
			for _, k := range h.Snapshots {
				if k.Parent == id {
					k.Parent = s.Parent
					h.Snapshots[k.ID] = k
				}
			}
		}
		if again := Retain(h, policy, now, pin); len(again) > 0 {
			t.Fatalf("what was kept is dropped the next time: %v", again)
		}
	})
}
