//go:build linux

package engine

import (
	"context"
	"log/slog"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
)

// diskLimits reports how disk limits are enforced and how much is charged to them. Drivers enforce them each time
// they present a live root; the chooser decides which sandbox may have one. It has no state.
type diskLimits struct {
	drivers map[string]rootfs.Driver
	live    func(context.Context, *meta.Sandbox) (rootfs.Driver, rootfs.Live, error)
	log     *slog.Logger
}

// limiter returns the driver and generation of a sandbox with a disk limit. A limit that nothing
// enforces is an error.
func (d diskLimits) limiter(ctx context.Context, rec *meta.Sandbox) (rootfs.Limiter, rootfs.Live, error) {
	drv, live, err := d.live(ctx, rec)
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
		WithHint("see what this host supports: coppice system probe")
}

// limit returns how the disk limit of a presented sandbox is enforced; the zero value if it has none.
func (d diskLimits) limit(ctx context.Context, rec *meta.Sandbox) (rootfs.Limit, error) {
	if rec.Limits.Disk == 0 {
		return rootfs.Limit{}, nil
	}
	l, live, err := d.limiter(ctx, rec)
	if err != nil {
		return rootfs.Limit{}, err
	}
	return l.Limit(live)
}

// used returns how many bytes count towards the limit of a sandbox. It is 0 before the sandbox is
// presented for the first time, and with driver btrfs also between generations.
func (d diskLimits) used(ctx context.Context, rec *meta.Sandbox) (int64, error) {
	l, live, err := d.limiter(ctx, rec)
	if err != nil {
		return 0, err
	}
	n, err := l.Used(live)
	if fault.Is(err, fault.NotFound) {
		return 0, nil
	}
	return n, err
}

// usedUp reports whether so little of a limit is left that this may be the cause of a failure.
func usedUp(used, limit int64) bool { return limit-used <= limit/64 }

// blame adds to err, with which a box failed to start, that the disk limit is used up, if it is. xfs applies the
// limit also to the kernel, which makes directories when it mounts an overlay.
func (d diskLimits) blame(ctx context.Context, rec *meta.Sandbox, err error) error {
	if rec.Limits.Disk == 0 {
		return err
	}
	if used, uerr := d.used(ctx, rec); uerr != nil || !usedUp(used, rec.Limits.Disk) {
		return err
	}
	return fault.New(fault.NoSpace, "disk limit reached").Because(err).
		WithHint("start a new live root: coppice rewind %s HEAD; if snapshots use the space, delete some: coppice system gc "+
			"--keep-last N %s", rec.Name, rec.Name)
}

// drop removes the limit of a sandbox that is being removed, whose directory is dir.
func (d diskLimits) drop(dir string) {
	for name, drv := range d.drivers {
		if l, ok := drv.(rootfs.Limiter); ok {
			if err := l.Unlimit(dir); err != nil {
				d.log.Warn("could not remove the disk limit of a removed sandbox", "driver", name, "err", err)
			}
		}
	}
}
