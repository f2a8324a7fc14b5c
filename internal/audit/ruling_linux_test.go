//go:build linux

package audit

import (
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// TestTale_FindsUndonePolicyChanges checks that the changes recorded after the stored one are undone, with
// the answers of each: a power loss can revert more than one. Gate events and expired rules are never undone.
func TestTale_FindsUndonePolicyChanges(t *testing.T) {
	t.Parallel()
	one, two, three := &format.Policy{After: "1", Before: "0"}, &format.Policy{After: "2", Before: "1", Until: "later"},
		&format.Policy{After: "3", Before: "2"}
	bodies := []Statement{
		{format.ByDaemon, one}, {format.ByDaemon, &format.Approval{Question: "1"}},
		{format.ByDaemon, two}, {format.ByDaemon, &format.Approval{Question: "2"}},
		{format.ByGate, &format.Policy{After: "1"}},
		{format.ByDaemon, &format.Policy{After: "1", Before: "2", Reason: wire.NetRulesEnded + ", the last at noon"}},
		{format.ByDaemon, three}, {format.ByDaemon, &format.Undone{Seq: 7}},
	}
	var all tale
	for i, s := range bodies {
		all.hear(&format.Record{Seq: int64(i + 1), Observer: s.By, Body: s.Body})
	}
	for name, c := range map[string]struct {
		stored string
		want   []int64
	}{
		"the newest":          {PolicyRecordDigest(two), nil},
		"one before":          {PolicyRecordDigest(one), []int64{3, 4}},
		"none":                {"unchanged", []int64{1, 2, 3, 4}},
		"one that is undone":  {PolicyRecordDigest(three), nil},
		"by an older version": {"", nil},
	} {
		var got []int64
		for _, r := range all.unmade(c.stored) {
			got = append(got, r.record.Seq)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
