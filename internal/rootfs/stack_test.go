//go:build linux

package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// TestStackOfAPart describes layers by lines: "path/" is a directory, "path/!" an opaque one, "path-" a file, "path@"
// a link to a directory.
func TestStackOfAPart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		part   string
		layers []string // topmost first
		want   string   // indexes of the layers that form the part
		host   bool     // whether the host's directory is the base
	}{
		{"root", "/", []string{"a/", "b/"}, "0 1", true},
		{"untouched", "/usr", []string{"etc/", "var/lib/"}, "", true},
		{"some", "/usr", []string{"usr/", "etc/", "usr/lib/"}, "0 2", true},
		{"deeper", "/usr/lib", []string{"usr/", "usr/lib/", "usr/bin/"}, "1", true},
		{"opaque", "/usr", []string{"usr/", "usr/!", "usr/"}, "0 1", false},
		{"opaque above", "/usr/lib", []string{"usr/lib/", "usr/! usr/lib/", "usr/lib/"}, "0 1", false},
		{"opaque above without it", "/usr/lib", []string{"usr/lib/", "usr/!", "usr/lib/"}, "0", false},
		{"opaque root", "/usr", []string{"usr/", "/!", "usr/"}, "0", false},
		{"a file in its place", "/usr", []string{"usr/", "usr-", "usr/"}, "0", false},
		{"a file above", "/usr/lib", []string{"usr-", "usr/lib/"}, "", false},
		{"a link in its place", "/usr", []string{"usr@", "usr/"}, "", false},
		{"a link above", "/usr/lib", []string{"usr@", "usr/lib/"}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var st rootspec.Stack
			for i, spec := range c.layers {
				l := filepath.Join(dir, string(rune('0'+i)))
				st.Layers = append(st.Layers, l)
				for w := range strings.FieldsSeq(spec) {
					plant(t, l, w)
				}
			}
			st.Host = true
			got, err := newStackReader(st).at(c.part)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for w := range strings.FieldsSeq(c.want) {
				want = append(want, filepath.Join(dir, w, c.part))
			}
			if c.host {
				want = append(want, c.part)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func plant(t *testing.T, layer, what string) {
	t.Helper()
	kind := what[len(what)-1]
	p := filepath.Join(layer, strings.TrimRight(what, "/!-@"))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(layer, 0o755))
	switch kind {
	case '/':
		must(os.MkdirAll(p, 0o755))
	case '!':
		must(os.MkdirAll(p, 0o755))
		if err := unix.Setxattr(p, "user.overlay.opaque", []byte("y"), 0); err != nil {
			t.Skip("needs user-xattrs: opaque directories are marked by one")
		}
	case '-':
		must(os.WriteFile(p, nil, 0o644))
	case '@':
		must(os.Symlink("/usr", p))
	}
}
