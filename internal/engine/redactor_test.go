//go:build linux

package engine

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/meta"
)

func TestWhatIsCalledASecret(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"API_TOKEN": true, "github_token": true, "PGPASSWORD": true, "MYSQL_PWD": true, "SSH_KEYS": true, "DB_PASS": true, "X_AUTH": true, "AWS_CREDENTIALS": true,
		"SECRET2": true, "PWD": false, "OLDPWD": false, "PATH": false, "GIT_AUTHOR_NAME": false, "KEYBOARD": false, "TOKENIZERS_PARALLELISM": false, "ACCESS": false, "HOME": false, "": false,
	} {
		if calledSecret(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestARedactorKnowsTheSecretsOfItsSandbox(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := context.Background()
	rec := &meta.Sandbox{ID: "0123456789ab", Name: "a"}
	rec.Env = []string{"API_TOKEN=correct horse", "LANG=C.UTF-8"}
	if err := os.MkdirAll(h.sandboxDir(rec.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "correct horse C.UTF-8 battery staple 9f86d081884c7d659a2feaa0c55ad015"
	c := h.redactor(ctx, rec, "DB_PASS=battery staple", "RUN=9f86d081884c7d659a2feaa0c55ad015")
	for _, gone := range []string{"horse", "battery", "9f86"} {
		if got := c.clean(text); strings.Contains(got, gone) || !strings.Contains(got, "C.UTF-8") {
			t.Errorf("%q is left in %q", gone, got)
		}
	}
	if got := h.redactor(ctx, rec).clean(text); strings.Contains(got, "horse") || !strings.Contains(got, "battery") {
		t.Errorf("by the sandbox alone: %q", got)
	}
	if got := h.clean(text); got != text {
		t.Errorf("by no sandbox: %q", got)
	}
	// What the decoys hold is not known: nothing is let through.
	if err := os.WriteFile(h.decoysPath(rec.ID), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := h.redactor(ctx, rec).clean(text); got != leftOut {
		t.Errorf("without its decoys: %q", got)
	}
}

func TestRedactorsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	for i := range 2 * maxCleaners {
		h.redactor(context.Background(), &meta.Sandbox{ID: "0123456789ab"}, "TOKEN="+strings.Repeat("x", 1000)+itoa(i))
	}
	if n, size := len(h.cleaners.made), h.cleaners.size(); n > maxCleaners || size > maxCleanerBytes {
		t.Errorf("%d with %d bytes are kept", n, size)
	}
}
