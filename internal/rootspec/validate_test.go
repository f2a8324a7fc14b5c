package rootspec_test

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	at := func(target string) rootspec.Overlay {
		return rootspec.Overlay{Target: target, Lowers: []string{"/l"}, Upper: "/u", Work: "/w"}
	}
	with := func(o rootspec.Overlay, change func(*rootspec.Overlay)) rootspec.Spec {
		change(&o)
		return rootspec.Spec{Overlays: []rootspec.Overlay{o}}
	}
	overlays := func(targets ...string) (s rootspec.Spec) {
		for _, x := range targets {
			s.Overlays = append(s.Overlays, at(x))
		}
		return s
	}
	for name, c := range map[string]struct {
		spec rootspec.Spec
		want string // part of the error; "" for none
	}{
		"bind":                {rootspec.Spec{Bind: "/x"}, ""},
		"one overlay":         {overlays("/"), ""},
		"nested":              {overlays("/", "/home", "/home/me", "/homes"), ""},
		"nothing":             {rootspec.Spec{}, "exactly one"},
		"both":                {rootspec.Spec{Bind: "/x", Overlays: overlays("/").Overlays}, "exactly one"},
		"relative bind":       {rootspec.Spec{Bind: "x"}, "must be absolute and clean"},
		"root not first":      {overlays("/usr", "/"), "must come first"},
		"child before parent": {overlays("/home/me", "/home"), "must come after"},
		"twice":               {overlays("/usr", "/usr"), "duplicate overlay"},
		"unclean target":      {overlays("/usr/../etc"), "must be absolute and clean"},
		"the box's own":       {overlays("/proc/x"), "managed by the sandbox"},
		"no lower":            {with(at("/"), func(o *rootspec.Overlay) { o.Lowers = nil }), "0 lower"},
		"too many lowers": {
			with(at("/"),
				func(o *rootspec.Overlay) { o.Lowers = strings.Split(strings.Repeat("/l ", 501), " ") }), "lower directories"},
		"relative lower": {with(at("/"), func(o *rootspec.Overlay) { o.Lowers = []string{"l"} }), "must be absolute and clean"},
		"no upper":       {with(at("/"), func(o *rootspec.Overlay) { o.Upper = "" }), "must be absolute and clean"},
		"NUL":            {with(at("/"), func(o *rootspec.Overlay) { o.Work = "/a\x00b" }), "must be absolute and clean"},
		"skeleton under overlay": {rootspec.Spec{Overlays: overlays("/").Overlays, Skeleton: []rootspec.Entry{{Path: "/x"}}},
			"skeleton"},
		"skeleton outside": {
			rootspec.Spec{Overlays: overlays("/usr").Overlays, Skeleton: []rootspec.Entry{{Path: "/a/../../x"}}},
			"skeleton entry"},
		"file at root": {rootspec.Spec{Bind: "/x", Files: []rootspec.File{{Source: "/a", Target: "/"}}}, "file"},
		"hide all":     {rootspec.Spec{Bind: "/x", Hide: []string{"/"}}, "cannot hide"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.spec.Validate()
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
