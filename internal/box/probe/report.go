package probe

import (
	"context"
	"os"

	"github.com/coppice-dev/coppice/client/wire"
)

// State is the result of a try.
type State string

// The states.
const (
	OK      State = "ok"
	Weak    State = "weak"    // works, with less than it should have
	Missing State = "missing" // does not work
	Unknown State = "unknown" // the probe itself failed and proves neither
)

// Groups of items.
const (
	Tiers    = "tiers"
	Drivers  = "drivers"
	Features = "features"
)

// Names of items. Tests decide by the names of features whether to skip.
const (
	TierProcess    = "process"
	TierWorkspace  = "workspace"
	TierSupervised = "supervised"
	TierContainer  = "container"
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

// Item is the result for one feature.
type Item struct {
	Group  string `json:"group"`
	Name   string `json:"name"`
	State  State  `json:"state"`
	Tried  string `json:"tried"`            // the test
	Detail string `json:"detail,omitempty"` // the finding
	Errno  string `json:"errno,omitempty"`  // the kernel's error, if it refused
	Remedy string `json:"remedy,omitempty"` // one line; set unless OK, where a remedy exists
}

// Report lists what this host can do.
type Report struct {
	Kernel string `json:"kernel"`
	User   string `json:"user"`
	Items  []Item `json:"items"`
	// Tier is the strongest tier without a separate kernel that works: supervised or process; "" if neither works, or
	// if it is unknown whether one does. It is never workspace, which confines nothing.
	Tier   string `json:"tier"`
	Driver string `json:"driver"` // the best driver that works, or ""
}

// Options configure Probe.
type Options struct {
	// Home is the store's directory. If it does not exist yet, its nearest existing parent is used.
	Home string
	// Root says that the caller is real root, not uid 0 of a user namespace.
	Root bool
	// Quick limits the probe to what determines the tier and the driver.
	Quick bool
	// Program is coppice-init, which runs the self-tests.
	Program *os.File
	// GVisor starts a sandbox of tier gvisor and stops it. Its error says why that failed, and the error's hint how to
	// fix it. If nil, the tier is not probed.
	GVisor func(context.Context) error
	// Runtimes are the OCI runtimes with which tier container is probed. If empty, the tier is not probed.
	Runtimes []Runtime
}

// Runtime is an OCI runtime to be tried.
type Runtime struct {
	Name string
	Try  func(context.Context) error // starts a sandbox of it and stops it, as Options.GVisor
}

// Item returns the item with that name, and false if it was not probed.
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

// Wire is Probe with a report in the client's format.
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
