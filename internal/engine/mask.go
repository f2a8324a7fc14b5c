//go:build linux

package engine

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// What a policy hides is hidden by a layer, the mask, right above what a sandbox began on, the
// files of its repository among it: see rootfs.Mask. No stack that has the host at its bottom is
// given without one.
//
// Masks lie in Home/masks. They are never changed, and taken away by nobody but a
// daemon that begins: until then somebody may read by one, or have it mounted, and
// would see through it while it goes. A sandbox's file "mask" names the one that its
// live root was last mounted with, since that may outlive the daemon.

func (e *Engine) masksDir() string { return filepath.Join(e.Home, "masks") }

func (e *Engine) maskNote(id timeline.SandboxID) string {
	return filepath.Join(e.sandboxDir(id), "mask")
}

// newMask makes the mask of a sandbox for the host as it is now.
func (e *Engine) newMask(ctx context.Context, rec *meta.Sandbox) (rootfs.Made, error) {
	c, err := e.Policies.Hides(ctx, rec)
	if err != nil || !rec.Host && len(c.Hide) == 0 {
		return rootfs.Made{}, err
	}
	k := rootfs.Mask{Hide: c.Hide, Decoys: c.Decoys}
	if rec.Host {
		k.Below.Host = true
		if k.Mounts, err = rootfs.HostMounts(); err != nil {
			return rootfs.Made{}, err
		}
	}
	if rec.Base != "" {
		ids, err := e.stacks.Below(ctx, timeline.SnapshotID(rec.Base))
		if err != nil {
			return rootfs.Made{}, err
		}
		k.Below.Layers = e.stacks.Dirs(ids)
	}
	made, err := k.Make(e.masksDir())
	return made, fault.Wrap(err, "hide paths from sandbox %s", rec.Name)
}

// maskLive makes the mask that a live root is about to be mounted with. The caller
// holds the sandbox's lock, and nothing of it is mounted.
func (e *Engine) maskLive(ctx context.Context, rec *meta.Sandbox) (rootfs.Made, error) {
	made, err := e.newMask(ctx, rec)
	if err != nil || made.Dir == "" {
		return made, err
	}
	note, text := e.maskNote(rec.ID), []byte(filepath.Base(made.Dir))
	if old, err := os.ReadFile(note); err != nil || !bytes.Equal(old, text) {
		if err := vfs.NoteUnsynced(e.FS, note, text); err != nil { // masks do not outlive a power loss
			return made, fault.Wrap(err, "note what is hidden")
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.masks[rec.ID] = made.Dir
	return made, nil
}

// maskOf gives the mask that a sandbox is read with: that of its live root, or one that
// is made for it; "" is none.
func (e *Engine) maskOf(ctx context.Context, rec *meta.Sandbox) (string, error) {
	e.mu.Lock()
	dir := e.masks[rec.ID]
	e.mu.Unlock()
	if dir != "" {
		return dir, nil
	}
	if text, err := os.ReadFile(e.maskNote(rec.ID)); err == nil && len(text) > 0 &&
		filepath.Base(string(text)) == string(text) {
		dir = filepath.Join(e.masksDir(), string(text))
		if _, err := os.Lstat(dir); err != nil {
			dir = ""
		}
	}
	if dir == "" {
		made, err := e.newMask(ctx, rec)
		if err != nil || made.Dir == "" {
			return "", err
		}
		dir = made.Dir
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.masks[rec.ID] == "" {
		e.masks[rec.ID] = dir
	}
	return e.masks[rec.ID], nil
}

// forgetMask is for a sandbox that is gone.
func (e *Engine) forgetMask(id timeline.SandboxID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.masks, id)
}

// stack finds the directories that make up the root of a snapshot, as the sandbox may
// see it, and the layers among them.
func (e *Engine) stack(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID,
) (rootspec.Stack, []timeline.LayerID, error) {
	mask, err := e.maskOf(ctx, rec)
	if err != nil {
		return rootspec.Stack{}, nil, err
	}
	ids, err := e.stacks.Below(ctx, id)
	if err != nil {
		return rootspec.Stack{}, nil, err
	}
	if mask == "" {
		if rec.Host {
			return rootspec.Stack{}, nil, fault.New(fault.Internal, "sandbox %s would see all of the host", rec.Name)
		}
		return rootspec.Stack{Layers: e.stacks.Dirs(ids)}, ids, nil
	}
	st := rootspec.Stack{Host: rec.Host, Mask: mask}
	over := len(ids) // how many lie on the mask
	if rec.Base != "" {
		if ids, over, err = e.stacks.Over(ctx, timeline.SnapshotID(rec.Base), id); err != nil {
			return rootspec.Stack{}, nil, err
		}
	}
	st.Layers = slices.Concat(e.stacks.Dirs(ids[:over]), []string{mask}, e.stacks.Dirs(ids[over:]))
	return st, ids, nil
}

// sweepMasks removes the masks that no live root can be mounted with. Nobody reads by
// one yet. After a reboot none is mounted, and one may not be whole. A mask is renamed
// before it is removed: part of one is never found by the name of the whole.
func (e *Engine) sweepMasks(ctx context.Context) error {
	masks, err := os.ReadDir(e.masksDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "look for what hides paths")
	}
	boot, err := e.DB.Setting(ctx, settingBoot)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	rebooted := boot != e.BootID
	if !rebooted {
		dirs, err := os.ReadDir(filepath.Join(e.Home, "sandboxes"))
		if err != nil {
			return fault.Wrap(err, "look for what hides paths")
		}
		for _, d := range dirs {
			text, err := os.ReadFile(e.maskNote(timeline.SandboxID(d.Name())))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				e.Logger.Warn("cannot tell which masks are in use; none is removed", "sandbox", d.Name(), "err", err)
				return nil
			}
			used[string(text)] = true
		}
	}
	for _, m := range masks {
		if used[m.Name()] {
			continue
		}
		dir := filepath.Join(e.masksDir(), m.Name())
		if sum, err := hex.DecodeString(m.Name()); err == nil && len(sum) == sha256.Size {
			aside := filepath.Join(e.masksDir(), ".removed-"+rand.Text())
			if err := vfs.Rename(e.FS, dir, aside); err != nil && rebooted {
				return fault.Wrap(err, "remove what hides paths")
			} else if err != nil {
				e.Logger.Warn("a mask stays that is not in use", "dir", dir, "err", err)
				continue
			}
			dir = aside
		}
		if err := e.discard(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}
