//go:build linux

package engine

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootfs"
)

// chooser decides the tier and the driver of new sandboxes. It caches the report of a host that lacks nothing. It
// takes no lock.
type chooser struct {
	probe   func(context.Context, HostQuestion) (wire.ProbeReport, error) // Config.ProbeHost
	drivers map[string]rootfs.Driver

	able atomic.Pointer[wire.ProbeReport] // the report, once nothing is missing in it
}

// host reports what the host provides for tiers and drivers. A report in which nothing is missing is cached, since
// the probe starts a process that mounts; if something stops working later, the start that needs it fails. Otherwise
// the host is probed again each time, since a missing item may have been repaired. tier is the tier that was asked
// for, which is probed too if the cached report does not have it; "" names none. Tier container is always probed, with
// runtime.
func (c *chooser) host(ctx context.Context, tier, runtime string) (wire.ProbeReport, error) {
	q := HostQuestion{Quick: true, GVisor: tier == tierGVisor}
	if tier == tierContainer {
		q.Runtimes = []string{cmp.Or(runtime, policy.DefaultRuntime)}
	} else if p := c.able.Load(); p != nil {
		if it, ok := tiers.item(*p, tier); ok && it.OK || !ok && tier != tierGVisor {
			return *p, nil
		}
	}
	p, err := c.probe(ctx, q)
	if err == nil {
		c.learn(p)
	}
	return p, err
}

// learn caches a report in which nothing is missing.
func (c *chooser) learn(p wire.ProbeReport) {
	unknown := slices.ContainsFunc(p.Items, func(it wire.ProbeItem) bool { return it.Unknown })
	if p.Tier == tierSupervised && p.Driver == "overlay" && !unknown {
		c.able.Store(&p)
	}
}

// chooseTier sets the tier of a record, and why: see tierFor.
func (c *chooser) chooseTier(ctx context.Context, pol policy.Policy, rec *meta.Sandbox) (wire.ProbeReport, error) {
	ask := ""
	switch {
	case wantsKernel(pol):
		ask = tierGVisor
	case !pol.Tier.At.BuiltIn():
		ask = string(pol.Tier.Value)
	}
	p, err := c.host(ctx, ask, pol.Runtime.Value)
	if err != nil {
		return p, fault.Wrap(err, "probe the host")
	}
	rec.Tier, rec.TierReason, err = tierFor(pol, p)
	return p, err
}

// choose decides tier and driver: those that the request names, which are refused if the host cannot provide them, or
// else the strongest that it provides. If it provides no tier that confines and the request requires none, that is
// workspace, and lack is the error that says why; lack is nil in every other case. p is the report about the host.
func (c *chooser) choose(
	ctx context.Context, req wire.CreateRequest, pol policy.Policy, rec *meta.Sandbox,
) (p wire.ProbeReport, lack, err error) {
	p, err = c.chooseTier(ctx, pol, rec)
	if err != nil && unconfinable(p, req, pol, err) {
		rec.Tier, rec.TierReason = tierWorkspace, "this host allows no namespaces: "+tiers.lacksAll(p)
		lack, err = err, nil
	}
	if err == nil {
		err = c.chooseDriver(p, req, rec)
	}
	return p, lack, err
}

// unconfinable reports whether err, the error of a tier that auto chose, means that the host has no tier that
// confines, and the request needs none. A policy that names a tier or says strong keeps the error, and so does a source
// that is a root: commands would see the host's. Rules of the network need a gate, which a locked workspace has.
func unconfinable(p wire.ProbeReport, req wire.CreateRequest, pol policy.Policy, err error) bool {
	return fault.Is(err, fault.Unsupported) && leftOpen(pol) && !pol.Strong.Value && p.Tier == "" &&
		(fromHost(req.From) || req.From.Kind == wire.SourceDir)
}

// chooseDriver decides the driver of a sandbox whose tier is decided.
func (c *chooser) chooseDriver(p wire.ProbeReport, req wire.CreateRequest, rec *meta.Sandbox) (err error) {
	best := p.Driver
	if rec.Tier == tierWorkspace && req.Repo != nil {
		if err := goesWith(req.From); err != nil {
			return err
		}
	}
	if rec.Tier == tierWorkspace && best != "" {
		best = "copy" // commands run on the host, where nothing can be mounted for them
	}
	host := fromHost(req.From) && rec.Tier != tierWorkspace
	switch {
	case rec.Limits.Disk > 0 && rec.Tier == tierWorkspace:
		return fault.New(fault.Unsupported, "tier workspace has no limits").
			WithHint("use --tier process, or omit --limit")
	case rec.Limits.Disk > 0:
		plain := func(name string) bool { return c.drivers[name] == nil || c.drivers[name].Plain() }
		rec.Driver, rec.DriverReason, err = drivers.pickLimited(p, req.Driver, c.diskAble(p), host, plain)
	default:
		rec.Driver, rec.DriverReason, err = drivers.pick(p, req.Driver, best)
	}
	if err != nil {
		return err
	}
	if rec.Tier == tierWorkspace && best == rec.Driver && best != p.Driver {
		rec.DriverReason = "tier workspace needs a plain tree"
	}
	if _, ok := c.drivers[rec.Driver]; !ok {
		return fault.New(fault.Invalid, "unknown driver %q", rec.Driver).WithHint("use auto, overlay, copy or btrfs")
	}
	if rec.Tier == tierWorkspace && !c.drivers[rec.Driver].Plain() {
		return fault.New(fault.Invalid, "tier workspace requires a driver with a plain tree").
			WithHint("omit --driver, or use --driver copy")
	}
	if host && c.drivers[rec.Driver].Plain() {
		hint := "import the system directories once: coppice create --from host-copy --driver " + rec.Driver
		if it, ok := drivers.item(p, "overlay"); ok && !it.OK && it.Remedy != "" {
			hint = it.Remedy + "; or " + hint
		}
		return fault.New(fault.Unsupported, "cannot use the host as the base with driver %s: it would have to copy the "+
			"whole host",
			rec.Driver).
			WithHint("%s", hint)
	}
	return nil
}

// goesWith refuses a source that cannot be combined with a repository in tier workspace.
func goesWith(from wire.Source) error {
	if fromHost(from) {
		return nil
	}
	return fault.New(fault.Invalid, "cannot combine --from and --repo in tier workspace: it versions one directory").
		WithHint("omit --from or --repo")
}

// fromHost reports whether the base of a sandbox is the host itself.
func fromHost(from wire.Source) bool { return from.Kind == "" || from.Kind == wire.SourceHost }

// diskAble returns, for each driver that the host provides, why it cannot enforce a disk limit on a
// sandbox; nil if it can.
func (c *chooser) diskAble(p wire.ProbeReport) map[string]error {
	out := map[string]error{}
	for name, drv := range c.drivers {
		if it, ok := drivers.item(p, name); ok && !it.OK {
			continue
		}
		if l, ok := drv.(rootfs.Limiter); ok {
			out[name] = l.CanLimit()
		} else {
			out[name] = noLimiter(name)
		}
	}
	return out
}
