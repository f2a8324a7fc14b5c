//go:build linux

package audit

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

func TestBudgets_KeepOnePerSandbox(t *testing.T) {
	t.Parallel()
	book, _, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	now := time.Now()
	m := NewBudgets(book, func() time.Time { return now })
	take := func(id string) bool {
		t.Helper()
		b, err := m.Of(t.Context(), timeline.SandboxID(id))
		if err != nil {
			t.Fatal(err)
		}
		return b.Take(now, ClassInside, limit.InsideChanges)
	}
	const one, other = "0123456789ab", "0123456789ac"
	if !take(one) || take(one) {
		t.Error("the second call does not return the budget of the first")
	}
	if !take(other) {
		t.Error("two sandboxes share a budget")
	}
	m.Forget(one)
	if !take(one) || take(other) {
		t.Error("Forget drops another budget, or none")
	}
}
