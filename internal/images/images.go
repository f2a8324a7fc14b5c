//go:build linux

package images

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Unstored is the directory of a sandbox that holds an image until it is stored.
const Unstored = "image"

// Records are the records of sandboxes and snapshots.
type Records interface {
	// Sandbox returns a sandbox by name or ID; NotFound if there is none.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// History returns the history of a sandbox.
	History(ctx context.Context, id timeline.SandboxID) (timeline.History, error)
	// MemoryImages lists the images of snapshots.
	MemoryImages(ctx context.Context) ([]string, error)
	// Flush makes earlier records durable.
	Flush() error
}

// Host are the properties of a host that an image depends on.
type Host struct {
	// MemoryFacts must be the same where an image is resumed. BuildFacts must be too, if the image was saved
	// without its init.
	MemoryFacts func() (map[string]string, error)
	BuildFacts  func() (map[string]string, error)
	// Understands reports whether an image of another protocol, a fact of its memory, can be resumed
	// nevertheless.
	Understands func(protocol string) bool
	// Print is a cheap fingerprint of the host's system directories.
	Print func() string
}

// Config configures New. All fields except Store are required.
type Config struct {
	Store   *memory.Store // nil: no images are stored
	Records Records
	Host    Host
	Home    string // COPPICE_HOME
	// Intact returns an error if the files of a snapshot are damaged.
	Intact func(ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID) error
	// Capture takes a snapshot with memory of a sandbox whose supervised command runs, and logs an error. It returns
	// false if the sandbox is gone or b is no longer its box.
	Capture func(ctx context.Context, id timeline.SandboxID, b Live) bool
	// Go runs fn in the background. The context ends when the engine closes, which waits for fn.
	Go  func(fn func(context.Context))
	Log *slog.Logger
}

// Images stores memory images. Create one with New. Its methods are safe for concurrent use.
type Images struct {
	config Config // never changed

	// imaging is held for reading from when an image is added until a snapshot refers to it, and for writing
	// while unreferenced images are dropped. While it is held, no sandbox lock is acquired, and no layer is
	// removed.
	imaging sync.RWMutex

	mu      sync.Mutex                  // acquired last: nothing is locked or read while it is held
	keeping map[timeline.SandboxID]Live // boxes of KeepEvery; guarded by mu
}

// New returns an Images.
func New(c Config) *Images { return &Images{config: c, keeping: map[timeline.SandboxID]Live{}} }

// Keeps reports whether the memory of sandboxes of a tier can be saved.
func (m *Images) Keeps(tier string) bool {
	return tier == string(policy.GVisor) && m.config.Store != nil
}

// MayKeep returns an error if the memory of a sandbox cannot be saved.
func (m *Images) MayKeep(rec *meta.Sandbox) error {
	if !m.Keeps(rec.Tier) {
		return fault.New(fault.Unsupported, "tier %s does not support saving memory", rec.Tier).
			WithHint("create a sandbox that does: coppice create --tier gvisor")
	}
	return nil
}

// Saver is a frozen box.
type Saver interface {
	// Save writes the memory of the processes into an existing empty directory, and returns the programs of the image,
	// which the caller closes.
	Save(ctx context.Context, dir string) (memory.Programs, error)
}

// Saved is an image that is not stored yet.
type Saved struct {
	dir      string
	programs memory.Programs
}

// Close discards an image that was not passed to Keep. Its files are deleted at the next Save, or by the next daemon.
func (i Saved) Close() {
	_ = i.programs.Close() // only read from
}

// Save makes the frozen box of a sandbox write its image. The caller, which holds the sandbox's lock, passes the
// result to Keep or closes it, even after an error.
func (m *Images) Save(ctx context.Context, rec *meta.Sandbox, f Saver) (i Saved, err error) {
	i.dir = filepath.Join(m.config.Home, "sandboxes", string(rec.ID), Unstored)
	if err := os.RemoveAll(i.dir); err != nil { // leftovers of a failed save
		return i, fault.Wrap(err, "save the memory of sandbox %s", rec.Name)
	}
	if err := os.Mkdir(i.dir, 0o700); err != nil {
		return i, fault.Wrap(err, "save the memory of sandbox %s", rec.Name)
	}
	if i.programs, err = f.Save(ctx, i.dir); err != nil {
		return i, errors.Join(fault.Wrap(err, "save the memory of sandbox %s", rec.Name), os.RemoveAll(i.dir))
	}
	return i, nil
}

// Keep stores an image, and closes it. No sweep drops the image until known is called. The caller must call known
// once a snapshot refers to the image, or when none will, even after an error.
func (m *Images) Keep(ctx context.Context, rec *meta.Sandbox, i Saved) (_ *timeline.Memory, known func(), err error) {
	m.imaging.RLock()
	kept, err := m.store(ctx, rec, i)
	return kept, m.imaging.RUnlock, err
}

// store stores an image. The caller holds imaging until a snapshot has it.
func (m *Images) store(ctx context.Context, rec *meta.Sandbox, i Saved) (*timeline.Memory, error) {
	defer i.Close()
	facts, err := m.facts(rec)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(i.dir))
	}
	image, err := m.config.Store.Add(ctx, i.dir, facts, i.programs)
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "save the memory of sandbox %s", rec.Name), os.RemoveAll(i.dir))
	}
	kept := &timeline.Memory{Image: string(image.ID), Size: image.Size, Added: image.AddedBytes, Facts: image.Facts}
	if rec.Run != nil && rec.Run.Ended == nil {
		kept.Run = rec.Run.Exec
	}
	return kept, nil
}

// Image is an image that is ready to be resumed. It stays in the store until it is released.
type Image struct {
	*timeline.Memory
	Dir    string // holds the image
	Init   string // file with its init; "" means that of this build
	Client string // file with its program coppice; "" means that its sandbox does not show it
	// Release releases the image. It must be called once, unless ReleaseAfter is.
	Release func()
}

// Ready prepares the image of a snapshot, whose files must be intact: the kernel of the processes would not detect
// damage. The caller holds the sandbox's lock.
func (m *Images) Ready(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID, kept *timeline.Memory,
) (*Image, error) {
	if err := m.config.Intact(ctx, rec, id); err != nil {
		return nil, err
	}
	dir, release, err := m.config.Store.Checkout(ctx, memory.ID(kept.Image))
	if err != nil {
		return nil, fault.Wrap(err, "prepare the memory of snapshot %s", id)
	}
	i := &Image{Memory: kept, Dir: dir, Release: release}
	if i.Init, err = m.config.Store.Program(ctx, memory.ID(kept.Image), memory.InitFact); err == nil {
		i.Client, err = m.config.Store.Program(ctx, memory.ID(kept.Image), memory.ClientFact)
	}
	if err != nil {
		release()
		return nil, fault.Wrap(err, "prepare the memory of snapshot %s", id)
	}
	return i, nil
}

// ReleaseAfter releases an image after the exit of a box that was resumed from it: the box reads the image on
// demand.
func (m *Images) ReleaseAfter(i *Image, gone <-chan struct{}) {
	m.config.Go(func(ctx context.Context) {
		defer i.Release()
		select {
		case <-gone:
		case <-ctx.Done():
		}
	})
}

// DropUnstored deletes images that an earlier daemon did not store. No sandbox may be in use.
func (m *Images) DropUnstored() error {
	left, err := filepath.Glob(filepath.Join(m.config.Home, "sandboxes", "*", Unstored))
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			m.config.Log.Warn("could not remove an incomplete memory image", "dir", dir, "err", err)
		}
	}
	return err
}

// Hold prevents images from being stored, dropped and verified until release is called. It is for tests of
// operations that must not wait for a sweep.
func (m *Images) Hold() (release func()) {
	m.imaging.Lock()
	return m.imaging.Unlock
}

// Sweep drops the unreferenced images, and adds them to res.
func (m *Images) Sweep(ctx context.Context, res *wire.GCResult) error {
	if m.config.Store == nil {
		return nil
	}
	m.imaging.Lock()
	defer m.imaging.Unlock()
	had, err := m.config.Records.MemoryImages(ctx)
	if err != nil {
		return err
	}
	if err := m.config.Records.Flush(); err != nil { // no stored record may name a dropped image
		return err
	}
	wanted := map[memory.ID]bool{}
	for _, id := range had {
		wanted[memory.ID(id)] = true
	}
	before := len(m.config.Store.List())
	freed, err := m.config.Store.Sweep(ctx, func(id memory.ID) bool { return wanted[id] })
	res.Images, res.Bytes = res.Images+before-len(m.config.Store.List()), res.Bytes+freed
	return err
}

// Verify hashes the images of a sandbox's history, or all images if name is "", and adds the results to res. The
// caller may hold locks that keep layers, but no sandbox lock.
func (m *Images) Verify(
	ctx context.Context, name string, progress func(wire.Progress), res *wire.VerifyResult,
) error {
	if m.config.Store == nil {
		return nil
	}
	m.imaging.RLock()
	defer m.imaging.RUnlock()
	images, err := m.config.Records.MemoryImages(ctx)
	if err != nil {
		return err
	}
	of := map[string]timeline.Snapshot{}
	if name != "" {
		if of, err = m.imagesOf(ctx, name); err != nil {
			return err
		}
		images = slices.Sorted(maps.Keys(of))
	}
	for i, id := range images {
		progress(wire.Progress{Phase: "verify", Unit: "images", Done: int64(i), Total: int64(len(images))})
		err := m.config.Store.Verify(ctx, memory.ID(id))
		switch {
		case err == nil:
			if at, err := m.config.Store.Stat(memory.ID(id)); err == nil {
				res.Bytes += at.Size
			}
		case fault.Is(err, fault.Corrupt), fault.Is(err, fault.NotFound):
			res.Damage = append(res.Damage,
				wire.Damage{Sandbox: name, Snapshot: string(of[id].ID), Image: id, Message: err.Error()})
		default:
			return fault.Wrap(err, "verify memory image %s", id)
		}
		res.Images++
	}
	return nil
}

// imagesOf returns the snapshots of a sandbox's history that have images, by image.
func (m *Images) imagesOf(ctx context.Context, name string) (map[string]timeline.Snapshot, error) {
	rec, err := m.config.Records.Sandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	h, err := m.config.Records.History(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	of := map[string]timeline.Snapshot{}
	for _, s := range h.Snapshots {
		if s.Memory != nil {
			of[s.Memory.Image] = s
		}
	}
	return of, nil
}

// WireMemory describes a memory for clients; nil if there is none.
func WireMemory(m *timeline.Memory) *wire.Memory {
	if m == nil {
		return nil
	}
	return &wire.Memory{Image: m.Image, Size: m.Size, Added: m.Added, Facts: m.Facts}
}
