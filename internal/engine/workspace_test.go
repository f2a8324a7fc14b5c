//go:build linux

package engine

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// TestCreate_TakesWorkspaceWhereNothingConfines checks that a host without namespaces gets tier workspace, with a
// warning, unless the request requires more.
func TestCreate_TakesWorkspaceWhereNothingConfines(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.flat = true
	here := t.TempDir()
	for name, change := range map[string]func(*wire.CreateRequest){
		"dir":  nil,
		"host": func(r *wire.CreateRequest) { r.From, r.Dir = wire.Source{}, here },
		"me":   func(r *wire.CreateRequest) { r.User, r.Tier = "me", "auto" },
	} {
		sb, err := h.makes(name, change)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if sb.Tier != tierWorkspace || sb.User != userMe || sb.Net != "host" || sb.Driver != "copy" ||
			len(sb.Warnings) != 1 || !strings.Contains(sb.Warnings[0], "tier workspace, locked: ") ||
			!strings.Contains(sb.Warnings[0], "needs user-namespaces") {
			t.Errorf("%s: %+v", name, sb)
		}
	}
	for _, c := range []struct {
		says   string
		change func(*wire.CreateRequest)
	}{
		{"supports no tier", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{said(wire.PolicyUser, "strong: true")}
		}},
		{"supports no tier", func(r *wire.CreateRequest) { r.From = wire.Source{Kind: wire.SourceHostCopy} }},
		{"supports no tier", func(r *wire.CreateRequest) { r.From = wire.Source{Kind: wire.SourceTar} }},
		{"tier process", func(r *wire.CreateRequest) { r.Tier = "process" }},
		{"tier process", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{said(wire.PolicyUser, "tier: process")}
		}},
		{"network off of --net: commands use the host's network; this host supports no tier", func(r *wire.CreateRequest) {
			r.Net, r.Policy = "off", []wire.PolicyFile{said(wire.PolicyUser, "confine: off")}
		}},
		{"limits; this host supports no tier", func(r *wire.CreateRequest) { r.Limits = "pids=5" }},
		{"hidden paths", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{said(wire.PolicyUser, "files: {hide: [/x]}")}
		}},
		{"user daemon", func(r *wire.CreateRequest) { r.User = "daemon" }},
		{"/run/coppice.sock", func(r *wire.CreateRequest) { r.Self = wire.SelfRead }},
	} {
		_, err := h.makes("no", c.change)
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), c.says) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", c.says, err, fault.HintOf(err))
		}
	}
	for _, dir := range []string{"", "/", h.Home, h.Home + "/layers"} {
		_, err := h.makes("no", func(r *wire.CreateRequest) { r.From, r.Dir = wire.Source{}, dir })
		if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("in %q: %v", dir, err)
		}
	}
}
