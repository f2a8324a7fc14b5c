//go:build linux

package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/restore"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// maxForeign is how many machine IDs of its ancestors a sandbox replaces, the newest ones. Nearly always it is the
// one in its files; others are there if a program copied them.
const maxForeign = 32

// identify gives a new sandbox that starts from the snapshot at of its base its own machine ID in place of those of the
// base. A base without one has none to replace, except the host, which can get one later. The caller holds shape for
// reading.
func identify(ctx context.Context, e *Engine, rec *meta.Sandbox, at timeline.SnapshotID) error {
	rec.MachineID, rec.Foreign = "", nil // those of an earlier attempt with another base
	if rec.Tier == tierWorkspace {
		return nil // commands see the host
	}
	defer e.masks.Forget(rec.ID)
	err := disown(ctx, e, rec, at)
	if err != nil || len(rec.Foreign) == 0 && !rec.Host {
		return err
	}
	rec.MachineID, err = newMachineID(e.Rand)
	return err
}

// identifyAbove is identify for a sandbox whose first snapshot is made above that of its base.
func identifyAbove(ctx context.Context, e *Engine, rec *meta.Sandbox, at timeline.SnapshotID) error {
	e.shape.RLock()
	defer e.shape.RUnlock()
	return identify(ctx, e, rec, at)
}

// identifyForks prepares the record that forks of a sandbox at a snapshot are made from: the machine IDs that the
// forks replace, and whether other things in their files identify the parent.
func identifyForks(ctx context.Context, e *Engine, parent *meta.Sandbox, at timeline.SnapshotID) error {
	if parent.Tier == tierWorkspace {
		return nil
	}
	e.shape.RLock()
	defer e.shape.RUnlock()
	if err := disown(ctx, e, parent, at); err != nil {
		return err
	}
	st, _, err := e.masks.Stack(ctx, parent, at)
	if err != nil {
		return err
	}
	own := st
	if n := slices.Index(st.Layers, st.Mask); parent.Root == "/" && n >= 0 {
		own = rootspec.Stack{Layers: st.Layers[:n]} // keys of the host identify the host
	}
	keys := func(name string) bool { return strings.HasPrefix(name, "ssh_host_") && strings.HasSuffix(name, "_key") }
	if parent.Unkeyed, err = hasFile(ctx, e.Layers.View(own), restore.SSHDir, keys); err != nil || parent.Unkeyed {
		return err
	}
	all := func(string) bool { return true }
	parent.Unkeyed, err = hasFile(ctx, e.Layers.View(st), restore.HooksDir, all)
	return err
}

// disown adds the machine ID of a sandbox, and those in the files of a snapshot, to the ones that are not its own.
// The caller holds shape for reading.
func disown(ctx context.Context, e *Engine, rec *meta.Sandbox, at timeline.SnapshotID) error {
	ids, err := e.masks.MachineIDs(ctx, rec, at)
	if err != nil {
		return err
	}
	foreign := slices.Clone(rec.Foreign)
	if rec.MachineID != "" {
		ids = append([]string{rec.MachineID}, ids...)
	}
	for _, id := range ids {
		foreign = append(slices.DeleteFunc(foreign, func(f string) bool { return f == id }), id)
	}
	rec.Foreign = foreign[max(0, len(foreign)-maxForeign):]
	return nil
}

// hasFile reports whether a directory has a regular file whose name is accepted. A missing directory has none; one that
// the daemon may not read, and the sandbox perhaps may, can have one.
func hasFile(ctx context.Context, files *layer.View, dir string, accepted func(name string) bool) (bool, error) {
	list, err := files.ReadDir(ctx, dir)
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
		return false, nil // missing, or not a directory
	}
	if errors.Is(err, fs.ErrPermission) {
		return true, nil
	}
	return slices.ContainsFunc(list, func(f layer.Entry) bool {
		return f.Mode&unix.S_IFMT == unix.S_IFREG && accepted(path.Base(f.Path))
	}), fault.Wrap(err, "read %s", dir)
}

// newMachineID draws a machine-id(5): a UUID of version 4 as 32 hex digits.
func newMachineID(random io.Reader) (string, error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", fault.Wrap(err, "read random bytes")
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return hex.EncodeToString(b), nil
}
