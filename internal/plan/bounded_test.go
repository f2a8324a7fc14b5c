package plan

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/limit"
)

func TestBounded_CutsDetails(t *testing.T) {
	t.Parallel()
	var e Enforced
	for i := range 100 {
		e.Items = append(e.Items, Item{Name: fmt.Sprint("item ", i), State: Weak, Detail: strings.Repeat("\x01", 1<<20)})
	}
	e.Items = append(e.Items, Item{Name: "last", State: On})
	got := e.Bounded()
	if len(got.Items) != len(e.Items) || got.State("last") != On || got.State("item 99") != Weak {
		t.Fatalf("%d items of %d, states %q and %q", len(got.Items), len(e.Items), got.State("last"), got.State("item 99"))
	}
	if d := got.Items[0].Detail; len(d) != limit.EnforcedDetail || !strings.HasSuffix(d, "...") {
		t.Errorf("a detail of %d bytes, which ends in %q", len(d), d[len(d)-3:])
	}
	if d := got.Items[99].Detail; d != "..." {
		t.Errorf("the last detail is %.20q, want three dots", d)
	}
	if b, err := json.Marshal(got); err != nil || len(b) > 256<<10 {
		t.Errorf("encoded in %d bytes, %v: too long for a record", len(b), err)
	}
	if d := (Enforced{Items: []Item{{Detail: "short"}}}).Bounded().Items[0].Detail; d != "short" {
		t.Errorf("a short detail became %q", d)
	}
}
