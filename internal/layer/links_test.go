package layer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestLinksOutOfRenamedDirectory renames a directory, which makes it and its content new. A file in it that has
// another name in an unchanged directory stays one file.
func TestLinksOutOfRenamedDirectory(t *testing.T) {
	for _, plain := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			if !plain {
				needOverlay(t)
			}
			w := newWorld(t, t.TempDir(), plain)
			defer w.close()
			w.base(func(string) {})
			w.present()
			at := func(p string) string { return filepath.Join(w.live, p) }
			w.must(os.MkdirAll(at("from/deep"), 0o755))
			w.must(os.MkdirAll(at("stays/here"), 0o755))
			w.must(os.WriteFile(at("from/deep/a"), []byte("one file"), 0o644))
			w.must(os.Link(at("from/deep/a"), at("stays/here/b")))
			w.must(os.Link(at("from/deep/a"), at("c")))
			w.must(os.WriteFile(at("stays/other"), []byte("another"), 0o644))
			w.must(os.Link(at("stays/other"), at("stays/here/other")))
			w.capture()
			w.must(os.Rename(at("from"), at("to")))
			c := w.capture() // compares which names are one file
			if c.Stats.Paths > 6 {
				t.Errorf("%d paths: %q", c.Stats.Paths, c.Paths)
			}
			if c := w.capture(); !c.Empty {
				t.Errorf("nothing changed, but captured %q", c.Paths)
			}
		})
	}
}
