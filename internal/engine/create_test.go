//go:build linux

package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// TestChoice picks drivers and tiers from what a probe found.
func TestChoice(t *testing.T) {
	t.Parallel()
	probe := wire.ProbeReport{Items: []wire.ProbeItem{
		{Group: "tiers", Name: "process", OK: true, Weak: true},
		{Group: "tiers", Name: "workspace", OK: true},
		{Group: "features", Name: "copy", Detail: "of the same name, and something else"},
		{Group: "drivers", Name: "overlay", Detail: "no upper", Remedy: "get a volume"},
		{Group: "drivers", Name: "copy", OK: true},
		{Group: "drivers", Name: "btrfs", Detail: "not btrfs", Remedy: "get btrfs"},
	}}
	none := wire.ProbeReport{Items: slices.Clone(probe.Items)}
	for i := range none.Items {
		none.Items[i].OK = false
	}
	failed := wire.ProbeReport{Items: []wire.ProbeItem{
		{Group: "tiers", Name: "process", Unknown: true, Detail: "EMFILE", Remedy: "ulimit -n"},
		{Group: "tiers", Name: "workspace", OK: true},
	}}
	tests := []struct {
		name        string
		of          choice
		in          wire.ProbeReport
		asked, best string
		want, why   string
		kind        fault.Kind
		hint        string
	}{
		{name: "the best", of: drivers, in: wire.ProbeReport{Items: []wire.ProbeItem{
			{Group: "drivers", Name: "overlay", OK: true}}}, best: "overlay", want: "overlay",
			why: "the strongest driver that this host supports"},
		{name: "auto says what stands in the way", of: drivers, in: probe, asked: "auto", best: "copy", want: "copy",
			why: "the strongest driver that this host supports; not overlay: no upper, nor btrfs: not btrfs"},
		{name: "auto without a confined tier", of: tiers, in: none, kind: fault.Unsupported,
			hint: "coppice system probe; for history without confinement: coppice create --tier workspace"},
		{name: "auto of a probe that answers workspace", of: tiers, in: probe, best: "workspace", kind: fault.Unsupported},
		{name: "auto after a probe that failed", of: tiers, in: failed, asked: "auto", kind: fault.Unavailable,
			hint: "ulimit -n"},
		{name: "by name after a probe that failed", of: tiers, in: failed, asked: "process", kind: fault.Unavailable,
			hint: "ulimit -n"},
		{name: "workspace by name", of: tiers, in: failed, asked: "workspace", want: "workspace", why: "requested"},
		{name: "by name", of: drivers, in: probe, asked: "copy", best: "copy", want: "copy", why: "requested"},
		{name: "weaker than the best", of: tiers, in: probe, asked: "workspace", best: "process", want: "workspace",
			why: "requested"},
		{name: "what the host lacks", of: drivers, in: probe, asked: "overlay", best: "copy", kind: fault.Unsupported,
			hint: "get a volume"},
		{name: "what nobody has", of: drivers, in: probe, asked: "zfs", best: "copy", kind: fault.Invalid,
			hint: "coppice system probe"},
		{name: "nothing works", of: drivers, in: none, kind: fault.Unsupported,
			hint: "get a volume; see what the host lacks: coppice system probe"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, why, err := tt.of.pick(tt.in, tt.asked, tt.best)
			if got != tt.want || why != tt.why || fault.KindOf(err) != tt.kind || !strings.Contains(fault.HintOf(err), tt.hint) {
				t.Errorf("got %q (%q), %v, hint %q", got, why, err, fault.HintOf(err))
			}
		})
	}
}

// TestChoice_EnforcesDiskLimit takes the strongest driver that can enforce the limit, and
// names the reasons against stronger ones.
func TestChoice_EnforcesDiskLimit(t *testing.T) {
	t.Parallel()
	probe := func(overlay, btrfs bool) wire.ProbeReport {
		return wire.ProbeReport{Items: []wire.ProbeItem{
			{Group: "drivers", Name: "overlay", OK: overlay, Detail: "no upper", Remedy: "get a volume"},
			{Group: "drivers", Name: "copy", OK: true},
			{Group: "drivers", Name: "btrfs", OK: btrfs, Detail: "not btrfs", Remedy: "get btrfs"},
		}}
	}
	lack := func(what string) error { return fault.New(fault.Unsupported, "no %s", what).WithHint("get %s", what) }
	projects, groups, never := lack("projects"), lack("groups"), lack("other driver")
	plain := func(name string) bool { return name != "overlay" }
	for _, tt := range []struct {
		name           string
		overlay, btrfs bool
		able           map[string]error
		asked          string
		host           bool
		want, why      string
		kind           fault.Kind
		hint           string
	}{
		{name: "all can", overlay: true, btrfs: true, able: map[string]error{"overlay": nil, "btrfs": nil, "copy": never},
			want: "overlay",
			why:  "the strongest driver that can enforce the disk limit here"},
		{name: "the next one", overlay: true, btrfs: true,
			able: map[string]error{"overlay": projects, "btrfs": nil, "copy": never}, asked: "auto", want: "btrfs",
			why: "the strongest driver that can enforce the disk limit here; not overlay: no projects"},
		{name: "no overlayfs", btrfs: true, able: map[string]error{"btrfs": nil, "copy": never}, want: "btrfs",
			why: "the strongest driver that can enforce the disk limit here; not overlay: no upper"},
		{name: "on btrfs without quotas", overlay: true, btrfs: true,
			able: map[string]error{"overlay": projects, "btrfs": groups, "copy": never},
			kind: fault.Unsupported, hint: "get groups"},
		{name: "the host as base", overlay: true, btrfs: true,
			able: map[string]error{"overlay": projects, "btrfs": nil, "copy": never}, host: true,
			kind: fault.Unsupported, hint: "get projects"},
		{name: "nobody can", overlay: true, able: map[string]error{"overlay": projects, "copy": never},
			kind: fault.Unsupported, hint: "get projects"},
		{name: "by name", overlay: true, able: map[string]error{"overlay": nil, "copy": never}, asked: "overlay",
			want: "overlay", why: "requested"},
		{name: "by name, and cannot", overlay: true, able: map[string]error{"overlay": nil, "copy": never}, asked: "copy",
			want: "copy", why: "requested",
			kind: fault.Unsupported, hint: "get other driver"},
		{name: "what the host lacks", able: map[string]error{"copy": never}, asked: "overlay", kind: fault.Unsupported,
			hint: "get a volume"},
		{name: "nothing works", able: map[string]error{"copy": never}, host: true, kind: fault.Unsupported,
			hint: "get a volume"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, why, err := drivers.pickLimited(probe(tt.overlay, tt.btrfs), tt.asked, tt.able, tt.host, plain)
			if got != tt.want || why != tt.why || fault.KindOf(err) != tt.kind || !strings.Contains(fault.HintOf(err), tt.hint) {
				t.Errorf("got %q (%q), %v, hint %q", got, why, err, fault.HintOf(err))
			}
		})
	}
}
