package repo

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/coppice-dev/coppice/internal/looptest"
)

// TestLoops_StopOnCancel cancels the context of each loop over a sandbox's changes in the middle.
func TestLoops_StopOnCancel(t *testing.T) {
	t.Parallel()
	const n, after = 2000, 500
	l := newLab(t, SHA1)
	l.commit(l.top, "one")
	r := l.open()
	d, err := r.desk()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close(&err)
	changes, tree, x := make([]Change, n), make([]treeChange, n), &index{trees: map[string]OID{}}
	for i := range changes {
		p := fmt.Sprintf("d%04d/f", i)
		changes[i] = Change{Status: 'A', Path: p, Mode: ModeFile, ID: SHA1.emptyTree()}
		tree[i] = treeChange{path: p, mode: ModeFile, id: SHA1.emptyTree()}
		x.entries = append(x.entries, indexEntry{path: p, mode: ModeFile, id: SHA1.emptyTree()})
	}
	data, err := x.encode(t.Context(), SHA1)
	if err != nil {
		t.Fatal(err)
	}
	for name, loop := range map[string]func(ctx context.Context) error{
		"marks":     func(ctx context.Context) error { _, err := d.marks(ctx, changes); return err },
		"untracked": func(ctx context.Context) error { _, err := r.untracked(ctx, changes); return err },
		"encode":    func(ctx context.Context) error { _, err := x.encode(ctx, SHA1); return err },
		"parse":     func(ctx context.Context) error { _, err := parseIndex(ctx, SHA1, data); return err },
		"apply": func(ctx context.Context) error {
			_, err := (&index{trees: map[string]OID{}}).apply(ctx, tree, SHA1.emptyTree(), 0, 0)
			return err
		},
	} {
		ctx := looptest.EndsAfter(t, after)
		if err := loop(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want a cancelled context", name, err)
		}
		if n := ctx.Calls(); n > after+10 {
			t.Errorf("%s: checked its context %d times, %d before it ended", name, n, after)
		}
	}
}
