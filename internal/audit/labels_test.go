package audit

import (
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/internal/ledger/format"
)

func TestUnlabelled_FindsChangesThatACrashLost(t *testing.T) {
	t.Parallel()
	const a, b = "team=a", "team=b"
	create := func(seq int64, labels ...string) *format.Record {
		return &format.Record{Seq: seq, Body: &format.Create{Labels: labels}}
	}
	change := func(seq int64, labels ...string) *format.Record {
		return &format.Record{Seq: seq, Body: &format.Labels{Labels: labels}}
	}
	for _, c := range []struct {
		records []*format.Record
		now     []string
		lost    []int64
	}{
		{nil, nil, nil},
		{[]*format.Record{create(1, a)}, []string{a}, nil},
		{[]*format.Record{create(1, a), change(2, b)}, []string{b}, nil},
		{[]*format.Record{create(1, a), change(2, b)}, []string{a}, []int64{2}},
		{[]*format.Record{create(1), change(2, a), change(3)}, []string{a}, []int64{3}},
		{[]*format.Record{create(1), change(2, a), change(3)}, nil, nil},
		{[]*format.Record{create(1), change(2, a), change(3, b)}, nil, []int64{3, 2}},
		{[]*format.Record{change(8, a), change(9, a, b)}, []string{b}, []int64{9, 8}}, // earlier records agree already
	} {
		var lost []int64
		for _, r := range unlabelled(c.records, c.now) {
			lost = append(lost, r.Seq)
		}
		if !slices.Equal(lost, c.lost) {
			t.Errorf("%v after %d records: %v, want %v", c.now, len(c.records), lost, c.lost)
		}
	}
}
