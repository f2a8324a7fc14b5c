//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestCapture_RefusesMixedMoments checks that no snapshot is taken of files that a process could change meanwhile: the
// capture begins again, and fails if processes never hold still.
func TestCapture_RefusesMixedMoments(t *testing.T) {
	t.Parallel()
	for name, runs := range map[string]int{"once": 1, "always": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			h.onDir("a")
			before := h.run("a", "write", "kept", "0")
			box := h.box("a")
			box.procs = 1
			file := filepath.Join(box.root, "kept")
			write := func(n int) {
				if err := os.WriteFile(file, []byte(strconv.Itoa(n)), 0o644); err != nil {
					t.Error(err)
				}
			}
			asked := 0
			write(10)
			box.held = func() bool {
				if asked++; asked > runs {
					return true
				}
				write(10 + asked)
				return false
			}
			c, err := h.Commit(ctx, "a", "moving")
			if thawed := box.thawed.Load(); thawed == 0 {
				t.Error("the processes stay stopped")
			}
			if name == "always" {
				if !fault.Is(err, fault.Conflict) || fault.HintOf(err) == "" || asked != takeTries {
					t.Errorf("%+v, %v, after %d attempts", c, err, asked)
				}
				rec, err := h.DB.Sandbox(ctx, "a")
				if err != nil || string(rec.Head) != before.Head {
					t.Errorf("HEAD is %s, %v", rec.Head, err)
				}
				return
			}
			if err != nil || !c.Changed || asked != 2 {
				t.Fatalf("%+v, %v, after %d attempts", c, err, asked)
			}
			if got := h.reads("a", c.Head, "/kept"); got != "11" {
				t.Errorf("the snapshot has %q", got)
			}
		})
	}
}
