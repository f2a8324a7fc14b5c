//go:build linux

package audit

import (
	"context"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

func TestCleaners_BoundRedactors(t *testing.T) {
	t.Parallel()
	book, _, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	m := NewCleaners(CleanersConfig{
		Ledger: book, Logger: slog.New(slog.DiscardHandler),
		DecoyTokens: func(*meta.Sandbox) ([]string, error) { return nil, nil },
		Evidence: func(context.Context, *meta.Sandbox) (policy.Evidence, error) {
			return policy.DefaultEvidence(), nil
		},
	})
	for i := range 2 * maxCleaners {
		m.For(t.Context(), &meta.Sandbox{ID: "0123456789ab"}, "TOKEN="+strings.Repeat("x", 1000)+strconv.Itoa(i))
	}
	if n, size := len(m.made), m.size(); n > maxCleaners || size > maxCleanerBytes {
		t.Errorf("%d cleaners with %d bytes are cached", n, size)
	}
}
