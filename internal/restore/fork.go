//go:build linux

package restore

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// rekeys is the key of a context whose commands re-key a sandbox.
type rekeys struct{}

// Rekeys reports whether a command with this context re-keys its sandbox, so that it must not wait for RekeyFork.
func Rekeys(ctx context.Context) bool { return ctx.Value(rekeys{}) != nil }

// RekeyFork re-keys a fork of files that has SSH host keys or hooks of its parent: it gets new keys, and its hooks run.
// What each of these commands changes is a snapshot of its own. It is called before the first command of the fork,
// without the lock of the sandbox, and does nothing at later calls. Concurrent callers wait for the same result. If a
// step fails, the next call begins again with the first.
func (r *Restorer) RekeyFork(ctx context.Context, id timeline.SandboxID) error {
	_, err, _ := r.identifying.Do(string(id), func() (any, error) {
		return nil, r.identify(context.WithValue(context.WithoutCancel(ctx), rekeys{}, true), id)
	})
	return err
}

// RekeyWithin is RekeyFork for a fork that nothing else uses, and that need not be re-keyed if ctx ends: no further
// command begins then, and each has the time that is left until the deadline.
func (r *Restorer) RekeyWithin(ctx context.Context, id timeline.SandboxID) error {
	_, err, _ := r.identifying.Do(string(id), func() (any, error) {
		return nil, r.identify(context.WithValue(ctx, rekeys{}, true), id)
	})
	return err
}

func (r *Restorer) identify(ctx context.Context, id timeline.SandboxID) error {
	rec, err := r.config.Records.Sandbox(ctx, string(id))
	if err != nil || !rec.Unkeyed {
		return err
	}
	if err := r.rekeyInside(ctx, string(id)); err != nil {
		return fault.New(fault.Conflict, "cannot give sandbox %s its own identity", rec.Name).Because(err).
			WithHint("correct %s with coppice cp, and run the command again; or make a fork that keeps the identity: "+
				"coppice fork %s NEW --same-identity", HooksDir, rec.Name)
	}
	return r.config.Records.UpdateSandbox(ctx, id, func(r *meta.Sandbox) error { r.Unkeyed = false; return nil })
}
