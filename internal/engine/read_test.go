//go:build linux

package engine

import (
	"reflect"
	"testing"
)

// TestSnapshots_MatchLog checks that the log that is not drawn has the same snapshots in the same order.
func TestSnapshots_MatchLog(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "one")
	if err := h.Finalize(ctx); err != nil { // or one may say finalized, and the other not
		t.Fatal(err)
	}
	log, err := h.Log(ctx, "a")
	if err != nil || len(log.Rows) != len(log.Nodes) || len(log.Rows) < 2 || log.Truncated {
		t.Fatalf("%+v, %v", log, err)
	}
	got, err := h.Snapshots(ctx, "a")
	if log.Rows = nil; err != nil || !reflect.DeepEqual(got, log) {
		t.Errorf("%+v, %v; want %+v", got, err, log)
	}
}
