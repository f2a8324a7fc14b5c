//go:build linux

package audit

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
)

// TestKeepLate_CountsExcessRecords checks that while records cannot be written, the newest ones are only counted.
func TestKeepLate_CountsExcessRecords(t *testing.T) {
	t.Parallel()
	b := NewBook(BookConfig{})
	for range 3 {
		b.keepLate(make([]ledger.Draft, limit.RecordsUnsaid))
	}
	got := b.takeLate()
	if l, ok := got[len(got)-1].Body.(*format.Lost); len(got) != limit.RecordsUnsaid || !ok ||
		l.Count != 2*limit.RecordsUnsaid+1 {
		t.Errorf("%d records wait, the last is %+v", len(got), got[len(got)-1])
	}
}
