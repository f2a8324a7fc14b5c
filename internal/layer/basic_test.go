package layer

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

func TestCaptureBasic(t *testing.T) {
	ctx := context.Background()
	home := t.TempDir()
	s, err := Open(ctx, vfs.OS(), filepath.Join(home, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	live := filepath.Join(home, "live")
	os.MkdirAll(filepath.Join(live, "a/b"), 0o755)
	os.WriteFile(filepath.Join(live, "a/f"), []byte("one"), 0o644)
	parts := []rootspec.Part{{Dir: live, Path: "/"}}
	c, err := s.Capture(ctx, "0000000000000001", CaptureInput{Parts: parts})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c.Stats)
	os.WriteFile(filepath.Join(live, "a/f"), []byte("two"), 0o644)
	os.Remove(filepath.Join(live, "a/b"))
	c, err = s.Capture(ctx, "0000000000000002", CaptureInput{Parts: parts, Index: c.Index})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %v", c.Stats, c.Paths)
	c, err = s.Capture(ctx, "0000000000000003", CaptureInput{Parts: parts, Index: c.Index})
	if err != nil || !c.Empty {
		t.Fatal(err, c)
	}
	v := s.View(rootspec.Stack{Layers: []string{s.Dir("0000000000000002"), s.Dir("0000000000000001")}})
	if err := v.Walk(ctx, func(e Entry) error { t.Logf("%s %o %d", e.Path, e.Mode, e.Size); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Merge(ctx, "0000000000000004", []timeline.LayerID{"0000000000000002", "0000000000000001"}); err != nil {
		t.Fatal(err)
	}
}
