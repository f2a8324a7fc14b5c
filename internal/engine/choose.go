//go:build linux

package engine

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
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
// for, which is probed too if the cached report does not have it; "" names none.
func (c *chooser) host(ctx context.Context, tier string) (wire.ProbeReport, error) {
	if p := c.able.Load(); p != nil {
		if it, ok := tiers.item(*p, tier); ok && it.OK || !ok && tier != tierGVisor {
			return *p, nil
		}
	}
	p, err := c.probe(ctx, HostQuestion{Quick: true, GVisor: tier == tierGVisor})
	unknown := slices.ContainsFunc(p.Items, func(it wire.ProbeItem) bool { return it.Unknown })
	if err == nil && p.Tier == tierProcess && p.Driver == "overlay" && !unknown {
		c.able.Store(&p)
	}
	return p, err
}

// chooseTier decides the tier. A tier that a policy names is refused if the host cannot provide it. Without one, it
// is the strongest that the host provides, except supervised and gvisor: these have a cost, and are chosen only for
// rules or if the policy says strong.
func (c *chooser) chooseTier(ctx context.Context, pol policy.Policy, rec *meta.Sandbox) (wire.ProbeReport, error) {
	said := pol.Tier
	name := ""
	if !said.At.BuiltIn() {
		name = string(said.Value)
	}
	ask, strong := name, wantsKernel(pol)
	if strong {
		ask = tierGVisor
	}
	p, err := c.host(ctx, ask)
	if err != nil {
		return p, fault.Wrap(err, "probe the host")
	}
	kernel, _ := tiers.item(p, tierGVisor)
	if strong && kernel.OK {
		rec.Tier, rec.TierReason = tierGVisor, "the strongest tier, as required by strong at "+pol.Strong.At.String()
		return p, nil
	}
	if strong && kernel.Unknown {
		return p, tiers.unknown(kernel)
	}
	rec.Tier, rec.TierReason, err = tiers.pick(p, name, p.Tier)
	if err == nil && name != "" && said.At != policies.Flag("--tier") {
		rec.TierReason += " by " + said.At.String()
	}
	if strong {
		rec.TierReason += "; not " + tierGVisor + ": " + kernel.Detail
	}
	return p, err
}

// wantsKernel reports whether a policy says strong and leaves the tier open, or would get tier supervised only
// because of its rules.
func wantsKernel(p policy.Policy) bool {
	open := p.Tier.At.BuiltIn() || p.Tier == policy.Said[policy.Tier]{Value: policy.Supervised, At: p.NetAt}
	return p.Strong.Value && open && p.Network.Mode != policy.NetHost
}

// choose decides tier and driver: those that the request names, which are refused if the host cannot provide them, or
// else the strongest that it provides. If it provides no tier that confines and the request requires none, that is
// workspace, and lack is the error that says why; lack is nil in every other case. p is the report about the host.
func (c *chooser) choose(
	ctx context.Context, req wire.CreateRequest, pol policy.Policy, rec *meta.Sandbox,
) (p wire.ProbeReport, lack, err error) {
	p, err = c.chooseTier(ctx, pol, rec)
	if err != nil && unconfinable(p, req, pol, err) {
		rec.Tier, rec.TierReason = tierWorkspace, "this host allows no namespaces: "+tiers.lacks(p, "")
		lack, err = err, nil
	}
	if err == nil {
		err = c.chooseDriver(p, req, rec)
	}
	return p, lack, err
}

// unconfinable reports whether err, the error of a tier that auto chose, means that the host has no tier that
// confines, and the request needs none. A policy that names a tier or says strong keeps the error, and so does a source
// that is a root: commands would see the host's.
func unconfinable(p wire.ProbeReport, req wire.CreateRequest, pol policy.Policy, err error) bool {
	return fault.Is(err, fault.Unsupported) && pol.Tier.At.BuiltIn() && !pol.Strong.Value && p.Tier == "" &&
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

// choice is a property of a sandbox with several possible values, such as its driver. A host provides some of the
// values.
type choice struct {
	what      string
	group     string   // the group of the probe's items
	names     []string // the values that auto chooses from, strongest first
	why       string   // the reason that is given for a value that auto chose
	otherwise string   // added to the hint if auto can choose no value
}

var (
	// auto does not choose the stronger tiers, which have a cost, nor, except where choose says so, workspace.
	tiers = choice{"tier", "tiers", []string{tierProcess}, "the default; stronger tiers must be asked for",
		"; for history without confinement: coppice create --tier workspace --driver copy --from DIR"}
	drivers = choice{"driver", "drivers", []string{"overlay", "btrfs", "copy"},
		"the strongest driver that this host supports", ""}
)

// pick returns asked or, for auto, best. It returns an error if the host does not support that value, or if the probe
// could not determine it.
func (c choice) pick(p wire.ProbeReport, asked, best string) (got, why string, err error) {
	if asked == "" || asked == "auto" {
		for _, name := range c.names {
			if name == best {
				break
			}
			if it, ok := c.item(p, name); ok && it.Unknown {
				return "", "", c.unknown(it)
			}
		}
		if !slices.Contains(c.names, best) {
			hint := "see what the host lacks: coppice system probe"
			if it, ok := c.item(p, c.names[0]); ok && it.Remedy != "" {
				hint = it.Remedy + "; " + hint
			}
			return "", "", fault.New(fault.Unsupported, "this host supports no %s (%s)", c.what, c.lacks(p, "")).
				WithHint("%s", hint+c.otherwise)
		}
		why = c.why
		if lacks := c.lacks(p, best); lacks != "" {
			why += "; not " + lacks
		}
		return best, why, nil
	}
	it, ok := c.item(p, asked)
	switch {
	case !ok:
		return "", "", fault.New(fault.Invalid, "unknown %s %q", c.what, asked).
			WithHint("see what this host supports: coppice system probe")
	case it.Unknown:
		return "", "", c.unknown(it)
	case !it.OK:
		f := fault.New(fault.Unsupported, "this host does not support %s %s: %s", c.what, asked, it.Detail)
		return "", "", f.WithHint("%s", it.Remedy)
	}
	return asked, "requested", nil
}

// unknown returns the error of an item that the probe could not determine.
func (c choice) unknown(it wire.ProbeItem) error {
	return fault.New(fault.Unavailable, "cannot determine whether this host supports %s %s: %s", c.what,
		it.Name, it.Detail).
		WithHint("%s", it.Remedy)
}

// lacks returns why the host cannot provide anything stronger than got.
func (c choice) lacks(p wire.ProbeReport, got string) string {
	var out []string
	for _, name := range c.names {
		if name == got {
			break
		}
		if it, ok := c.item(p, name); ok && !it.OK {
			out = append(out, name+": "+it.Detail)
		}
	}
	return strings.Join(out, ", nor ")
}

func (c choice) item(p wire.ProbeReport, name string) (wire.ProbeItem, bool) {
	for _, it := range p.Items {
		if it.Group == c.group && it.Name == name {
			return it, true
		}
	}
	return wire.ProbeItem{}, false
}

// pickLimited is pick for a sandbox with a disk limit: the strongest driver that the host provides and
// that can enforce the limit. able is the result of diskAble; plain excludes drivers because the host
// is the base.
func (c choice) pickLimited(
	p wire.ProbeReport, asked string, able map[string]error, host bool, plain func(string) bool,
) (got, why string, err error) {
	if asked != "" && asked != "auto" {
		if got, why, err = c.pick(p, asked, ""); err == nil {
			err = able[got]
		}
		return got, why, err
	}
	var lacks []string
	var first error
	for _, name := range c.names {
		lack, known := able[name]
		switch {
		case host && plain(name):
			continue
		case !known:
			if it, ok := c.item(p, name); ok {
				lacks = append(lacks, name+": "+it.Detail)
			}
		case lack == nil:
			why = "the strongest " + c.what + " that can enforce the disk limit here"
			if lacks != nil {
				why += "; not " + strings.Join(lacks, ", nor ")
			}
			return name, why, nil
		default:
			if lacks = append(lacks, name+": "+lack.Error()); first == nil {
				first = lack
			}
		}
	}
	if near := able["btrfs"]; near != nil && !host {
		return "", "", near // the store is on btrfs, where only driver btrfs can enforce the limit
	}
	if first == nil { // the host provides no driver, with or without a limit
		return c.pick(p, "", "")
	}
	return "", "", first
}
