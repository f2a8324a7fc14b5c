//go:build linux

package masks

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/stacks"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Policies returns what the policy of a sandbox hides; *policies.Policies implements it.
type Policies interface {
	Hides(ctx context.Context, rec *meta.Sandbox) (policies.Covered, error)
}

// Config configures Masks. All fields except ByFiles are required.
type Config struct {
	Policies Policies
	Stacks   *stacks.Stacks
	Home     string // COPPICE_HOME, which has the directories masks and sandboxes
	FS       vfs.FS
	ByFiles  bool // see rootfs.Mask
	// Discard removes a tree. It logs a tree that cannot be removed, and fails only if ctx ends.
	Discard func(ctx context.Context, dir string) error
	Log     *slog.Logger
}

// Masks creates and finds the masks of sandboxes. Create one with New. All methods are safe for concurrent use.
type Masks struct {
	config Config // never changed

	mu         sync.Mutex
	known      map[timeline.SandboxID]string   // the mask that each sandbox is read with, see Of; guarded by mu
	identities map[timeline.SandboxID]identity // the identity layer that each was last read with; guarded by mu
	made       map[string]string               // names of identity layers, with their machine IDs; guarded by mu
}

// New returns the Masks of a home.
func New(c Config) *Masks {
	return &Masks{
		config: c, known: map[timeline.SandboxID]string{}, identities: map[timeline.SandboxID]identity{},
		made: map[string]string{},
	}
}

func (m *Masks) dir() string { return filepath.Join(m.config.Home, "masks") }

// note returns the path of the file that names the mask with which the live root of a sandbox was last mounted.
func (m *Masks) note(id timeline.SandboxID) string {
	return filepath.Join(m.config.Home, "sandboxes", string(id), "mask")
}

// Make creates the mask of a sandbox for the current state of the host. The result is zero if nothing is to be
// hidden.
func (m *Masks) Make(ctx context.Context, rec *meta.Sandbox) (rootfs.Made, error) {
	c, err := m.config.Policies.Hides(ctx, rec)
	if err != nil || !rec.Host && len(c.Hide) == 0 {
		return rootfs.Made{}, err
	}
	k := rootfs.Mask{Hide: c.Hide, Decoys: c.Decoys, ByFiles: m.config.ByFiles}
	if rec.Host {
		k.Below.Host = true
		if k.Mounts, err = rootfs.HostMounts(); err != nil {
			return rootfs.Made{}, err
		}
	}
	if rec.Base != "" {
		ids, err := m.config.Stacks.Below(ctx, timeline.SnapshotID(rec.Base))
		if err != nil {
			return rootfs.Made{}, err
		}
		k.Below.Layers = m.config.Stacks.Dirs(ids)
	}
	made, err := k.Make(m.dir())
	return made, fault.Wrap(err, "hide paths from sandbox %s", rec.Name)
}

// ForMount creates the mask and the identity layer for the next mount of a live root; the sandbox is then read with
// them. The caller holds the lock of the sandbox, and nothing of the live root is mounted.
func (m *Masks) ForMount(ctx context.Context, _ *sandbox.Held, rec *meta.Sandbox) (rootfs.Made, error) {
	made, err := m.Make(ctx, rec)
	if err != nil {
		return made, err
	}
	if made.Dir != "" {
		if err := m.noteUse(m.note(rec.ID), made.Dir); err != nil {
			return made, err
		}
		m.mu.Lock()
		m.known[rec.ID] = made.Dir
		m.mu.Unlock()
	}
	return made, m.noteIdentity(ctx, rec)
}

// Of returns the directory of the mask that a sandbox is read with: that of its live root, or a new one; "" if there
// is none.
func (m *Masks) Of(ctx context.Context, rec *meta.Sandbox) (string, error) {
	m.mu.Lock()
	dir := m.known[rec.ID]
	m.mu.Unlock()
	if dir != "" {
		return dir, nil
	}
	if text, err := os.ReadFile(m.note(rec.ID)); err == nil && len(text) > 0 &&
		filepath.Base(string(text)) == string(text) {
		dir = filepath.Join(m.dir(), string(text))
		if _, err := os.Lstat(dir); err != nil {
			dir = ""
		}
	}
	if dir == "" {
		made, err := m.Make(ctx, rec)
		if err != nil || made.Dir == "" {
			return "", err
		}
		dir = made.Dir
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[rec.ID] == "" {
		m.known[rec.ID] = dir
	}
	return m.known[rec.ID], nil
}

// Forget drops the cached state of a sandbox.
func (m *Masks) Forget(id timeline.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, id)
	delete(m.identities, id)
}

// Stack returns the directories that form the root of a snapshot, as the sandbox may see it, and the IDs of its
// layers, topmost first. The caller must not change the layers.
func (m *Masks) Stack(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID,
) (rootspec.Stack, []timeline.LayerID, error) {
	st, ids, err := m.stack(ctx, rec, id)
	if err == nil {
		st, err = m.identify(rec, id, st)
	}
	return st, ids, err
}

// stack is Stack without the identity layer.
func (m *Masks) stack(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID,
) (rootspec.Stack, []timeline.LayerID, error) {
	mask, err := m.Of(ctx, rec)
	if err != nil {
		return rootspec.Stack{}, nil, err
	}
	ids, err := m.config.Stacks.Below(ctx, id)
	if err != nil {
		return rootspec.Stack{}, nil, err
	}
	if mask == "" {
		if rec.Host {
			return rootspec.Stack{}, nil, fault.New(fault.Internal, "cannot start sandbox %s: no mask would hide paths of "+
				"the host", rec.Name)
		}
		return rootspec.Stack{Layers: m.config.Stacks.Dirs(ids)}, ids, nil
	}
	st := rootspec.Stack{Host: rec.Host, Mask: mask}
	over := len(ids) // the number of layers above the mask
	if rec.Base != "" {
		if ids, over, err = m.config.Stacks.Over(ctx, timeline.SnapshotID(rec.Base), id); err != nil {
			return rootspec.Stack{}, nil, err
		}
	}
	st.Layers = slices.Concat(m.config.Stacks.Dirs(ids[:over]), []string{mask}, m.config.Stacks.Dirs(ids[over:]))
	return st, ids, nil
}

// Sweep removes the masks that no live root can be mounted with. It must be called before any file is read through a
// mask. After a reboot none is mounted, and some may be incomplete. A mask is renamed before it is removed, so that
// an incomplete one is never found by its name.
func (m *Masks) Sweep(ctx context.Context, rebooted bool) error {
	masks, err := os.ReadDir(m.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "list the masks")
	}
	used := map[string]bool{}
	if !rebooted {
		var sure bool
		if used, sure, err = m.noted(""); err != nil || !sure {
			return err
		}
	}
	for _, mask := range masks {
		if used[mask.Name()] {
			continue
		}
		aside, err := m.setAside(mask.Name())
		if err != nil && rebooted {
			return err
		} else if err != nil {
			m.config.Log.Warn("could not remove an unused mask", "err", err)
			continue
		}
		if err := m.config.Discard(ctx, aside); err != nil {
			return err
		}
	}
	return nil
}

// setAside renames a layer that is to be removed, so that no reader finds it, and returns its new path. What cannot be
// a layer keeps its name.
func (m *Masks) setAside(name string) (dir string, err error) {
	if !isName(name) {
		return filepath.Join(m.dir(), name), nil
	}
	dir = filepath.Join(m.dir(), ".removed-"+rand.Text())
	return dir, fault.Wrap(vfs.Rename(m.config.FS, filepath.Join(m.dir(), name), dir), "remove a mask")
}

// isName reports whether a complete layer can have the name.
func isName(name string) bool {
	sum, err := hex.DecodeString(name)
	return err == nil && len(sum) == sha256.Size
}

// noted returns the names of the masks that live roots were last mounted with, except that of a sandbox; sure is false
// if one of them cannot be read.
func (m *Masks) noted(except timeline.SandboxID) (names map[string]bool, sure bool, err error) {
	dirs, err := os.ReadDir(filepath.Join(m.config.Home, "sandboxes"))
	if err != nil {
		return nil, false, fault.Wrap(err, "list the masks")
	}
	names = map[string]bool{}
	for _, d := range dirs {
		id := timeline.SandboxID(d.Name())
		if id == except {
			continue
		}
		for _, note := range []string{m.note(id), m.identityNote(id)} {
			text, err := os.ReadFile(note)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				m.config.Log.Warn("cannot determine which masks are in use; none is removed", "sandbox", d.Name(), "err", err)
				return nil, false, nil
			}
			names[string(text)] = true
		}
	}
	return names, true, nil
}
