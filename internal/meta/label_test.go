package meta

import (
	"database/sql"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestLabels_OfAnOlderHome covers a record of a build without labels: it has none, and can get some, which are then
// encrypted.
func TestLabels_OfAnOlderHome(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "meta.db")
	id := newBox(t)
	first := timeline.Snapshot{ID: newSnap(t), Sandbox: id, Cause: timeline.CauseImport, Created: epoch}
	d := must(Open(t.Context(), path))(t)
	ok(t, d.CreateSandbox(t.Context(), Sandbox{ID: id, Name: "box", Created: epoch, Head: first.ID, MountTop: first.ID,
		Gen: 1, Config: Config{From: "host", Driver: "copy", Tier: "process"}}, first))
	ok(t, d.Close())
	db := must(sql.Open("sqlite", path))(t)
	var config string
	ok(t, db.QueryRow("SELECT config FROM sandboxes").Scan(&config))
	ok(t, db.Close())
	if strings.Contains(config, "labels") {
		t.Fatalf("without labels, a record is not as older builds wrote it: %s", config)
	}

	labels := map[string]string{"team": "conspicuous-value", "ci": ""}
	d = must(Open(t.Context(), path))(t)
	if rec := must(d.Sandbox(t.Context(), "box"))(t); rec.Labels != nil {
		t.Errorf("%v", rec.Labels)
	}
	ok(t, d.UpdateSandbox(t.Context(), id, func(r *Sandbox) error { r.Labels = labels; return nil }))
	ok(t, d.Close())
	d = must(Open(t.Context(), path))(t)
	if rec := must(d.Sandboxes(t.Context()))(t)[0]; !maps.Equal(rec.Labels, labels) || rec.From != "host" {
		t.Errorf("%v, from %q", rec.Labels, rec.From)
	}
	ok(t, d.Close())
	files := must(filepath.Glob(filepath.Join(filepath.Dir(path), "*")))(t)
	for _, f := range files {
		if strings.Contains(string(must(os.ReadFile(f))(t)), "conspicuous-value") {
			t.Errorf("%s has a label in clear", f)
		}
	}
}
