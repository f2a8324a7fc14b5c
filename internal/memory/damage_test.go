package memory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// twice makes a store with two images; the second uses pages of the first.
func twice(t *testing.T) (h *home, a, b shape, one, two Image) {
	t.Helper()
	h = newHome(t, inMemory(t), Options{})
	t.Cleanup(h.close)
	a = image(seeds(1, 600))
	b = image(append(seeds(5000, 30), a.pages...))
	return h, a, b, h.add(a), h.add(b)
}

// flip changes a byte of a file, as a failing disk does or another program.
func flip(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], off)
	must(t, err)
	b[0]++
	_, err = f.WriteAt(b[:], off)
	must(t, err)
}

// packOf returns the directory of the pack with that many pages.
func packOf(t *testing.T, h *home, pages int64) string {
	t.Helper()
	for _, id := range h.ls(packsDir) {
		if st, err := os.Stat(h.file(packsDir, id, pagesName)); err == nil && st.Size() == pages*pageSize {
			return h.file(packsDir, id)
		}
	}
	t.Fatalf("no pack has %d pages", pages)
	return ""
}

func TestCheckout_DetectsChangedPage(t *testing.T) {
	t.Parallel()
	h, _, b, one, two := twice(t)
	flip(t, filepath.Join(packOf(t, h, 600), pagesName), 77*pageSize+5)
	if _, _, err := h.s.Checkout(t.Context(), one.ID); !fault.Is(err, fault.Corrupt) || fault.HintOf(err) == "" {
		t.Errorf("its own pack: %v", err)
	} else {
		t.Log(err)
	}
	// The second image has its own cached copy, which is intact.
	h.check("cached", two.ID, b)
	for _, id := range []ID{one.ID, two.ID} {
		if err := h.s.Verify(t.Context(), id); !fault.Is(err, fault.Corrupt) {
			t.Errorf("verify: %v", err)
		}
	}
	h.cold(two.ID)
	if _, _, err := h.s.Checkout(t.Context(), two.ID); !fault.Is(err, fault.Corrupt) {
		t.Errorf("assembled: %v", err)
	} else {
		t.Log(err)
	}
	// Damaged pages are not used for a new image.
	c := image(append(seeds(9000, 3), b.pages...))
	three := h.add(c)
	h.cold(three.ID)
	h.check("added later", three.ID, c)
	must(t, h.s.Verify(t.Context(), three.ID))
	if left := h.ls(tmpDir); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

func TestCheckout_ReplacesDamagedCopy(t *testing.T) {
	t.Parallel()
	for _, name := range imageFiles {
		h, _, b, _, two := twice(t)
		path := h.file(cacheDir, string(two.ID), name)
		flip(t, path, 3)
		h.check(name, two.ID, b)
		flip(t, path, 3)
		if err := h.s.Verify(t.Context(), two.ID); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, h.s.Verify(t.Context(), two.ID))
		h.check(name, two.ID, b)
		must(t, os.Truncate(path, 1))
		h.check(name, two.ID, b)
		must(t, os.Remove(path))
		h.check(name, two.ID, b)
		must(t, os.RemoveAll(filepath.Dir(path)))
		h.check(name, two.ID, b)
	}
}

// TestStore_RehashesAfterReboot checks that after a reboot everything is hashed once instead of trusted.
func TestStore_RehashesAfterReboot(t *testing.T) {
	t.Parallel()
	h, a, b, one, two := twice(t)
	h.forget()
	h.check("first", one.ID, a)
	h.check("second", two.ID, b)
	h.forget()
	h.cold(one.ID)
	h.cold(two.ID)
	h.check("first", one.ID, a)
	h.check("second", two.ID, b)
	h.forget()
	c := image(append(seeds(9000, 3), b.pages...))
	if three := h.add(c); three.AddedBytes > 60<<10 {
		t.Errorf("%d bytes were added", three.AddedBytes)
	}
}

func TestStore_ReportsDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(h *home, one, two Image){
		"index":         func(h *home, _, _ Image) { flip(t, filepath.Join(packOf(t, h, 30), indexName), 200) },
		"index cut":     func(h *home, _, _ Image) { must(t, os.Truncate(filepath.Join(packOf(t, h, 30), indexName), 20)) },
		"index gone":    func(h *home, _, _ Image) { must(t, os.Remove(filepath.Join(packOf(t, h, 30), indexName))) },
		"index header":  func(h *home, _, _ Image) { flip(t, filepath.Join(packOf(t, h, 30), indexName), 42) },
		"index version": func(h *home, _, _ Image) { flip(t, filepath.Join(packOf(t, h, 30), indexName), 15) },
		"pages cut": func(h *home, _, _ Image) {
			must(t, os.Truncate(filepath.Join(packOf(t, h, 30), pagesName), 9*pageSize))
		},
		"pages gone":   func(h *home, _, _ Image) { must(t, os.Remove(filepath.Join(packOf(t, h, 30), pagesName))) },
		"pack gone":    func(h *home, _, _ Image) { must(t, os.RemoveAll(packOf(t, h, 30))) },
		"manifest":     func(h *home, _, two Image) { flip(t, h.file(imagesDir, string(two.ID)), 60) },
		"manifest cut": func(h *home, _, two Image) { must(t, os.Truncate(h.file(imagesDir, string(two.ID)), 40)) },
		"small files": func(h *home, _, _ Image) {
			for _, name := range h.ls(blobsDir) {
				flip(t, h.file(blobsDir, name), 9)
			}
		},
		"small files gone": func(h *home, _, _ Image) {
			for _, name := range h.ls(blobsDir) {
				must(t, os.Remove(h.file(blobsDir, name)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, a, b, one, two := twice(t)
			damage(h, one, two)
			h.forget()
			h.cold(two.ID)
			h.s.Close()
			h.open()
			h.forget()
			if _, _, err := h.s.Checkout(t.Context(), two.ID); !fault.Is(err, fault.Corrupt) {
				t.Errorf("checked out: %v", err)
			}
			if err := h.s.Verify(t.Context(), two.ID); !fault.Is(err, fault.Corrupt) {
				t.Errorf("verified: %v", err)
			}
			if name != "small files" && name != "small files gone" {
				h.cold(one.ID)
				h.check("the other", one.ID, a)
			}
			// While it is unknown what the image uses, nothing is removed. Without that image, the store is intact.
			_, _ = h.s.Sweep(t.Context(), func(ID) bool { return true })
			_, err := h.s.Sweep(t.Context(), func(id ID) bool { return id == one.ID })
			must(t, err)
			h.check("the other", one.ID, a)
			// Adding the image again repairs what can be repaired.
			again := h.add(b)
			h.cold(again.ID)
			h.check("again", again.ID, b)
			x := h.add(a)
			h.cold(x.ID)
			h.check("the other again", x.ID, a)
			must(t, h.s.Verify(t.Context(), x.ID))
		})
	}
}
