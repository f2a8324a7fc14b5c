//go:build linux

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// mounts tracks the layers that live roots are mounted with. A mount has the layers that its stack had when it was
// started. If a snapshot is removed meanwhile, merged layers replace its layers in the records, but the mount needs
// the old ones until its keeper exits. So each start notes its layers: in memory and, because keepers outlive the
// daemon, in a file. Noted layers are not removed from the disk.
type mounts struct {
	fs   vfs.FS
	path func(timeline.SandboxID) string // of the file of a sandbox

	mu    sync.Mutex // held last: see docs/design/locks.md
	noted map[timeline.SandboxID][]timeline.LayerID
}

func newMounts(fs vfs.FS, path func(timeline.SandboxID) string) *mounts {
	return &mounts{fs: fs, path: path, noted: map[timeline.SandboxID][]timeline.LayerID{}}
}

// note records the layers that a sandbox is about to mount. The caller has held shape, at least for reading, since it
// looked for the layers.
func (m *mounts) note(id timeline.SandboxID, layers []timeline.LayerID) error {
	if len(layers) == 0 {
		return m.forget(id)
	}
	text, err := json.Marshal(layers)
	if err != nil {
		return fault.Wrap(err, "record the mounted layers")
	}
	old, err := os.ReadFile(m.path(id))
	if err != nil || !bytes.Equal(old, text) {
		if err := vfs.NoteUnsynced(m.fs, m.path(id), text); err != nil { // a mount does not outlive a power loss
			return fault.Wrap(err, "record the mounted layers")
		}
	}
	m.set(id, layers)
	return nil
}

// forget removes the note of a sandbox whose keeper has exited. The caller holds the sandbox's lock.
func (m *mounts) forget(id timeline.SandboxID) error {
	m.removed(id)
	return fault.Wrap(vfs.Remove(m.fs, m.path(id)), "remove the record of mounted layers")
}

func (m *mounts) set(id timeline.SandboxID, layers []timeline.LayerID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noted[id] = layers
}

// removed forgets a sandbox whose directory is removed.
func (m *mounts) removed(id timeline.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.noted, id)
}

// sandboxes returns the sandboxes that have a note.
func (m *mounts) sandboxes() []timeline.SandboxID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.noted))
}

// inUse returns the layers that are in mounts.
func (m *mounts) inUse() map[timeline.LayerID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	used := map[timeline.LayerID]bool{}
	for _, layers := range m.noted {
		for _, l := range layers {
			used[l] = true
		}
	}
	return used
}

// read reads the note that an earlier daemon left; fs.ErrNotExist: there is none.
func (m *mounts) read(id timeline.SandboxID) (layers []timeline.LayerID, err error) {
	text, err := os.ReadFile(m.path(id))
	if err == nil {
		err = json.Unmarshal(text, &layers)
	}
	return layers, err
}

// findMounted reads the notes that an earlier daemon left. After a reboot it removes them: no mount survives a
// reboot, and a note may be incomplete after one. A note that cannot be read counts as all layers until its keeper
// has exited.
func (e recovery) findMounted(ctx context.Context) error {
	dirs, err := os.ReadDir(filepath.Join(e.Home, "sandboxes"))
	if err != nil {
		return fault.Wrap(err, "read the records of mounted layers")
	}
	boot, err := e.DB.Setting(ctx, settingBoot)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		id := timeline.SandboxID(d.Name())
		if boot != e.BootID {
			if err := e.mounts.forget(id); err != nil {
				e.Logger.Warn("could not remove the record of layers mounted before the reboot", "sandbox", id, "err", err)
			}
			continue
		}
		layers, err := e.mounts.read(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			e.Logger.Warn("cannot determine which layers are mounted; none is removed until the sandbox is stopped",
				"sandbox", id, "err", err)
			if layers, err = e.Layers.List(ctx); err != nil {
				return err
			}
		}
		e.mounts.set(id, layers)
	}
	return nil
}
