//go:build linux

package engine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/meta"
)

func TestRedactor_KnowsSandboxSecrets(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := context.Background()
	rec := &meta.Sandbox{ID: "0123456789ab", Name: "a"}
	rec.Env = []string{"API_TOKEN=correct horse", "LANG=C.UTF-8"}
	if err := os.MkdirAll(h.sandboxDir(rec.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "correct horse C.UTF-8 battery staple 9f86d081884c7d659a2feaa0c55ad015"
	c := h.cleaners.For(ctx, rec, "DB_PASS=battery staple", "RUN=9f86d081884c7d659a2feaa0c55ad015")
	for _, gone := range []string{"horse", "battery", "9f86"} {
		if got := c.RecordText(text); strings.Contains(got, gone) || !strings.Contains(got, "C.UTF-8") {
			t.Errorf("%q is left in %q", gone, got)
		}
	}
	got := h.cleaners.For(ctx, rec).RecordText(text)
	if strings.Contains(got, "horse") || !strings.Contains(got, "battery") {
		t.Errorf("redacted for the sandbox alone: %q", got)
	}
	if got := h.cleaners.Formats().RecordText(text); got != text {
		t.Errorf("redacted for no sandbox: %q", got)
	}
	// If the tokens of decoys are unknown, the text is omitted.
	if err := os.WriteFile(filepath.Join(h.sandboxDir(rec.ID), "decoys"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := h.cleaners.For(ctx, rec).RecordText(text); got != audit.LeftOut {
		t.Errorf("without its decoys: %q", got)
	}
}
