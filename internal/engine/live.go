//go:build linux

package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
	"github.com/coppice-dev/coppice/internal/worktree"
)

func itoa(n int) string { return strconv.Itoa(n) }

// maxMount is the maximum number of layers that a root is mounted with. Overlayfs accepts 500, and with more layers
// it takes longer to look up a name that is in none of them.
const maxMount = 60

// flatten merges a chain that is too deep to be mounted, in case the background has not merged it yet, or a crash
// interrupted the merge.
func (e *Engine) flatten(ctx context.Context, id timeline.SnapshotID) error {
	ids, err := e.stacks.Below(ctx, id)
	if err != nil || len(ids) <= maxMount {
		return err
	}
	return e.Upkeep.Flatten(ctx, id)
}

// live returns the driver and the current generation of a sandbox.
func (e *Engine) live(ctx context.Context, rec *meta.Sandbox) (rootfs.Driver, rootfs.Live, error) {
	drv, ok := e.Drivers[rec.Driver]
	if !ok {
		return nil, rootfs.Live{},
			fault.New(fault.Unsupported, "sandbox %s uses driver %q, which is not part of this build", rec.Name, rec.Driver)
	}
	st, _, err := e.masks.Stack(ctx, rec, rec.MountTop)
	return drv, rootfs.Live{Dir: e.genDir(rec), Stack: st, Disk: rec.Limits.Disk}, err
}

// presented reports whether the current generation was ever made; only then can it hold changes.
func (e *Engine) presented(rec *meta.Sandbox) bool {
	_, err := os.Lstat(e.genDir(rec))
	return err == nil
}

// liveBox returns the box of the sandbox while its keeper runs, else nil. The caller holds the
// sandbox's lock.
func (e *Engine) liveBox(s *held) Box {
	if s.box == nil {
		return nil
	}
	select {
	case <-s.box.Gone():
		s.box = nil
		return nil
	default:
		return s.box
	}
}

// start starts the box of the sandbox unless it has one, and records the start.
func (e *Engine) start(ctx context.Context, s *held, rec *meta.Sandbox) (Box, error) {
	b, _, err := e.startRecording(ctx, s, rec)
	return b, err
}

// startRecording starts the box of the sandbox unless it has one, and records the start. If that fails, the box is
// stopped before anything runs in it. The records of more may still be in progress when it returns; recorded waits
// for them.
func (e *Engine) startRecording(
	ctx context.Context, s *held, rec *meta.Sandbox, more ...audit.Statement,
) (_ Box, recorded *audit.Pending, err error) {
	if b := e.liveBox(s); b != nil {
		return b, e.Book.Begin(ctx, rec, more...), nil
	}
	b, enforced, err := e.startBox(ctx, s, rec, nil)
	if err != nil {
		return nil, nil, err
	}
	started := e.Book.Begin(ctx, rec, startRecord(enforced))
	e.watchPrograms(ctx, s, rec, b, started)
	if err := started.Wait(); err != nil {
		return nil, nil, errors.Join(err, e.stopBox(context.WithoutCancel(ctx), s, 0))
	}
	return b, e.Book.Begin(ctx, rec, more...), nil
}

// exits bounds the wait for the exit of a keeper that does not serve anymore. After an exit, its control groups are
// removed before the box counts as gone.
const exits = 30 * time.Second

// restart starts another box for a sandbox whose keeper failed to answer with Unavailable. It waits until that keeper
// has exited. A keeper that continues to run still has the sandbox's processes, so its error failed is returned.
func restart(ctx context.Context, e *Engine, s *held, rec *meta.Sandbox, failed error) (Box, error) {
	if b := e.liveBox(s); b != nil {
		exited := time.NewTimer(exits)
		defer exited.Stop()
		select {
		case <-b.Gone():
		case <-exited.C:
			return nil, failed
		case <-ctx.Done():
			return nil, errors.Join(failed, context.Cause(ctx))
		}
	}
	return e.start(ctx, s, rec)
}

// startBox starts the box of a sandbox that has none. If from is not nil, the processes resume from that memory
// image.
func (e *Engine) startBox(
	ctx context.Context, s *held, rec *meta.Sandbox, from *images.Image,
) (_ Box, enforced Enforced, err error) {
	defer func() {
		fault.HintNoSpace(err, "make room on the file system of %s, for example with: coppice system gc", e.Home)
		if err != nil {
			e.Grants.Withdraw(ctx, s.ID)
		}
	}()
	if rec.Quarantine != nil && from == nil {
		return nil, enforced,
			fault.New(fault.Conflict, "sandbox %s is quarantined, and its processes have exited: %s", rec.Name,
				rec.Quarantine.Reason).
				WithHint("resume them from memory: coppice process resume %s; or restore the files alone: coppice rewind "+
					"--files-only %s HEAD", rec.Name, rec.Name)
	}
	// The root of a box that has exited may still be open; it must not be mounted twice.
	if err := e.Files.Cut(ctx, s.Held, s.ID); err != nil {
		return nil, enforced, err
	}
	if err := s.awaitPrograms(ctx); err != nil {
		return nil, enforced, err
	}
	spec, mask, err := e.present(ctx, s, rec)
	if err != nil {
		return nil, enforced, err
	}
	if err := vfs.MkdirAll(e.FS, e.runDir(s.ID)); err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	disk, err := e.disk.limit(ctx, rec)
	if err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	if err := e.Egress.RecordExpired(ctx, s.Held, rec); err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	access, err := accessFor(ctx, e, rec)
	if err != nil {
		return nil, enforced, err
	}
	var tokens []DecoyToken
	if access.Decoys, tokens, err = e.Egress.Decoys(s.Held, rec, mask.Decoys); err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	confined, err := e.confine(ctx, rec)
	if err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	known, err := e.DB.Findings(ctx)
	if err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	stops, err := e.Egress.StopsWhenTouched(ctx, rec)
	if err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	kept, err := e.Policies.Evidence(ctx, rec)
	if err != nil {
		return nil, enforced, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	dirs, shared := worktree.Directories(rec, spec)
	began, asks := e.Now(), egress.Asks(confined.phases)
	questions := asks || confined.secrets.Needed() // a grant may require approval, also one that is given later
	var b Box
	config := BoxConfig{
		ID: s.ID, Name: rec.Name, RunDir: e.runDir(s.ID), Spec: spec, Tier: rec.Tier,
		User: rec.User, Host: rec.Host, Net: rec.Net, Env: rec.Env, Limits: rec.Limits, DiskBy: disk.By, Self: self(rec),
		Strong: rec.Strong, Require: rec.Required, Known: known, Trace: tracesPrograms(rec, kept), Hidden: mask.Places,
		HiddenAt: mask.Hidden, Evidence: kept, Access: access, Dirs: dirs, Shared: shared, Tokens: tokens, Stops: stops,
		Phases: confined.phases, Confine: confined.how, Places: confined.places, JournalDir: confined.journal,
		JournalKey: e.journalAt(s.ID).Key, Asks: asks, Runtime: confined.runtime, Secrets: confined.secrets,
	}
	if from != nil {
		config.Image, config.Init, config.Client = from.Dir, from.Init, from.Client
	}
	startCtx, done := s.Starting(ctx)
	if err = context.Cause(startCtx); err == nil {
		b, enforced, err = e.Boxes.Start(startCtx, config)
	}
	done()
	if err != nil {
		return nil, enforced, fault.Wrap(e.disk.blame(ctx, rec, err), "start sandbox %s", rec.Name)
	}
	if err := e.keepProtections(ctx, rec, enforced); err != nil {
		return nil, enforced, errors.Join(err, b.Stop(context.WithoutCancel(ctx), 0))
	}
	e.ended(ctx, s, "its monitor exited")
	s.box, s.announced = b, b
	e.Feed.Emit(events.About(rec, wire.EventStarted))
	e.watch(s.entry, b)
	e.Lifetimes.WakeIdle()
	e.Egress.WatchPorts(s.ID, b)
	if questions {
		e.Egress.WatchQuestions(s.ID, b, began)
	}
	if len(tokens) > 0 {
		e.Egress.WatchDecoys(s.ID, b, began)
	}
	if confined.journal != "" {
		e.watchJournal(s.ID, b, policies.Gated(rec) || len(tokens) > 0)
	}
	return b, enforced, nil
}

// present makes the live root ready to be mounted. No layer is removed until it returns; afterwards, the layers that
// the root is mounted with are kept. mask hides paths in them.
func (e *Engine) present(
	ctx context.Context, s *held, rec *meta.Sandbox,
) (spec rootspec.Spec, mask rootfs.Made, err error) {
	if err := e.flatten(ctx, rec.MountTop); err != nil {
		return spec, mask, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	e.shape.RLock()
	defer e.shape.RUnlock()
	fresh := !e.presented(rec)
	if err := vfs.MkdirAll(e.FS, filepath.Dir(e.genDir(rec))); err != nil {
		return spec, mask, fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	mask, err = e.masks.ForMount(ctx, s.Held, rec)
	if err != nil {
		return spec, mask, err
	}
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return spec, mask, err
	}
	_, layers, err := e.masks.Stack(ctx, rec, rec.MountTop)
	if err != nil {
		return spec, mask, err
	}
	if spec, err = drv.Present(ctx, live); err != nil {
		return spec, mask, fault.Wrap(e.blame(rec, layers, err), "start sandbox %s", rec.Name)
	}
	if fresh {
		if err := e.freshIndex(ctx, s, rec, drv, live); err != nil {
			return spec, mask, err
		}
	}
	if drv.Plain() {
		return spec, mask, nil // a plain tree is complete without layers
	}
	if len(layers) >= timeline.MergeArity {
		e.Upkeep.MayBeDeep(rec.MountTop) // after a crash, Upkeep may not know it otherwise
	}
	return spec, mask, e.mounts.note(s.ID, layers)
}

// blame adds to err, with which a live root could not be presented, the name of a missing layer, if one is missing.
func (e *Engine) blame(rec *meta.Sandbox, layers []timeline.LayerID, err error) error {
	for _, l := range layers {
		if !e.Layers.Has(l) {
			return fault.New(fault.Corrupt, "layer %s is missing", l).Because(err).
				WithHint("see which snapshots need it: coppice system verify %s; rewind to one that does not: coppice rewind %s "+
					"REF",
					rec.Name, rec.Name)
		}
	}
	return err
}

// freshIndex sets the index of a new generation.
func (e *Engine) freshIndex(
	ctx context.Context, s *held, rec *meta.Sandbox, drv rootfs.Driver, live rootfs.Live,
) error {
	parts, err := drv.Parts(live)
	if err != nil {
		return err
	}
	ix, err := e.Layers.Scan(ctx, parts, drv.Plain())
	if err != nil {
		return fault.Wrap(err, "scan sandbox %s", rec.Name)
	}
	s.index, s.of = ix, rec.MountTop
	if !drv.Plain() {
		return nil // a lost index has the same effect as an empty one
	}
	return e.indexes.write(s.ID, rec.MountTop, s.index)
}

// watch waits until a box exits, and captures the changes that its background processes made.
func (e *Engine) watch(sbx *entry, b Box) {
	e.bg.Go(func() error {
		select {
		case <-e.bgCtx.Done():
			return nil
		case <-b.Gone():
		}
		rec, err := e.DB.Sandbox(e.bgCtx, string(sbx.ID))
		if err != nil {
			return nil
		}
		s, err := e.lock(e.bgCtx, sbx, "capturing after its last process")
		if err != nil {
			return nil
		}
		defer s.unlock(e)
		if s.box != nil && s.box != b {
			return nil // the box was started again; its next capture includes the changes
		}
		e.ended(e.bgCtx, s, "its last process exited")
		if rec, err = e.DB.Sandbox(e.bgCtx, string(s.ID)); err != nil {
			return nil
		}
		e.Egress.NoteHalt(e.bgCtx, &rec)
		if err := e.mounts.forget(s.ID); err != nil {
			e.Logger.Warn("could not forget which layers were mounted; they remain until gc", "sandbox", rec.Name, "err", err)
		}
		if _, err := e.capture(e.bgCtx, s, &rec, note{cause: timeline.CauseAuto}); err != nil {
			e.Logger.Error("could not capture the changes of the last process", "sandbox", rec.Name, "err", err)
		}
		return nil
	})
}

// stopBox ends the processes and the keeper of a sandbox.
func (e *Engine) stopBox(ctx context.Context, s *held, grace time.Duration) error {
	if err := e.Files.Cut(ctx, s.Held, s.ID); err != nil {
		return err
	}
	b := e.liveBox(s)
	if b == nil {
		return nil
	}
	if err := b.Stop(ctx, grace); err != nil {
		return fault.Wrap(err, "stop sandbox %s", s.ID)
	}
	s.box = nil
	e.ended(ctx, s, "")
	return e.mounts.forget(s.ID)
}

// confinement is what confines a box.
type confinement struct {
	how     policy.Confine // of tier workspace
	places  Places         // of tier workspace
	phases  []Phase        // the policies of the gate
	journal string         // the journal's directory; "" in tier workspace if how says that nothing confines it
	runtime string         // of tier container
	secrets plan.Secrets   // registered with the broker of secrets
}

// confine returns what confines a box. It refuses a damaged policy in every tier.
func (e *Engine) confine(ctx context.Context, rec *meta.Sandbox) (c confinement, err error) {
	if c.how, c.places, err = locking(ctx, e, rec); err != nil {
		return c, err
	}
	if c.runtime, err = e.Policies.Runtime(ctx, rec); err != nil {
		return c, err
	}
	phases, err := e.Policies.Confine(ctx, rec)
	if err != nil || rec.Tier == tierWorkspace && c.how == policy.ConfineOff {
		return c, err
	}
	c.phases, c.journal = phases, e.journalDir(rec.ID)
	if err := vfs.MkdirAll(e.FS, c.journal); err != nil {
		return c, fault.Wrap(err, "create the journal of sandbox %s", rec.Name)
	}
	c.secrets, err = e.Grants.Starting(ctx, rec)
	return c, err
}

// ended publishes the end of a sandbox's box, once. why is "" if a client asked for it.
func (e *Engine) ended(ctx context.Context, s *held, why string) {
	if s.announced == nil {
		return
	}
	s.announced = nil
	e.Grants.Withdraw(ctx, s.ID)
	if rec, err := e.DB.Sandbox(ctx, string(s.ID)); err == nil {
		by := format.ByDaemon
		if why != "" {
			by = format.ByKeeper
		}
		e.Book.Note(ctx, &rec, audit.Statement{By: by, Body: &format.Stop{Reason: why}})
	}
	e.Feed.Emit(wire.SandboxEvent{Kind: wire.EventStopped, Sandbox: s.name, ID: string(s.ID)})
}

// procsInTime counts the processes of a box that is about to be stopped. It gives up if init does not answer, which
// must not prevent the stop.
func procsInTime(ctx context.Context, b Box) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, limit.UnansweredStopSeconds*time.Second)
	defer cancel()
	return b.Procs(ctx)
}
