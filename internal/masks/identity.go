//go:build linux

package masks

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// identity is the identity layer of a stack, and what it was made for.
type identity struct {
	at   timeline.SnapshotID
	mask string // of the stack
	own  string // the machine ID
	host string // the machine IDs of the host, if it is the base
	dir  string // "" if the stack needs none
}

// isGone reports whether the layer was removed.
func (i identity) isGone() bool {
	if i.dir == "" {
		return false
	}
	_, err := os.Lstat(i.dir)
	return err != nil
}

// identityNote returns the path of the file that names the identity layer with which the live root of a sandbox was
// last mounted.
func (m *Masks) identityNote(id timeline.SandboxID) string {
	return filepath.Join(m.config.Home, "sandboxes", string(id), "identity")
}

// MachineIDs returns the machine IDs in the files of a snapshot, as the sandbox may see it without its own identity.
func (m *Masks) MachineIDs(ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID) ([]string, error) {
	st, _, err := m.stack(ctx, rec, at)
	if err != nil {
		return nil, err
	}
	return rootfs.MachineIDs(st)
}

// identify puts the identity layer of a sandbox on top of the stack of a snapshot, if it needs one.
func (m *Masks) identify(rec *meta.Sandbox, at timeline.SnapshotID, st rootspec.Stack) (rootspec.Stack, error) {
	if rec.MachineID == "" {
		return st, nil
	}
	var ofHost []string // now, which need not be those when the sandbox was made
	if rec.Host {
		var err error
		if ofHost, err = rootfs.MachineIDs(rootspec.Stack{Host: true}); err != nil {
			return st, fault.Wrap(err, "read the host's machine ID")
		}
	}
	host := strings.Join(ofHost, " ")
	m.mu.Lock()
	own, known := m.identities[rec.ID]
	m.mu.Unlock()
	if !known || own.at != at || own.mask != st.Mask || own.own != rec.MachineID || own.host != host || own.isGone() {
		own = identity{at: at, mask: st.Mask, own: rec.MachineID, host: host}
		k := rootfs.Identity{Below: st, MachineID: rec.MachineID, Instead: slices.Concat(rec.Foreign, ofHost),
			ByFiles: m.config.ByFiles}
		var err error
		if own.dir, err = k.Make(m.dir()); err != nil {
			return st, fault.Wrap(err, "replace the machine ID of sandbox %s", rec.Name)
		}
		m.mu.Lock()
		m.identities[rec.ID] = own
		if own.dir != "" {
			m.made[filepath.Base(own.dir)] = own.own
		}
		m.mu.Unlock()
	}
	if own.dir != "" {
		st.Layers, st.Identity = slices.Concat([]string{own.dir}, st.Layers), own.dir
	}
	return st, nil
}

// noteIdentity records which identity layer the live root of a sandbox is about to be mounted with.
func (m *Masks) noteIdentity(ctx context.Context, rec *meta.Sandbox) error {
	if rec.MachineID == "" {
		return nil
	}
	st, _, err := m.Stack(ctx, rec, rec.MountTop)
	if err != nil || st.Identity == "" {
		return err
	}
	return m.noteUse(m.identityNote(rec.ID), st.Identity)
}

// noteUse writes the name of a layer that is about to be mounted into the file note.
func (m *Masks) noteUse(note, dir string) error {
	text := []byte(filepath.Base(dir))
	if old, err := os.ReadFile(note); err == nil && bytes.Equal(old, text) {
		return nil
	}
	// These layers do not survive a power failure.
	return fault.Wrap(vfs.NoteUnsynced(m.config.FS, note, text), "record the masks in use")
}

// Removed forgets a removed sandbox, and removes its identity layers, unless another sandbox with the same machine ID
// may be mounted with them. The caller holds the lock for writing that those who read stacks hold for reading.
func (m *Masks) Removed(ctx context.Context, rec *meta.Sandbox) error {
	m.Forget(rec.ID)
	if rec.MachineID == "" {
		return nil
	}
	names := m.madeFor(func(id string) bool { return id == rec.MachineID })
	if text, err := os.ReadFile(m.identityNote(rec.ID)); err == nil && isName(string(text)) {
		names[string(text)] = true // made by an earlier daemon
	}
	return m.dropIdentities(ctx, names, rec.ID)
}

// SweepIdentities removes the identity layers that no live root can be mounted with; they are made again for the next
// reader. The caller holds the lock for writing that those who read stacks hold for reading.
func (m *Masks) SweepIdentities(ctx context.Context) error {
	return m.dropIdentities(ctx, m.madeFor(func(string) bool { return true }), "")
}

// madeFor returns the names of the identity layers that this process has made or found, for machine IDs.
func (m *Masks) madeFor(wanted func(machineID string) bool) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	for name, id := range m.made {
		if wanted(id) {
			names[name] = true
		}
	}
	return names
}

// dropIdentities removes identity layers, except those that live roots were last mounted with. The root of the sandbox
// without, if it is not "", is not mounted any more.
func (m *Masks) dropIdentities(ctx context.Context, names map[string]bool, without timeline.SandboxID) error {
	if len(names) == 0 {
		return nil
	}
	used, sure, err := m.noted(without)
	if err != nil || !sure {
		return err
	}
	for name := range names {
		if used[name] {
			continue
		}
		aside, err := m.setAside(name)
		if err == nil {
			err = m.config.Discard(ctx, aside)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		m.mu.Lock()
		delete(m.made, name)
		m.mu.Unlock()
	}
	return nil
}

// Files opens regular files of a sandbox by absolute path; *layer.View implements it.
type Files interface {
	Open(name string) (*os.File, error)
}

// Identities returns the files of two sandboxes that have machine IDs in both which are the sandboxes' own, or which
// Coppice replaces, and that are otherwise equal: they differ because the sandboxes do.
func Identities(a, b *meta.Sandbox, fa, fb Files) map[string]bool {
	known := slices.Concat([]string{a.MachineID, b.MachineID}, a.Foreign, b.Foreign)
	list := map[string]bool{}
	for _, name := range rootfs.MachineIDFiles() {
		ofA, inA := besidesAny(known, fa, name)
		ofB, inB := besidesAny(known, fb, name)
		if inA && inB && ofA == ofB {
			list[name] = true
		}
	}
	return list
}

// besidesAny reports whether a file has one of the machine IDs, and returns the rest of its text.
func besidesAny(ids []string, files Files, name string) (rest string, ok bool) {
	f, err := files.Open(name)
	if err != nil {
		return "", false
	}
	defer f.Close()
	id, text, err := rootfs.ReadMachineID(f)
	if err != nil || id == "" || !slices.Contains(ids, id) {
		return "", false
	}
	return strings.Replace(text, id, "", 1), true
}
