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
		t.Errorf("an empty policy drops %d", len(got))
	}
}

func TestRetain_KeepsReferencedSnapshots(t *testing.T) {
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
		if rapid.Bool().Draw(t, "none") {
			policy[len(policy)-1].Every = None
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
			t.Fatalf("snapshots that were kept are dropped the next time: %v", again)
		}
	})
}

func TestSparse(t *testing.T) {
	t.Parallel()
	now := epoch.Add(100 * day)
	h := &History{Snapshots: map[SnapshotID]Snapshot{}, Sandbox: "a"}
	// One every ten minutes, for 100 days; the first belongs to another sandbox.
	for i := range 100*144 + 1 {
		s := Snapshot{ID: SnapshotID(fmt.Sprintf("%012x", i)), Parent: h.Head, Sandbox: "a",
			Created: epoch.Add(time.Duration(i) * 10 * time.Minute)}
		if i == 0 {
			s.Sandbox = "b"
		}
		h.Snapshots[s.ID], h.Head = s, s.ID
	}
	tests := []struct {
		name                string
		last                int
		within              time.Duration
		hours, days, weeks  int
		least, most, oldest int // how many are left, and the age in hours of the oldest own one
	}{
		{name: "nothing but the ends", least: 2, most: 2},
		{name: "last", last: 20, least: 21, most: 21, oldest: 3},
		{name: "within", within: 2 * time.Hour, least: 14, most: 14, oldest: 2},
		{name: "hourly", hours: 24, least: 26, most: 28, oldest: 24},
		{name: "hourly and daily", hours: 24, days: 7, least: 31, most: 36, oldest: 7 * 24},
		{name: "weekly", weeks: 10, least: 11, most: 13, oldest: 70 * 24},
		{name: "all", last: 20, within: 2 * time.Hour, hours: 24, days: 7, weeks: 10, least: 55, most: 65, oldest: 70 * 24},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			last := h.Newest(tt.last)
			drop := Retain(h, Sparse(tt.within, tt.hours, tt.days, tt.weeks), now,
				func(id SnapshotID) bool { return slices.Contains(last, id) })
			gone := map[SnapshotID]bool{}
			for _, id := range drop {
				gone[id] = true
			}
			left := len(h.Snapshots) - len(gone)
			oldest := now
			for _, s := range h.Snapshots {
				if !gone[s.ID] && s.Sandbox == "a" && s.Created.Before(oldest) {
					oldest = s.Created
				}
			}
			if left < tt.least || left > tt.most {
				t.Errorf("%d are left, want %d to %d", left, tt.least, tt.most)
			}
			if age := int(now.Sub(oldest).Hours()); age > tt.oldest || age < tt.oldest-24*7 {
				t.Errorf("the oldest is %d hours old, want %d", age, tt.oldest)
			}
		})
	}
}

func TestThin_DropsOnlyOldAutomaticSnapshots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t, 40)
		ids := h.NewestFirst()
		h.Head = rapid.SampledFrom(ids).Draw(t, "head")
		for _, id := range ids {
			s := h.Snapshots[id]
			s.Cause = rapid.SampledFrom([]Cause{CauseAuto, CauseExec, CauseMark}).Draw(t, "cause")
			h.Snapshots[id] = s
		}
		auto := func(s Snapshot) bool { return s.Cause == CauseAuto }
		policy := Retention{{Within: 5 * time.Minute}, {Within: 20 * time.Minute, Every: 3 * time.Minute},
			{Every: 10 * time.Minute}}
		now := epoch.Add(time.Duration(rapid.IntRange(0, 80).Draw(t, "now")) * time.Minute)
		drop := Thin(h, policy, now, nil, auto)
		for _, id := range drop {
			s := h.Snapshots[id]
			if s.Cause != CauseAuto || id == h.Head || len(h.Children(id)) != 1 || now.Sub(s.Created) <= 5*time.Minute {
				t.Fatalf("%+v is dropped", s)
			}
			delete(h.Snapshots, id)
			for _, k := range h.Snapshots {
				if k.Parent == id {
					k.Parent = s.Parent
					h.Snapshots[k.ID] = k
				}
			}
		}
		if again := Thin(h, policy, now, nil, auto); len(again) > 0 {
			t.Fatalf("snapshots that were kept are dropped the next time: %v", again)
		}
	})
}

// TestThin_LevelsOffWithinWeek thins a history, which gets a snapshot every two seconds for a week, after every 500
// snapshots. It tests the plan alone; see TestRetention_BoundsAutomaticSnapshots.
func TestThin_LevelsOffWithinWeek(t *testing.T) {
	t.Parallel()
	const recent, every = 200, 500
	h := &History{Snapshots: map[SnapshotID]Snapshot{}, Sandbox: "a"}
	policy := AutoRetention(time.Hour)
	auto := func(s Snapshot) bool { return s.Cause == CauseAuto }
	var newest []SnapshotID
	var atDay []int
	most := 0
	for i := range int(7 * day / (2 * time.Second)) {
		s := Snapshot{ID: SnapshotID(fmt.Sprintf("%012x", i)), Parent: h.Head, Sandbox: "a", Cause: CauseAuto,
			Created: epoch.Add(time.Duration(i) * 2 * time.Second)}
		if i == 0 {
			s.Cause = CauseImport
		}
		h.Snapshots[s.ID], h.Head = s, s.ID
		newest = append(newest, s.ID)
		if i%every != 0 {
			continue
		}
		newest = newest[max(0, len(newest)-recent):]
		keep := map[SnapshotID]bool{}
		for _, id := range newest {
			keep[id] = true
		}
		drop := Thin(h, policy, s.Created, func(id SnapshotID) bool { return keep[id] }, auto)
		gone := map[SnapshotID]bool{}
		for _, id := range drop {
			gone[id] = true
		}
		for id, k := range h.Snapshots {
			for gone[k.Parent] {
				k.Parent = h.Snapshots[k.Parent].Parent
			}
			h.Snapshots[id] = k
		}
		for _, id := range drop {
			delete(h.Snapshots, id)
		}
		most = max(most, len(h.Snapshots))
		if s.Created.Sub(epoch) >= time.Duration(len(atDay)+1)*day {
			atDay = append(atDay, len(h.Snapshots))
		}
	}
	t.Logf("of 302400 snapshots %d are left, never more than %d; after each day %v", len(h.Snapshots), most, atDay)
	// All of an hour, one a minute for a day, one an hour for a week.
	if want := 1800 + 23*60 + 6*24; most > want+every+60 || len(h.Snapshots) < want-60 {
		t.Errorf("%d are left, and at most %d existed", len(h.Snapshots), most)
	}
	if grown := atDay[5] - atDay[1]; grown > 4*24+10 {
		t.Errorf("from the second day on it grew by %d: %v", grown, atDay)
	}
}
