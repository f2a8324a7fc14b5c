//go:build linux

package policies

import (
	"reflect"
	"testing"

	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// TestAccessIn checks that a path applies where it is on the host and where it is in the sandbox, and that a read-only
// path is read-only under each path at which a mount shows it.
func TestAccessIn(t *testing.T) {
	t.Parallel()
	at := func(said string, paths ...string) rootspec.Place { return rootspec.Place{Said: said, At: paths} }
	for _, c := range []struct {
		text, root string
		want       rootspec.Access
	}{
		{"files: {}", "/", rootspec.Access{}},
		{"files: {readonly: [./vendor, ~/x, /y/*]}", "/", rootspec.Access{ReadOnly: []rootspec.Place{
			at("/p/vendor", "/p/vendor"), at("/y/*", "/y"), at("~/x", "/home/me/x", "/h/x"),
		}}},
		{"files: {readonly: [./vendor, .]}", "/p", rootspec.Access{ReadOnly: []rootspec.Place{
			at("/p", "/p", "/"), at("/p/vendor", "/p/vendor", "/vendor"),
		}}},
		{"files: {readonly: [/tmp/p/x]}", "/tmp/p", rootspec.Access{ReadOnly: []rootspec.Place{at("/tmp/p/x", "/x")}}},
		{"files: {writable: []}", "/", rootspec.Access{Only: true}},
		{"files: {writable: [., /tmp]}", "/", rootspec.Access{Only: true, Writable: []rootspec.Place{at("/p", "/p")}}},
		{"files: {writable: [.]}", "/p", rootspec.Access{}},
		{"files: {mounts: [{from: ~/d, to: /m}, {from: ./d, to: ~/m, mode: rw}]}", "/",
			rootspec.Access{Mounts: []rootspec.HostMount{
				{From: "/home/me/d", To: "/m"}, {From: "/p/d", To: "/home/me/m", Write: true},
			}}},
		{"files: {readonly: [./d/in/x, /home/me/ro], " +
			"mounts: [{from: ./d, to: /m, mode: rw}, {from: ~/ro/y, to: /n, mode: rw}]}", "/", rootspec.Access{
			ReadOnly: []rootspec.Place{at("/home/me/ro", "/home/me/ro"), at("/p/d/in/x", "/p/d/in/x", "/m/in/x")},
			Mounts:   []rootspec.HostMount{{From: "/p/d", To: "/m", Write: true}, {From: "/home/me/ro/y", To: "/n"}},
		}},
	} {
		d, err := policy.Parse("/p/coppice.yaml", []byte("version: 1\n"+c.text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.Merge(policy.Layer{Level: policy.Flags, Document: d})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := accessIn(p, c.root, []string{"/home/me", "/h"}); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s in %s: %+v, %v; want %+v", c.text, c.root, got, err, c.want)
		}
	}
}
