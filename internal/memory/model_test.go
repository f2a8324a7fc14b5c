package memory

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
)

// TestModel compares a store with a map: whichever images are added, share pages or are dropped, and however often
// the store is reopened, a checked out image is what was added, and the disk holds no more than Add reported.
func TestModel(t *testing.T) {
	t.Parallel()
	top := inMemory(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		if n++; looptest.Race && n%4 != 0 {
			return // with the race detector, each takes many times as long
		}
		dir := fmt.Sprintf("%s/%d", top, n)
		must(t, os.Mkdir(dir, 0o700))
		defer os.RemoveAll(dir)
		h := newHome(t, dir, Options{
			CacheBytes:  rapid.SampledFrom([]int64{1, 1 << 20, 1 << 30}).Draw(t, "cache"),
			LookupPages: rapid.SampledFrom([]int{1, 100, 1 << 20}).Draw(t, "lookup"),
		})
		defer func() { h.close() }()
		m := &model{h: h, stored: map[ID]shape{}}
		t.Repeat(map[string]func(*rapid.T){
			"add":      m.add,
			"checkout": m.checkout,
			"sweep":    m.sweep,
			"verify": func(t *rapid.T) {
				for id := range m.stored {
					must(t, h.s.Verify(context.Background(), id))
				}
			},
			"open": func(t *rapid.T) {
				m.release()
				h.close()
				h.open()
			},
			"reboot": func(*rapid.T) { h.forget() },
			"": func(t *rapid.T) {
				if got := h.s.List(); len(got) != len(m.stored) {
					t.Fatalf("%d images, want %d", len(got), len(m.stored))
				}
			},
		})
		m.release()
		for id, x := range m.stored {
			h.t = t
			h.check("at the end", id, x)
		}
		_, err := h.s.Sweep(context.Background(), func(ID) bool { return false })
		must(t, err)
		for _, sub := range []string{packsDir, imagesDir, blobsDir, cacheDir, tmpDir} {
			if left := h.ls(sub); len(left) > 0 {
				t.Fatalf("%s has %q after all images are dropped", sub, left)
			}
		}
	})
}

type model struct {
	h        *home
	stored   map[ID]shape
	held     map[ID]int
	releases []func()
}

// pick draws one of the stored images.
func (m *model) pick(t *rapid.T) (ID, bool) {
	ids := make([]ID, 0, len(m.stored))
	for id := range m.stored {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return "", false
	}
	slices.Sort(ids)
	return rapid.SampledFrom(ids).Draw(t, "id"), true
}

// pages returns the pages of an earlier image, changed, or new ones.
func (m *model) pages(t *rapid.T) []uint32 {
	var pages []uint32
	if id, ok := m.pick(t); ok && rapid.IntRange(0, 3).Draw(t, "derived") > 0 {
		pages = slices.Clone(m.stored[id].pages)
	}
	fresh := func(label string) []uint32 {
		first := rapid.IntRange(1, 1<<20).Draw(t, label)
		return seeds(first, rapid.IntRange(1, 400).Draw(t, label+" n"))
	}
	for range rapid.IntRange(0, 3).Draw(t, "changes") {
		at := rapid.IntRange(0, len(pages)).Draw(t, "at")
		end := min(len(pages), at+rapid.IntRange(1, 300).Draw(t, "for"))
		switch rapid.IntRange(0, 5).Draw(t, "change") {
		case 0:
			pages = slices.Insert(pages, at, fresh("new")...)
		case 1:
			pages = slices.Delete(pages, at, end)
		case 2:
			clear(pages[at:end])
		case 3:
			pages = append(pages, pages[at:end]...)
		case 4:
			copy(pages[at:], fresh("over"))
		case 5:
			for i := at; i < end; i += 2 {
				pages[i] = 0
			}
		}
	}
	return pages[:min(len(pages), 2000)]
}

func (m *model) add(t *rapid.T) {
	h := m.h
	h.t = t
	x := image(m.pages(t))
	x.kernel = rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "kernel")
	before := h.stored()
	img := h.add(x)
	m.stored[img.ID] = x
	added := h.stored() - before
	if diff := added - img.AddedBytes; diff < -8<<10 || diff > 8<<10 {
		t.Fatalf("Add reports %d bytes, and the disk %d", img.AddedBytes, added)
	}
	distinct := map[uint32]bool{}
	zeros := 0
	for _, seed := range x.pages {
		if distinct[seed] = true; seed == 0 {
			zeros++
		}
	}
	delete(distinct, 0)
	if img.ZeroPages != int64(zeros) || img.Pages != int64(len(x.pages)) {
		t.Fatalf("%+v: want %d pages, %d of zeros", img, len(x.pages), zeros)
	}
	// Its own pack may have a few duplicate pages. Small files and tables account for the rest.
	most := int64(len(distinct)+len(distinct)/(mostKnown-1)+1)*pageSize + int64(len(x.pages)*64) + 64<<10
	if img.AddedBytes > most {
		t.Fatalf("%d bytes were added for %d different pages of %d", img.AddedBytes, len(distinct), len(x.pages))
	}
}

func (m *model) checkout(t *rapid.T) {
	id, ok := m.pick(t)
	if !ok {
		return
	}
	dir, release, err := m.h.s.Checkout(context.Background(), id)
	must(t, err)
	m.stored[id].same(t, "checked out", dir)
	if rapid.Bool().Draw(t, "hold") {
		m.releases = append(m.releases, release)
		if m.held == nil {
			m.held = map[ID]int{}
		}
		m.held[id]++
		return
	}
	release()
}

func (m *model) release() {
	for _, r := range m.releases {
		r()
	}
	m.releases, m.held = nil, nil
}

func (m *model) sweep(t *rapid.T) {
	want := map[ID]bool{}
	for id := range m.stored {
		want[id] = true
	}
	for range rapid.IntRange(0, 3).Draw(t, "drop") {
		if id, ok := m.pick(t); ok {
			delete(want, id)
		}
	}
	before := diskUse(t, m.h.file())
	freed, err := m.h.s.Sweep(context.Background(), func(id ID) bool { return want[id] })
	must(t, err)
	if got := before - diskUse(t, m.h.file()); got-freed > 64<<10 || freed-got > 64<<10 {
		t.Fatalf("Sweep reports %d bytes, and the disk %d", freed, got)
	}
	for id := range m.stored {
		_, err := m.h.s.Stat(id)
		switch {
		case want[id] || m.held[id] > 0:
			must(t, err)
		case !fault.Is(err, fault.NotFound):
			t.Fatalf("%s was dropped: %v", id, err)
		default:
			delete(m.stored, id)
		}
	}
}
