//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
)

// Drivers enforce disk limits, each time that they present a live root. The chooser
// decides who may have one; what is charged to it is reported here.

// limiter gives a sandbox's driver and generation, when that has a disk limit. A
// limit that nothing enforces is an error.
func (e *Engine) limiter(ctx context.Context, rec *meta.Sandbox) (rootfs.Limiter, rootfs.Live, error) {
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return nil, live, err
	}
	l, ok := drv.(rootfs.Limiter)
	if !ok {
		err = noLimiter(rec.Driver)
	}
	return l, live, err
}

func noLimiter(driver string) error {
	return fault.New(fault.Unsupported, "driver %s cannot enforce a disk limit", driver).
		WithHint("see what this host can do: coppice probe")
}

// diskLimit says how the disk limit of a presented sandbox is enforced; the zero
// value where it has none.
func (e *Engine) diskLimit(ctx context.Context, rec *meta.Sandbox) (rootfs.Limit, error) {
	if rec.Limits.Disk == 0 {
		return rootfs.Limit{}, nil
	}
	l, live, err := e.limiter(ctx, rec)
	if err != nil {
		return rootfs.Limit{}, err
	}
	return l.Limit(live)
}

// diskUsed is what counts towards the limit of a sandbox. Before it is presented
// for the first time that is nothing; with driver btrfs, nor between generations.
func (e *Engine) diskUsed(ctx context.Context, rec *meta.Sandbox) (int64, error) {
	l, live, err := e.limiter(ctx, rec)
	if err != nil {
		return 0, err
	}
	n, err := l.Used(live)
	if fault.Is(err, fault.NotFound) {
		return 0, nil
	}
	return n, err
}

// usedUp says that so little of a limit is left that it may be what stops somebody.
func usedUp(used, limit int64) bool { return limit-used <= limit/64 }

// blameLimit says that the limit is used up, if it is, when a box did not start
// because of err: xfs holds the kernel itself to it, which makes directories when
// it mounts an overlay.
func (e *Engine) blameLimit(ctx context.Context, rec *meta.Sandbox, err error) error {
	if rec.Limits.Disk == 0 {
		return err
	}
	if used, uerr := e.diskUsed(ctx, rec); uerr != nil || !usedUp(used, rec.Limits.Disk) {
		return err
	}
	return fault.New(fault.NoSpace, "the disk limit is used up").Because(err).
		WithHint("begin a new live root: coppice checkout %s HEAD; if snapshots are what takes it, drop some: coppice gc "+
			"--keep-last N %s", rec.Name, rec.Name)
}

// unlimit gives back what is kept about the limit of a sandbox that is being
// removed, whose directory is dir.
func (e *Engine) unlimit(dir string) {
	for name, drv := range e.Drivers {
		if l, ok := drv.(rootfs.Limiter); ok {
			if err := l.Unlimit(dir); err != nil {
				e.Logger.Warn("a disk limit stays, without a use", "driver", name, "err", err)
			}
		}
	}
}
