//go:build linux

package engine

import (
	"context"
	"sort"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// List returns all sandboxes, sorted by name.
func (e *Engine) List(ctx context.Context) ([]wire.Sandbox, error) {
	recs, err := e.DB.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]wire.Sandbox, len(recs))
	var asking errgroup.Group
	asking.SetLimit(keepersAtOnce)
	for i := range recs {
		asking.Go(func() error {
			out[i] = e.wire(ctx, &recs[i])
			return nil
		})
	}
	_ = asking.Wait() // no function returns an error
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// Sandbox finds a sandbox by name or id.
func (e *Engine) Sandbox(ctx context.Context, name string) (wire.Sandbox, error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return e.wire(ctx, &rec), nil
}

// wire converts a record for clients. It does not wait for the sandbox's lock, and waits at most limit.StateSeconds
// for its keeper.
func (e *Engine) wire(ctx context.Context, rec *meta.Sandbox) wire.Sandbox {
	w := wire.Sandbox{
		ID: string(rec.ID), Name: rec.Name, Created: rec.Created, Head: string(rec.Head), State: wire.StateIdle,
		From: rec.From, Driver: rec.Driver, Tier: rec.Tier, User: policies.RunsAs(rec, e.UID),
		Net: rec.Net, Policy: rec.Policy, Env: rec.Env, Limits: rec.Limits, Ignored: rec.Ignored, Labels: rec.Labels,
		Tournament: rec.Tournament, Self: self(rec), Expires: rec.Expires, IdleStopMS: rec.IdleStopMS,
		Repo: gitwork.WireRepo(rec.Repo), Quarantine: wireQuarantine(rec.Quarantine),
	}
	if rec.Trial != nil {
		w.TrialOf = string(rec.Trial.Of)
	}
	seen := e.seen(rec.ID)
	if seen.box != nil {
		w.State, w.Paused, w.Procs = stateOf(ctx, seen.box)
	} else if seen.doubt {
		w.State = wire.StateUnavailable
	}
	return w
}

// stateOf asks a keeper for the state of its sandbox.
func stateOf(ctx context.Context, b Box) (state string, paused bool, procs int) {
	ctx, cancel := context.WithTimeout(ctx, limit.StateSeconds*time.Second)
	defer cancel()
	paused, err := b.Paused(ctx)
	if err == nil {
		procs, err = b.Procs(ctx)
	}
	select {
	case <-b.Gone():
		return wire.StateIdle, false, 0
	default:
	}
	if err != nil && ctx.Err() != nil {
		return wire.StateUnavailable, paused, 0
	}
	return wire.StateLive, paused, procs
}

// seen returns what is known about the box of a sandbox without taking its lock. A box whose keeper has exited is
// omitted.
func (e *Engine) seen(id timeline.SandboxID) seenBox {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.boxes[id]
	if s == nil {
		return seenBox{}
	}
	now := s.seen
	if now.box == nil {
		return now
	}
	select {
	case <-now.box.Gone():
		return seenBox{}
	default:
		return now
	}
}

// Status reports the settings of a sandbox, what is enforced, and how much it uses.
func (e *Engine) Status(ctx context.Context, name string) (wire.StatusResult, error) {
	rec, h, err := e.Histories.Find(ctx, name)
	if err != nil {
		return wire.StatusResult{}, err
	}
	res := wire.StatusResult{
		Sandbox: e.wire(ctx, &rec), DriverReason: rec.DriverReason, TierReason: rec.TierReason,
		Enforced: rec.Enforced, Run: rec.Run, Branches: len(h.Leaves()),
	}
	if rec.Policy == "" { // a record older than policies
		if text, err := e.Policies.Text(ctx, &rec); err == nil {
			res.Sandbox.Policy = policy.DigestOf([]byte(text))
		}
	}
	for _, s := range h.Snapshots {
		if s.Sandbox == rec.ID {
			res.Snapshots++
		}
	}
	use, err := e.DB.Usage(ctx, rec.ID)
	if err != nil {
		return res, err
	}
	res.Disk.Own, res.Disk.Shared = use.Own, use.Shared
	if e.presented(&rec) {
		if res.Disk.Live, err = e.Layers.TreeUsage(ctx, e.genDir(&rec)); err != nil && !fault.Is(err, fault.NotFound) {
			return res, err
		}
	}
	if given, err := e.Grants.ListGrants(ctx, string(rec.ID)); err != nil {
		res.Notices = append(res.Notices, "cannot list the grants: "+err.Error())
	} else if len(given.Grants) > 0 {
		res.Grants = given.Grants
	}
	if rec.Limits.Disk > 0 {
		if res.Disk.Limited, err = e.disk.used(ctx, &rec); err != nil {
			res.Notices = append(res.Notices, "cannot determine the use of the disk limit: "+err.Error())
		}
		if usedUp(res.Disk.Limited, rec.Limits.Disk) {
			res.Notices = append(res.Notices,
				"disk limit reached; if snapshots use the space, delete some: coppice system gc --keep-last N "+
					rec.Name+", or coppice snapshot rm "+rec.Name+" REF")
		}
	}
	if drv, ok := e.Drivers[rec.Driver].(rootfs.Reporter); ok {
		for _, l := range drv.LeftOut(rootfs.Live{Dir: e.genDir(&rec)}) {
			res.LeftOut = append(res.LeftOut, wire.LeftOut{Path: strings.ToValidUTF8(l.Path, "\ufffd"), Why: l.Why})
		}
	}
	if rec.Host && rec.HostPrint != e.HostPrint() {
		res.Notices = append(res.Notices,
			"files of the host have changed since this sandbox was created; the files that it has not changed show them as "+
				"they are now")
	}
	switch {
	case rec.Trial != nil:
		res.Notices = append(res.Notices,
			"a trial of sandbox "+string(rec.Trial.Of)+" runs in this fork, which is then removed")
	case rec.Tournament != "":
		res.Notices = append(res.Notices, "this is the fork of a candidate of tournament "+rec.Tournament+
			", which coppice system gc removes; to keep its files, fork it: coppice fork "+rec.Name)
	}
	if h := rec.Halted; h != nil {
		res.Notices = append(res.Notices,
			"its processes were killed at "+h.At.Format(time.RFC3339)+": "+h.Why+"; what they wrote was captured")
	}
	if q := rec.Quarantine; q != nil {
		res.Notices = append(res.Notices,
			"it is quarantined, and its gate is closed: "+q.Reason+"; try again with: coppice process resume "+rec.Name+
				", or remove it: coppice rm "+rec.Name)
	}
	res.Notices = append(res.Notices, rec.Notices...)
	return res, nil
}

// Probe tries what this host provides, and reports it with the protections that sandboxes have had.
func (e *Engine) Probe(ctx context.Context) (r wire.ProbeReport, err error) {
	known, err := e.DB.Findings(ctx)
	if err != nil {
		return r, err
	}
	if r, err = e.ProbeHost(ctx, HostQuestion{GVisor: true, Runtimes: policy.Runtimes()}); err == nil {
		e.chooser.learn(r)
	}
	r.Items = append(r.Items, e.probed(known)...)
	return r, err
}
