//go:build linux

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// A live root is mounted through the layers that its stack had when it was
// started. A snapshot that is deleted meanwhile has its layers replaced by merged
// ones in the records, but the mount needs the old ones until its keeper ends. So
// each start notes the layers that it mounts, in memory and, because keepers
// outlive the daemon, in a file. Noted layers are not removed from the disk.

func (e *Engine) mountedPath(id timeline.SandboxID) string {
	return filepath.Join(e.sandboxDir(id), "mounted")
}

// noteMounted records what a sandbox is about to mount. The caller holds shape,
// at least for reading, since it looked for the layers.
func (e *Engine) noteMounted(id timeline.SandboxID, layers []timeline.LayerID) error {
	if len(layers) == 0 {
		return e.forgetMounted(id)
	}
	text, err := json.Marshal(layers)
	if err != nil {
		return fault.Wrap(err, "note what is mounted")
	}
	old, err := os.ReadFile(e.mountedPath(id))
	if err != nil || !bytes.Equal(old, text) {
		if err := vfs.NoteUnsynced(e.FS, e.mountedPath(id), text); err != nil { // no mount outlives a power loss
			return fault.Wrap(err, "note what is mounted")
		}
	}
	e.mu.Lock()
	e.mounted[id] = layers
	e.mu.Unlock()
	return nil
}

// forgetMounted takes the note back, when the sandbox's keeper has ended. The
// caller holds the sandbox's lock.
func (e *Engine) forgetMounted(id timeline.SandboxID) error {
	e.mu.Lock()
	delete(e.mounted, id)
	e.mu.Unlock()
	return fault.Wrap(vfs.Remove(e.FS, e.mountedPath(id)), "forget what was mounted")
}

// findMounted reads the notes that an earlier daemon left. No mount survives a
// reboot, and a note may be incomplete after one. A note that cannot be read counts as all
// layers until its keeper has exited.
func (e *Engine) findMounted(ctx context.Context) error {
	dirs, err := os.ReadDir(filepath.Join(e.Home, "sandboxes"))
	if err != nil {
		return fault.Wrap(err, "look for what is mounted")
	}
	boot, err := e.DB.Setting(ctx, settingBoot)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		id := timeline.SandboxID(d.Name())
		if boot != e.BootID {
			if err := e.forgetMounted(id); err != nil {
				e.Logger.Warn("cannot remove the note of what was mounted before the reboot", "sandbox", id, "err", err)
			}
			continue
		}
		layers, err := e.readMounted(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			e.Logger.Warn("cannot tell which layers are mounted; none is removed until the sandbox is stopped",
				"sandbox", id, "err", err)
			if layers, err = e.Layers.List(ctx); err != nil {
				return err
			}
		}
		e.mounted[id] = layers
	}
	return nil
}

func (e *Engine) readMounted(id timeline.SandboxID) (layers []timeline.LayerID, err error) {
	text, err := os.ReadFile(e.mountedPath(id))
	if err == nil {
		err = json.Unmarshal(text, &layers)
	}
	return layers, err
}

// inUse gives the layers that mounts stand on.
func (e *Engine) inUse() map[timeline.LayerID]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	used := map[timeline.LayerID]bool{}
	for _, layers := range e.mounted {
		for _, l := range layers {
			used[l] = true
		}
	}
	return used
}
