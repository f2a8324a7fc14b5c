package daemon

import (
	"context"
	"log/slog"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/ledger"
)

// openLedger opens the ledger of a home, and says what a crash left of it.
func openLedger(dir string, log *slog.Logger) (*ledger.Ledger, error) {
	l, found, err := ledger.Open(dir, ledger.Options{})
	if err != nil {
		return nil, err
	}
	if found.Mended > 0 {
		log.Info("the ledger was not closed; what was acknowledged is there", "records", found.Mended)
	}
	for _, name := range found.Aside {
		log.Warn("a torn end of the ledger, which was never acknowledged, was set aside", "dir", dir, "file", name)
	}
	if found.Torn {
		log.Error("the end of the ledger's intake is torn, and there is no room to set that aside: nothing is recorded, "+
			"and so nothing done, until there is", "dir", dir)
	}
	return l, nil
}

// callerOf names who makes a request.
func callerOf(ctx context.Context) string {
	if audit.Inside(ctx) {
		return "the sandbox itself"
	}
	if id := auth.From(ctx).TokenID; id != "" {
		return "token " + id
	}
	return "owner"
}
