package daemon

import (
	"context"
	"log/slog"
	"sync"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/engine"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/redact"
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
		log.Error("the end of the ledger's intake is torn, and there is no room to set that aside: nothing is recorded, and so nothing done, until there is", "dir", dir)
	}
	return l, nil
}

// redactor gives what takes secrets of known formats out of the texts of records. It is
// made when it is first needed: that takes a millisecond.
func redactor(l *ledger.Ledger, log *slog.Logger) func(string) string {
	made := sync.OnceValue(func() func(string) string {
		r, _, err := redact.New(redact.Options{Key: l.Derive("redaction")})
		if err != nil {
			log.Error("texts are left out of the ledger", "err", err)
			return func(string) string { return "[not redacted, left out]" }
		}
		return r.String
	})
	return func(s string) string { return made()(s) }
}

// callerOf names who makes a request.
func callerOf(ctx context.Context) string {
	if engine.Inside(ctx) {
		return "the sandbox itself"
	}
	if id := auth.From(ctx).TokenID; id != "" {
		return "token " + id
	}
	return "owner"
}
