package daemon

import (
	"context"
	"log/slog"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/ledger"
)

// openLedger opens the ledger of a home, and logs the damage that a crash left.
func openLedger(dir string, log *slog.Logger) (*ledger.Ledger, error) {
	l, found, err := ledger.Open(dir, ledger.Options{})
	if err != nil {
		return nil, err
	}
	if found.Mended > 0 {
		log.Info("the ledger was not closed cleanly; all acknowledged records are intact", "records", found.Mended)
	}
	for _, name := range found.Aside {
		log.Warn("moved aside a torn end of the ledger that was never acknowledged", "dir", dir, "file", name)
	}
	if found.Torn {
		log.Error("the end of the ledger's intake is torn, and the disk is too full to move it aside: "+
			"operations are refused until there is space", "dir", dir)
	}
	return l, nil
}

// callerOf describes the caller of a request.
func callerOf(ctx context.Context) string {
	if audit.Inside(ctx) {
		return "the sandbox itself"
	}
	if id := auth.From(ctx).TokenID; id != "" {
		return "token " + id
	}
	return "owner"
}
