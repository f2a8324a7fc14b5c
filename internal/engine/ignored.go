//go:build linux

package engine

import (
	"context"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ignored"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// prepareIgnored creates the directories of the ignored paths of a presented sandbox, and returns them as mounts. The
// caller has the lock of the sandbox.
func prepareIgnored(
	ctx context.Context, e *Engine, rec *meta.Sandbox, paths []rootspec.HostMount,
) ([]rootspec.HostMount, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	e.shape.RLock()
	defer e.shape.RUnlock()
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return nil, err
	}
	parts, err := drv.Parts(live)
	if err != nil {
		return nil, err
	}
	var root *layer.View
	if drv.Plain() {
		root = e.Layers.PlainView(parts)
	} else {
		root = e.Layers.LiveView(live.Stack, parts)
	}
	for _, m := range paths {
		if err := ignored.Check(root.Lookup, m.To); fault.Is(err, fault.Invalid) {
			return nil, fault.New(fault.Invalid, "mount the ignored paths").Because(err).
				WithHint("rewind to a snapshot with a directory there; list them: coppice log %s", rec.Name)
		} else if err != nil {
			return nil, err
		}
	}
	return ignored.Prepare(e.FS, filepath.Join(e.sandboxDir(rec.ID), liveDir, ignored.DirName), root.Lookup, paths)
}

// ignorable refuses ignored paths that a sandbox which will start from a snapshot cannot have: where the snapshot has
// something else than a directory, where the commit of the sandbox's repository has files, and where a disk limit would
// not count the content. rec is the record of the sandbox or, with the ignored paths of the sandbox, of its parent.
func ignorable(ctx context.Context, e *Engine, rec *meta.Sandbox, at timeline.SnapshotID) error {
	if len(rec.Ignored) == 0 {
		return nil
	}
	if rec.Limits.Disk != 0 && rec.Driver != "overlay" { // only its quota is that of the directory of all generations
		return fault.New(fault.Unsupported, "the disk limit of driver %s does not count the ignored path %s", rec.Driver,
			rec.Ignored[0]).WithHint("remove it from history.ignore and --ignore, or drop disk= from --limit")
	}
	e.shape.RLock()
	defer e.shape.RUnlock()
	st, _, err := e.masks.Stack(ctx, rec, at)
	if err != nil {
		return err
	}
	var mounts []string
	if st.Host {
		all, err := rootfs.HostMounts()
		if err != nil {
			return err
		}
		for _, m := range all {
			mounts = append(mounts, m.Mountpoint)
		}
	}
	root := e.Layers.View(st, mounts...)
	for _, p := range rec.Ignored {
		if st.Host && rootspec.Within(p, e.Home) {
			return fault.New(fault.Invalid, "cannot ignore %s: a sandbox does not show %s", p, e.Home).
				WithHint("remove it from history.ignore and --ignore")
		}
		if err := ignored.Check(root.Lookup, p); err != nil {
			return err
		}
	}
	return e.trees.Recordable(ctx, rec)
}
