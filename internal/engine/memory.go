//go:build linux

package engine

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// What processes have in memory is kept with a snapshot where that is asked for: while they
// stand still for the capture, the kernel of the sandbox writes an image, so files and memory
// are of one moment. It is hashed and stored when they run on, and the snapshot is recorded
// only when it is stored.

const (
	// imageDir is where an image lies in the directory of its sandbox until it is stored.
	imageDir = "image"
	// leastMemory is how often memory can be kept by itself.
	leastMemory = time.Second
	// maxRehash is how much of a snapshot's own files is hashed again before processes go on
	// over them, in bytes. coppice verify does so with all.
	maxRehash = 64 << 20
	// memoryLabel is the label of a snapshot that nobody named, for which no file has changed.
	memoryLabel = "memory"
)

// factHost says what the host's own files were, below a sandbox that shows them.
const factHost = "host"

// factProtocol is a number of package plan's: see Config.Understands.
const factProtocol = "protocol"

// keepsMemory refuses a sandbox of which the memory cannot be kept.
func (e *Engine) keepsMemory(rec *meta.Sandbox) error {
	if rec.Tier != tierGVisor || e.Memory == nil {
		return fault.New(fault.Unsupported, "the memory of a sandbox of tier %s cannot be kept", rec.Tier).
			WithHint("make a sandbox that can: coppice create --tier gvisor")
	}
	return nil
}

// notLive refuses what needs processes.
func notLive(rec *meta.Sandbox, why string) *fault.Error {
	return fault.New(fault.Conflict, "sandbox %s is not live: %s", rec.Name, why).
		WithHint("start something in it: coppice run --in %s --detach -- CMD", rec.Name)
}

// captureMemory is capture with what processes have in memory.
func (e *Engine) captureMemory(ctx context.Context, s *held, rec *meta.Sandbox, n note) (taken, error) {
	if err := e.keepsMemory(rec); err != nil {
		return taken{id: rec.Head}, err
	}
	if e.liveBox(s) == nil {
		return taken{id: rec.Head}, notLive(rec, "there is no process whose memory could be kept")
	}
	if q := rec.Quarantine; q != nil {
		return taken{id: rec.Head}, fault.New(fault.Conflict, "sandbox %s is quarantined: %s", rec.Name, q.Reason).
			WithHint("first try again what failed: coppice resume %s", rec.Name)
	}
	n.memory = true
	return e.capture(ctx, s, rec, n)
}

// saved is an image that is not stored yet.
type saved struct {
	dir  string
	init *os.File // the program that is PID 1 in it
}

// save has the frozen box write its image. The caller gives it to keepImage.
func (e *Engine) save(ctx context.Context, s *held, rec *meta.Sandbox, f Frozen) (i saved, err error) {
	i.dir = filepath.Join(e.sandboxDir(s.ID), imageDir)
	if err := os.RemoveAll(i.dir); err != nil { // of one that failed
		return i, fault.Wrap(err, "keep the memory of sandbox %s", rec.Name)
	}
	if err := os.Mkdir(i.dir, 0o700); err != nil {
		return i, fault.Wrap(err, "keep the memory of sandbox %s", rec.Name)
	}
	if i.init, err = f.Save(ctx, i.dir); err != nil {
		return i, errors.Join(fault.Wrap(err, "keep the memory of sandbox %s", rec.Name), os.RemoveAll(i.dir))
	}
	return i, nil
}

// keepImage stores an image, which is the store's from then on. The caller holds imaging until
// a snapshot has it.
func (e *Engine) keepImage(ctx context.Context, rec *meta.Sandbox, i saved) (*timeline.Memory, error) {
	defer i.init.Close()
	facts, err := e.facts(rec)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(i.dir))
	}
	image, err := e.Memory.Add(ctx, i.dir, facts, i.init)
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "keep the memory of sandbox %s", rec.Name), os.RemoveAll(i.dir))
	}
	m := &timeline.Memory{Image: string(image.ID), Size: image.Size, Added: image.AddedBytes, Facts: image.Facts}
	if rec.Run != nil && rec.Run.Ended == nil {
		m.Run = rec.Run.Exec
	}
	return m, nil
}

// facts are what has to be the same where an image of a sandbox is taken and resumed.
func (e *Engine) facts(rec *meta.Sandbox) (map[string]string, error) {
	facts, err := e.MemoryFacts()
	if err != nil {
		return nil, fault.Wrap(err, "find out what a memory image depends on")
	}
	facts = maps.Clone(facts)
	if rec.Host {
		facts[factHost] = e.HostPrint()
	}
	return facts, nil
}

// factsFor are the facts of now that those of an image are compared with. Where its init was
// kept, it is that one which it goes on with; else it is the one of this build.
func (e *Engine) factsFor(rec *meta.Sandbox, m *timeline.Memory) (map[string]string, error) {
	facts, err := e.facts(rec)
	if err != nil {
		return nil, err
	}
	if init := m.Facts[memory.InitFact]; init != "" {
		facts[memory.InitFact] = init
		if p := m.Facts[factProtocol]; e.Understands(p) {
			facts[factProtocol] = p
		}
		return facts, nil
	}
	build, err := e.BuildFacts()
	if err != nil {
		return nil, fault.Wrap(err, "find out what a memory image depends on")
	}
	maps.Copy(facts, build)
	return facts, nil
}

// factNames are what facts are called for people.
var factNames = map[string]string{
	"gvisor": "the version of gVisor", "cpu": "what the processor can do", "arch": "the kind of processor",
	"page":       "the size of a page",
	factProtocol: "the protocol between Coppice and the init in an image",
	"build":      "the build of Coppice, whose init is in the image and was not kept with it,",
	"plan":       "the version of Coppice's plan of a sandbox", factHost: "the host's own files, which the sandbox shows",
}

// differs tells the first fact that is another one now; "" when none is.
func differs(then, now map[string]string) (what, was, is string) {
	for _, k := range slices.Sorted(maps.Keys(then)) {
		if now[k] != then[k] {
			name := factNames[k]
			if name == "" {
				name = k
			}
			return name, then[k], now[k]
		}
	}
	return "", "", ""
}

// resumable gives what the processes of a snapshot had in memory, where they can go on here.
func (e *Engine) resumable(rec *meta.Sandbox, snap timeline.Snapshot) (*timeline.Memory, error) {
	if snap.Memory == nil {
		return nil, fault.New(fault.NotFound, "snapshot %s has no memory of processes", snap.ID).
			WithHint("see those that have: coppice log %s; take one: coppice commit --memory -m MSG %s", rec.Name, rec.Name)
	}
	if rec.Tier != tierGVisor || e.Memory == nil {
		return nil, fault.New(fault.Unsupported, "the processes of snapshot %s cannot go on in a sandbox of tier %s",
			snap.ID, rec.Tier).
			WithHint("go to its files alone: coppice checkout --files-only %s %s", rec.Name, snap.ID)
	}
	now, err := e.factsFor(rec, snap.Memory)
	if err != nil {
		return nil, err
	}
	if what, was, is := differs(snap.Memory.Facts, now); what != "" {
		return nil, fault.New(fault.Conflict,
			"the processes of snapshot %s cannot go on here: %s was %q when their memory was kept, and is %q", snap.ID,
			what, was, is).
			WithHint("go to its files alone: coppice checkout --files-only %s %s", rec.Name, snap.ID)
	}
	return snap.Memory, nil
}

// intact finds damage of the files that processes would go on over, which their kernel would
// not notice. Of large layers it is only seen that they are there.
func (e *Engine) intact(ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID) error {
	e.shape.RLock()
	defer e.shape.RUnlock()
	ids, err := e.layersBelow(ctx, id)
	if err != nil {
		return err
	}
	left := int64(maxRehash)
	for _, l := range ids {
		known, err := e.DB.Layer(ctx, l)
		if err == nil && !e.Layers.Has(l) {
			err = fault.New(fault.Corrupt, "layer %s is gone", l)
		}
		if err == nil && known.Sealed && known.Digest != "" && known.Size <= left {
			left -= known.Size
			err = e.Layers.VerifyDigest(ctx, l, known.Digest)
		}
		if err != nil {
			return fault.New(fault.Corrupt,
				"the processes of snapshot %s cannot go on: its files are not those that their memory was kept with",
				id).Because(err).
				WithHint("see what is damaged: coppice verify %s; go to what is left: coppice checkout --files-only %s %s",
					rec.Name, rec.Name, id)
		}
	}
	return nil
}

// image is a memory image that is ready to be resumed.
type image struct {
	*timeline.Memory
	dir     string
	init    string // the file with its init; "" is this program
	release func()
}

// ready makes the image of a snapshot ready. The caller calls release, or untilGone.
func (e *Engine) ready(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID, m *timeline.Memory,
) (*image, error) {
	if err := e.intact(ctx, rec, id); err != nil {
		return nil, err
	}
	dir, release, err := e.Memory.Checkout(ctx, memory.ID(m.Image))
	if err != nil {
		return nil, fault.Wrap(err, "make the memory of snapshot %s ready", id)
	}
	init, err := e.Memory.Init(ctx, memory.ID(m.Image))
	if err != nil {
		release()
		return nil, fault.Wrap(err, "make the memory of snapshot %s ready", id)
	}
	return &image{m, dir, init, release}, nil
}

// untilGone holds the image while a box goes on from it, which reads it as it needs it.
func (e *Engine) untilGone(i *image, b Box) {
	e.bg.Go(func() error {
		defer i.release()
		select {
		case <-b.Gone():
		case <-e.bgCtx.Done():
		}
		return nil
	})
}

// keepMemory keeps the memory of a box every so often, until it has ended.
func (e *Engine) keepMemory(sbx *entry, b Box, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-e.bgCtx.Done():
			return
		case <-b.Gone():
			return
		case <-tick.C:
		}
		s, err := e.lock(e.bgCtx, sbx, "keeping its memory")
		if err != nil {
			return
		}
		rec, err := e.DB.Sandbox(e.bgCtx, string(s.ID))
		switch {
		case s.box != b || err != nil:
			s.unlock(e)
			return
		case s.run != nil && rec.Quarantine == nil:
			if _, err = e.captureMemory(e.bgCtx, s, &rec, note{cause: timeline.CauseAuto}); err != nil && e.bgCtx.Err() == nil {
				e.Logger.Error("its memory is not in the history yet", "sandbox", rec.Name, "err", err)
			}
		}
		s.unlock(e)
	}
}

// dropUnkept deletes images that a daemon before this one had not stored yet.
func (e *Engine) dropUnkept() error {
	left, err := filepath.Glob(filepath.Join(e.Home, "sandboxes", "*", imageDir))
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			e.Logger.Warn("an image that was not stored cannot be removed", "dir", dir, "err", err)
		}
	}
	return err
}

// sweepImages drops the images that no snapshot has.
func (e *Engine) sweepImages(ctx context.Context, res *wire.GCResult) error {
	if e.Memory == nil {
		return nil
	}
	e.imaging.Lock()
	defer e.imaging.Unlock()
	had, err := e.DB.MemoryImages(ctx)
	if err != nil {
		return err
	}
	if err := e.DB.Flush(); err != nil { // no record comes back that names what goes now
		return err
	}
	wanted := map[memory.ID]bool{}
	for _, id := range had {
		wanted[memory.ID(id)] = true
	}
	before := len(e.Memory.List())
	freed, err := e.Memory.Sweep(ctx, func(id memory.ID) bool { return wanted[id] })
	res.Images, res.Bytes = res.Images+before-len(e.Memory.List()), res.Bytes+freed
	return err
}

// verifyImages hashes the memory images of a sandbox's history again, or all.
func (e *Engine) verifyImages(
	ctx context.Context, name string, progress func(wire.Progress), res *wire.VerifyResult,
) error {
	if e.Memory == nil {
		return nil
	}
	e.imaging.RLock()
	defer e.imaging.RUnlock()
	images, err := e.DB.MemoryImages(ctx)
	if err != nil {
		return err
	}
	of := map[string]timeline.Snapshot{}
	if name != "" {
		_, h, err := e.find(ctx, name)
		if err != nil {
			return err
		}
		for _, s := range h.Snapshots {
			if s.Memory != nil {
				of[s.Memory.Image] = s
			}
		}
		images = slices.Sorted(maps.Keys(of))
	}
	for i, id := range images {
		progress(wire.Progress{Phase: "verify", Unit: "images", Done: int64(i), Total: int64(len(images))})
		err := e.Memory.Verify(ctx, memory.ID(id))
		switch {
		case err == nil:
			if at, err := e.Memory.Stat(memory.ID(id)); err == nil {
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

func wireMemory(m *timeline.Memory) *wire.Memory {
	if m == nil {
		return nil
	}
	return &wire.Memory{Image: m.Image, Size: m.Size, Added: m.Added, Facts: m.Facts}
}

// imageOf names the image of a memory, if there is one.
func imageOf(m *timeline.Memory) string {
	if m == nil {
		return ""
	}
	return m.Image
}
