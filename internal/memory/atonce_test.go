package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestStore_ConcurrentUse adds, checks out, sweeps and verifies concurrently: no reader sees an incomplete image, and
// images that are held are not removed.
func TestStore_ConcurrentUse(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{CacheBytes: 1 << 20})
	defer h.close()
	base := seeds(1, 300)
	kept := map[ID]shape{}
	for i := range 4 {
		x := image(append(seeds(1000*(i+1), 10), base...))
		kept[h.add(x).ID] = x
	}
	var wg sync.WaitGroup
	worker := func(fn func(i int) error) {
		wg.Go(func() {
			for i := range 12 {
				if err := fn(i); err != nil {
					t.Errorf("%v", err)
					return
				}
			}
		})
	}
	for k := range 2 {
		worker(func(i int) error {
			x := image(append(base[:200:200], seeds(100000*(k+1)+i*20, 20)...))
			dir := x.write(t, filepath.Join(h.dir, fmt.Sprintf("new%d.%d", k, i)))
			img, err := h.s.Add(context.Background(), dir, nil, Programs{})
			if err != nil {
				return err
			}
			// It may be swept meanwhile; otherwise it must be complete.
			d, release, err := h.s.Checkout(context.Background(), img.ID)
			if fault.Is(err, fault.NotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			x.same(t, "just added", d)
			release()
			return nil
		})
	}
	for range 3 {
		worker(func(int) error {
			for id, x := range kept {
				dir, release, err := h.s.Checkout(context.Background(), id)
				if err != nil {
					return err
				}
				x.same(t, "kept", dir)
				release()
			}
			return nil
		})
	}
	worker(func(int) error {
		_, err := h.s.Sweep(context.Background(), func(id ID) bool { _, ok := kept[id]; return ok })
		return err
	})
	worker(func(int) error {
		for _, img := range h.s.List() {
			if err := h.s.Verify(context.Background(), img.ID); err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
		}
		return nil
	})
	wg.Wait()
	_, err := h.s.Sweep(context.Background(), func(id ID) bool { _, ok := kept[id]; return ok })
	must(t, err)
	for id, x := range kept {
		h.cold(id)
		h.check("at the end", id, x)
	}
	if left := h.ls(imagesDir); len(left) != len(kept) {
		t.Errorf("%d images, want %d", len(left), len(kept))
	}
}

// TestCheckout_ForksShareCopy checks out one image that is not cached for eight forks: it is assembled once.
func TestCheckout_ForksShareCopy(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{})
	defer h.close()
	h.add(image(seeds(1, 600)))
	x := image(reversed(seeds(1, 600)))
	id := h.add(x).ID
	h.cold(id)
	var wg sync.WaitGroup
	dirs := make([]string, 8)
	releases := make([]func(), 8)
	for i := range dirs {
		wg.Go(func() {
			var err error
			if dirs[i], releases[i], err = h.s.Checkout(context.Background(), id); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	_, err := h.s.Sweep(t.Context(), func(ID) bool { return false })
	must(t, err)
	for i := range dirs {
		x.same(t, "held", dirs[i])
		releases[i]()
	}
	_, err = h.s.Sweep(t.Context(), func(ID) bool { return false })
	must(t, err)
	nothingLeft(t, "all released", h)
}

// TestStore_WaitStopsOnCancel checks that a caller that waits for another one can stop waiting.
func TestStore_WaitStopsOnCancel(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{})
	defer h.close()
	x := image(seeds(1, 10))
	id := h.add(x).ID
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	must(t, h.s.writing.take(t.Context()))
	dir := h.put(x)
	if _, err := h.s.Add(ctx, dir, nil, Programs{}); err == nil {
		t.Error("Add did not wait for another caller")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Error(err)
	}
	if _, err := h.s.Sweep(ctx, func(ID) bool { return true }); err == nil {
		t.Error("Sweep did not wait for another caller")
	}
	h.s.writing.free()
	e, err := h.s.hold(id)
	must(t, err)
	must(t, e.busy.take(t.Context()))
	if _, _, err := h.s.Checkout(ctx, id); err == nil {
		t.Error("Checkout did not wait while the image was made")
	}
	e.busy.free()
	h.s.letGo(e)
	h.check("afterwards", id, x)
}

// TestReleaseAfterClose checks that an image that was held when the store was closed can be released without harm.
func TestReleaseAfterClose(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{CacheBytes: 1})
	x := image(reversed(seeds(1, 50)))
	id := h.add(x).ID
	dir, release, err := h.s.Checkout(t.Context(), id)
	must(t, err)
	h.close()
	release()
	x.same(t, "after the store was closed", dir)
	h.open()
	defer h.close()
	h.check("opened again", id, x)
}
