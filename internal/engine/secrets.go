//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
)

// newCleaners makes the Cleaners, which redact secrets from texts of sandboxes: secrets in their records, policies
// and decoys.
func newCleaners(e *Engine) *audit.Cleaners {
	return audit.NewCleaners(audit.CleanersConfig{
		Ledger: e.Ledger, Sandboxes: e.DB, Evidence: e.Policies.Evidence, Logger: e.Logger,
		DecoyTokens: func(rec *meta.Sandbox) ([]string, error) { return e.Egress.DecoyTokens(rec) },
	})
}

// autoMessageOf is message.Auto with secrets redacted.
func autoMessageOf(c audit.Cleaner, mark string, programs []wire.Program, paths []string) string {
	if cmds := c.RedactPrograms(programs); mark != "" || len(message.Commands(cmds)) > 0 {
		return message.Auto(mark, cmds, nil)
	}
	return message.Auto("", nil, c.RedactAll(paths))
}

// changesOf returns the paths that a capture found changed, for the record of an exit.
func changesOf(c audit.Cleaner, t taken) []format.Change {
	if len(t.paths) == 0 {
		return nil
	}
	before := t.before() // nil: unknown
	return c.RecordChanges(t.paths, func(path string) string {
		if t.gone[path] {
			return "removed"
		}
		if before != nil {
			if _, err := before.Lookup(path); fault.Is(err, fault.NotFound) {
				return "added"
			}
		}
		return "changed"
	})
}

// bookCore adapts the engine to the needs of its Book.
type bookCore struct{ e *Engine }

// policyNow returns the digest of the policy of a sandbox that is in force.
func (c bookCore) policyNow(ctx context.Context, rec *meta.Sandbox) (string, error) {
	all, err := c.e.Policies.Phases(ctx, rec)
	if err != nil {
		return "", err
	}
	return all[0].Digest, nil
}
