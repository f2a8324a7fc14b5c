package probe

import (
	"context"
	"os"

	"github.com/coppice-dev/coppice/client/wire"
)

// State is how well something works.
type State string

// The states.
const (
	OK      State = "ok"
	Weak    State = "weak"    // it works with less than it should have
	Missing State = "missing" // it does not work
	Unknown State = "unknown" // the probe itself failed, and says neither
)

// Groups of items.
const (
	Tiers    = "tiers"
	Drivers  = "drivers"
	Features = "features"
)

// Names of items. Tests skip by the names of features.
const (
	TierProcess    = "process"
	TierWorkspace  = "workspace"
	TierSupervised = "supervised"
	TierGVisor     = "gvisor"

	DriverOverlay = "overlay"
	DriverCopy    = "copy"
	DriverBtrfs   = "btrfs"

	UserNamespaces = "user-namespaces"
	Overlay        = "overlay-in-userns"
	Whiteouts      = "whiteouts"
	FreshProc      = "fresh-proc"
	Devpts         = "devpts"
	Seccomp        = "seccomp"
	SeccompNotify  = "seccomp-notify"
	Landlock       = "landlock"
	GateLink       = "gate-link"
	Cgroup         = "cgroup-v2"
	IDMapped       = "idmapped-mounts"
	SubordinateIDs = "subordinate-ids"
	Reflink        = "reflink"
	HomeFS         = "home-file-system"
	DiskLimit      = "disk-limit"
)

// Item is one thing that was tried.
type Item struct {
	Group  string `json:"group"`
	Name   string `json:"name"`
	State  State  `json:"state"`
	Tried  string `json:"tried"`            // what was done to find out
	Detail string `json:"detail,omitempty"` // what was found
	Errno  string `json:"errno,omitempty"`  // what the kernel answered, when it refused
	Remedy string `json:"remedy,omitempty"` // one line; set unless OK, where there is one
}

// Report is what this host can do.
type Report struct {
	Kernel string `json:"kernel"`
	User   string `json:"user"`
	Items  []Item `json:"items"`
	// the strongest tier that works, of those that cost nothing: process, or "" when it does not work
	// or is not known to; never workspace, which confines nothing
	Tier   string `json:"tier"`
	Driver string `json:"driver"` // the best driver that works; "" when none does
}

// Options say what to ask.
type Options struct {
	// Home is the store's directory. Where it does not exist yet, its nearest
	// parent that does stands for it.
	Home string
	// Root says that the caller is real root, not uid 0 of a user namespace.
	Root bool
	// Quick asks only for what decides about tier and driver.
	Quick bool
	// Program is coppice-init, of which the self-tests are processes.
	Program *os.File
	// GVisor starts a sandbox of tier gvisor and ends it. An error says why it cannot, its
	// hint what mends it. Where it is nil the tier is not asked for.
	GVisor func(context.Context) error
}

// Item gives the item of that name, and false when it was not asked for.
func (r Report) Item(group, name string) (Item, bool) {
	for _, it := range r.Items {
		if it.Group == group && it.Name == name {
			return it, true
		}
	}
	return Item{}, false
}

// Lacks reports whether a feature was found missing.
func (r Report) Lacks(feature string) bool {
	it, ok := r.Item(Features, feature)
	return ok && it.State == Missing
}

// Wire is Probe in the form that travels to clients.
func Wire(ctx context.Context, o Options) (wire.ProbeReport, error) {
	r, err := Probe(ctx, o)
	if err != nil {
		return wire.ProbeReport{}, err
	}
	w := wire.ProbeReport{Kernel: r.Kernel, User: r.User, Tier: r.Tier, Driver: r.Driver}
	for _, it := range r.Items {
		detail := it.Detail
		if detail == "" {
			detail = it.Tried
		}
		if it.Errno != "" {
			detail += ": " + it.Errno
		}
		w.Items = append(w.Items, wire.ProbeItem{
			Name: it.Name, Group: it.Group, OK: it.State == OK || it.State == Weak, Weak: it.State == Weak,
			Unknown: it.State == Unknown, Detail: detail, Remedy: it.Remedy,
		})
	}
	return w, nil
}
