//go:build linux

package engine

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// TestPackable_NamesFileReadAsWhiteout checks that a push names the file that cannot be packed
// before it packs anything.
func TestPackable_NamesFileReadAsWhiteout(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", ".wh.base", "x")
	if err := h.Finalize(ctx); err != nil {
		t.Fatal(err)
	}
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	rec.Host, rec.Repo = true, &meta.Repo{}
	if _, err := h.Travel.Packable(ctx, &rec); !fault.Is(err, fault.Unsupported) ||
		!strings.Contains(err.Error(), `"/.wh.base"`) || fault.HintOf(err) == "" {
		t.Errorf("%v, hint %q; want unsupported, the path and a hint", err, fault.HintOf(err))
	}
}

// TestPacking_RefusesLayerOfOlderVersion covers versions that gave such a layer a DiffID. It
// may be in a registry by now, and is not pushed from there either.
func TestPacking_RefusesLayerOfOlderVersion(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	id := h.layerOf(h.run("a", "write", ".wh.base", "x").Head)
	if err := h.Finalize(ctx); err != nil {
		t.Fatal(err)
	}
	l, err := h.DB.Layer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.DB.MarkFinalized(ctx, id, l.Digest, "sha256:old", l.Size); err != nil {
		t.Fatal(err)
	}
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	rec.Host, rec.Repo = true, &meta.Repo{}
	if _, err := h.Travel.Packable(ctx, &rec); !fault.Is(err, fault.Unsupported) ||
		!strings.Contains(err.Error(), `"/.wh.base"`) {
		t.Errorf("%v; want unsupported, and the path", err)
	}
}
