//go:build linux

package command

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/ledger/format"
)

func TestEvidence_Bounds(t *testing.T) {
	t.Parallel()
	paths := []format.Change{{Path: "0123456789"}, {Path: "b"}, {Path: "c"}}
	for _, c := range []struct {
		most    Evidence
		allowed int64
		output  int64
		changes int
	}{
		{Evidence{}, 100, 100, 3},
		{Evidence{Output: 10, Paths: 1000}, 100, 10, 3},
		{Evidence{Output: 10, Paths: 17}, 5, 5, 2},
		{Evidence{Output: 10, Paths: 16}, 0, 0, 1},
		{Evidence{Output: 10}, 100, 10, 0},
	} {
		output, changes := c.most.output(c.allowed), c.most.changes(paths)
		if output != c.output || len(changes) != c.changes {
			t.Errorf("%+v: %d bytes of output and %d paths, want %d and %d", c.most, output, len(changes), c.output, c.changes)
		}
	}
}
