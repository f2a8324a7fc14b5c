//go:build linux

package engine

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
)

// tierItems returns the items of tiers with states: "yes", "weak", "no" or "?", and "-" for an item that is missing.
func tierItems(gvisor, supervised, process string) wire.ProbeReport {
	var p wire.ProbeReport
	for _, t := range []struct{ name, state string }{
		{tierGVisor, gvisor}, {tierSupervised, supervised}, {tierProcess, process}, {tierWorkspace, "yes"},
	} {
		if t.state == "-" {
			continue
		}
		p.Items = append(p.Items, wire.ProbeItem{Group: "tiers", Name: t.name, OK: t.state == "yes" || t.state == "weak",
			Weak: t.state == "weak", Unknown: t.state == "?", Detail: "lack of " + t.name, Remedy: "get " + t.name})
	}
	return p
}

// TestTierFor decides the tier and its reason for what a policy requests and what the host provides.
func TestTierFor(t *testing.T) {
	t.Parallel()
	const (
		strongest = "the strongest tier without a separate kernel"
		maybe     = "; stronger where it works: gvisor (--tier gvisor)"
		sure      = "; stronger here: gvisor (--tier gvisor)"
		hosts     = "the strongest tier that can use the host's network, as requested by --net"
		forget    = strongest + " that can leave programs unrecorded, as requested by /p.yaml:3"
	)
	for _, tt := range []struct {
		name      string
		on        wire.ProbeReport
		tier, net string // flags
		policy    string // lines of a file of level flags
		project   string // lines of a project's file
		user      string // lines of the owner's file
		want, why string
		kind      fault.Kind
		says      string // in the text or the hint of the error
	}{
		{name: "all that is tried by default", on: tierItems("-", "yes", "yes"), want: "supervised", why: strongest + maybe},
		{name: "weak ones count", on: tierItems("-", "weak", "weak"), want: "supervised", why: strongest + maybe},
		{name: "auto by name", on: tierItems("-", "yes", "yes"), tier: "auto", want: "supervised", why: strongest + maybe},
		{name: "gvisor works", on: tierItems("yes", "yes", "yes"), want: "supervised", why: strongest + sure},
		{name: "gvisor does not work", on: tierItems("no", "yes", "yes"), want: "supervised",
			why: strongest + "; not gvisor: lack of gvisor"},
		{name: "gvisor was tried in vain", on: tierItems("?", "yes", "yes"), want: "supervised", why: strongest + maybe},
		{name: "network off, as by default", on: tierItems("-", "yes", "yes"), net: "off", want: "supervised",
			why: strongest + maybe},
		{name: "only process", on: tierItems("-", "no", "yes"), want: "process",
			why: strongest + "; not supervised: lack of supervised" + maybe},
		{name: "process and gvisor", on: tierItems("yes", "no", "weak"), want: "process",
			why: strongest + "; not supervised: lack of supervised" + sure},
		{name: "process alone", on: tierItems("no", "no", "yes"), want: "process",
			why: strongest + "; not supervised: lack of supervised; not gvisor: lack of gvisor"},
		{name: "nothing", on: tierItems("no", "no", "no"), kind: fault.Unsupported,
			says: "this host supports no tier (process: lack of process)"},
		{name: "nothing, with a hint", on: tierItems("-", "no", "no"), kind: fault.Unsupported,
			says: "get process; see what the host lacks"},
		{name: "supervised unknown", on: tierItems("-", "?", "yes"), kind: fault.Unavailable, says: "get supervised"},
		{name: "all unknown", on: tierItems("?", "?", "?"), kind: fault.Unavailable, says: "get supervised"},

		{name: "the host's network", on: tierItems("yes", "yes", "yes"), net: "host", want: "process", why: hosts},
		{name: "the host's network alone", on: tierItems("-", "no", "yes"), net: "host", want: "process", why: hosts},
		{name: "the host's network, supervised unknown", on: tierItems("-", "?", "yes"), net: "host", want: "process",
			why: hosts},
		{name: "the host's network, strong", on: tierItems("yes", "yes", "yes"), net: "host", policy: "strong: true",
			want: "process", why: hosts},
		{name: "programs that are not recorded", on: tierItems("-", "yes", "yes"), policy: "evidence: {programs: none}",
			want: "process", why: forget + maybe},
		{name: "programs that are not recorded, and gvisor", on: tierItems("yes", "yes", "yes"),
			policy: "evidence: {programs: none}", want: "process", why: forget + sure},
		{name: "the host's network, without a tier", on: tierItems("-", "no", "no"), net: "host", kind: fault.Unsupported,
			says: "(process: lack of process)"},

		{name: "strong", on: tierItems("yes", "yes", "yes"), policy: "strong: true", want: "gvisor",
			why: "the strongest tier, as required by strong at /p.yaml:3"},
		{name: "strong without gvisor", on: tierItems("no", "yes", "yes"), policy: "strong: true", want: "supervised",
			why: strongest + "; not gvisor: lack of gvisor"},
		{name: "strong with process alone", on: tierItems("no", "no", "yes"), policy: "strong: true", want: "process",
			why: strongest + "; not supervised: lack of supervised; not gvisor: lack of gvisor"},
		{name: "strong and unknown", on: tierItems("?", "yes", "yes"), policy: "strong: true", kind: fault.Unavailable,
			says: "get gvisor"},
		{name: "strong with a tier", on: tierItems("yes", "yes", "yes"), tier: "process", policy: "strong: true",
			want: "process", why: "requested"},

		{name: "rules", on: tierItems("-", "yes", "yes"), net: "rules", want: "supervised", why: "requested by --net"},
		{name: "rules without supervised", on: tierItems("-", "no", "yes"), net: "rules", kind: fault.Unsupported,
			says: "does not support tier supervised: lack of supervised"},
		{name: "strong rules", on: tierItems("yes", "yes", "yes"), net: "rules", policy: "strong: true", want: "gvisor",
			why: "the strongest tier, as required by strong at /p.yaml:3"},
		{name: "strong rules without gvisor", on: tierItems("no", "yes", "yes"), net: "rules", policy: "strong: true",
			want: "supervised", why: "requested by --net; not gvisor: lack of gvisor"},

		{name: "process by name", on: tierItems("yes", "yes", "yes"), tier: "process", want: "process", why: "requested"},
		{name: "supervised by name", on: tierItems("-", "yes", "yes"), tier: "supervised", want: "supervised",
			why: "requested"},
		{name: "supervised by name, missing", on: tierItems("-", "no", "yes"), tier: "supervised",
			kind: fault.Unsupported, says: "get supervised"},
		{name: "gvisor by name", on: tierItems("yes", "yes", "yes"), tier: "gvisor", want: "gvisor", why: "requested"},
		{name: "gvisor by name, missing", on: tierItems("no", "yes", "yes"), tier: "gvisor", kind: fault.Unsupported,
			says: "get gvisor"},
		{name: "workspace by name", on: tierItems("-", "yes", "yes"), tier: "workspace", want: "workspace",
			why: "requested"},
		{name: "process by a file", on: tierItems("-", "yes", "yes"), policy: "tier: process", want: "process",
			why: "requested by /p.yaml:3"},
		{name: "supervised by a file", on: tierItems("-", "yes", "yes"), policy: "tier: supervised", want: "supervised",
			why: "requested by /p.yaml:3"},

		{name: "process by a project", on: tierItems("-", "yes", "yes"), project: "tier: process", want: "supervised",
			why: strongest + maybe},
		{name: "process by a project, and rules", on: tierItems("-", "yes", "yes"), net: "rules", project: "tier: process",
			want: "supervised", why: "requested by --net"},
		{name: "process by a project, strong", on: tierItems("yes", "yes", "yes"), policy: "strong: true",
			project: "tier: process", want: "gvisor", why: "the strongest tier, as required by strong at /p.yaml:3"},
		{name: "supervised by a project, strong", on: tierItems("yes", "yes", "yes"), policy: "strong: true",
			project: "tier: supervised", want: "gvisor", why: "the strongest tier, as required by strong at /p.yaml:3"},
		{name: "supervised by a project, strong without gvisor", on: tierItems("no", "yes", "yes"), policy: "strong: true",
			project: "tier: supervised", want: "supervised",
			why: "requested by /project.yaml:3; not gvisor: lack of gvisor"},
		{name: "supervised by a project, missing", on: tierItems("-", "no", "yes"), project: "tier: supervised",
			kind: fault.Unsupported, says: "get supervised"},
		{name: "gvisor by a project", on: tierItems("yes", "yes", "yes"), project: "tier: gvisor", want: "gvisor",
			why: "requested by /project.yaml:3"},
		{name: "process by the owner and by a project", on: tierItems("yes", "yes", "yes"), user: "tier: process",
			project: "tier: process", want: "process", why: "requested by /project.yaml:3"},
		{name: "process by the owner, supervised by a project", on: tierItems("yes", "yes", "yes"),
			user: "tier: process\nstrong: true", project: "tier: supervised", want: "supervised",
			why: "requested by /project.yaml:3"},
		{name: "process by name, supervised by a project", on: tierItems("yes", "yes", "yes"), tier: "process",
			project: "tier: supervised", want: "process", why: "requested"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := wire.CreateRequest{Tier: tt.tier, Net: tt.net}
			if tt.policy != "" {
				req.Policy = []wire.PolicyFile{{Level: wire.PolicyFlags, Name: "/p.yaml", Text: "version: 1\n\n" + tt.policy}}
			}
			if tt.user != "" {
				req.Policy = append(req.Policy, wire.PolicyFile{Level: wire.PolicyUser, Name: "/user.yaml",
					Text: "version: 1\n\n" + tt.user})
			}
			if tt.project != "" {
				req.Policy = append(req.Policy, wire.PolicyFile{Level: wire.PolicyProject, Name: "/project.yaml",
					Text: "version: 1\n\n" + tt.project})
			}
			pol, _, err := policies.Ask(req)
			if err != nil {
				t.Fatal(err)
			}
			tier, why, err := tierFor(pol, tt.on)
			said := ""
			if err != nil {
				said = err.Error() + "; " + fault.HintOf(err)
			}
			if tier != tt.want || why != tt.why || fault.KindOf(err) != tt.kind || !strings.Contains(said, tt.says) {
				t.Errorf("got %q (%s), error %q", tier, why, said)
			}
		})
	}
}

// TestChooser_AsksOnce checks that a host that lacks nothing is probed once, and tier gvisor only when it is asked for
// or after a full probe.
func TestChooser_AsksOnce(t *testing.T) {
	t.Parallel()
	on := tierItems("-", "yes", "yes")
	on.Tier, on.Driver = tierSupervised, "overlay"
	var asked []HostQuestion
	c := &chooser{probe: func(_ context.Context, q HostQuestion) (wire.ProbeReport, error) {
		asked = append(asked, q)
		p := on
		if q.GVisor {
			p.Items = append([]wire.ProbeItem{{Group: "tiers", Name: tierGVisor, OK: true}}, on.Items...)
		}
		return p, nil
	}}
	choose := func(tier string) string {
		t.Helper()
		pol, _, err := policies.Ask(wire.CreateRequest{Tier: tier})
		var rec meta.Sandbox
		if err == nil {
			_, err = c.chooseTier(t.Context(), pol, &rec)
		}
		if err != nil {
			t.Fatal(err)
		}
		return rec.TierReason
	}
	for range 2 {
		if why := choose(""); !strings.HasSuffix(why, "stronger where it works: gvisor (--tier gvisor)") {
			t.Errorf("before it was tried: %s", why)
		}
	}
	choose(tierGVisor)
	for range 2 {
		if why := choose(""); !strings.HasSuffix(why, "stronger here: gvisor (--tier gvisor)") {
			t.Errorf("after it was tried: %s", why)
		}
	}
	if len(asked) != 2 || asked[0].GVisor || !asked[1].GVisor {
		t.Errorf("asked %+v", asked)
	}
	c.probe = func(context.Context, HostQuestion) (wire.ProbeReport, error) {
		return wire.ProbeReport{}, errors.New("probed again")
	}
	choose(tierSupervised)
}
