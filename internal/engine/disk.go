//go:build linux

package engine

import (
	"context"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
)

// Disk limits are put in force by drivers, each time that they present a live
// root; here is decided who may have one, and what is charged to it.

// diskAble says of each driver why it cannot hold a sandbox to a disk limit; nil
// where it can. Drivers that the host cannot give are not asked.
func (e *Engine) diskAble(p wire.ProbeReport) map[string]error {
	out := map[string]error{}
	for name, drv := range e.Drivers {
		if it, ok := drivers.item(p, name); ok && !it.OK {
			continue
		}
		if l, ok := drv.(rootfs.Limiter); ok {
			out[name] = l.CanLimit()
		} else {
			out[name] = noLimiter(name)
		}
	}
	return out
}

// pickLimited is pick for a sandbox with a disk limit: of the drivers that the
// host can give, the strongest that can enforce it. able is of diskAble; plain
// says which drivers are out of the question, since host is the base.
func (c choice) pickLimited(
	p wire.ProbeReport, asked string, able map[string]error, host bool, plain func(string) bool,
) (got, why string, err error) {
	if asked != "" && asked != "auto" {
		if got, why, err = c.pick(p, asked, ""); err == nil {
			err = able[got]
		}
		return got, why, err
	}
	var lacks []string
	var first error
	for _, name := range c.names {
		lack, known := able[name]
		switch {
		case host && plain(name):
			continue
		case !known:
			if it, ok := c.item(p, name); ok {
				lacks = append(lacks, name+": "+it.Detail)
			}
		case lack == nil:
			why = "the strongest " + c.what + " that can enforce the disk limit here"
			if lacks != nil {
				why += "; not " + strings.Join(lacks, ", nor ")
			}
			return name, why, nil
		default:
			if lacks = append(lacks, name+": "+lack.Error()); first == nil {
				first = lack
			}
		}
	}
	if near := able["btrfs"]; near != nil && !host {
		return "", "", near // the store is on btrfs, where nothing else will do
	}
	if first == nil { // the host gives none of them, limit or not
		return c.pick(p, "", "")
	}
	return "", "", first
}

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
