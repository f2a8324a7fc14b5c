package memory

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// benchPages returns 500 MiB of pages, of which an eighth are zeros, as in a Python process.
func benchPages() []uint32 {
	pages := seeds(1, 128000)
	for i := range pages {
		if i/64%8 == 0 {
			pages[i] = 0
		}
	}
	return pages
}

// idle returns the pages of a second checkpoint of an idle process: a few pages differ, and the others are at
// slightly different places.
func idle(pages []uint32) []uint32 {
	out := append(seeds(1<<24, 40), pages...)
	for i := 500; i < len(out); i += 1000 {
		out[i] = uint32(1<<25 + i)
	}
	return out
}

func benchHome(b *testing.B) *home {
	b.Helper()
	h := newHome(b, b.TempDir(), Options{})
	b.Cleanup(h.close)
	return h
}

func (h *home) drop(ids ...ID) {
	h.t.Helper()
	drop := map[ID]bool{}
	for _, id := range ids {
		drop[id] = true
	}
	_, err := h.s.Sweep(context.Background(), func(id ID) bool { return !drop[id] })
	must(h.t, err)
}

// settle makes the kernel write pending data.
func settle() { unix.Sync() }

func BenchmarkCp(b *testing.B) {
	dir := b.TempDir()
	src := image(benchPages()).write(b, filepath.Join(dir, "src"))
	b.SetBytes(128000 * pageSize)
	n := 0
	for b.Loop() {
		n++
		to := filepath.Join(dir, strconv.Itoa(n))
		if out, err := exec.Command("cp", "-a", src, to).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		b.StopTimer()
		must(b, os.RemoveAll(to))
		settle()
		b.StartTimer()
	}
}

func BenchmarkAdd(b *testing.B) {
	benchAdd(b, benchHome(b), image(benchPages()))
}

func BenchmarkSecondAdd(b *testing.B) {
	h := benchHome(b)
	x := image(benchPages())
	h.add(x)
	benchAdd(b, h, image(idle(x.pages)))
}

// benchAdd repeatedly adds an image to a store that does not have it.
func benchAdd(b *testing.B, h *home, x shape) {
	b.SetBytes(128000 * pageSize)
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		dir := h.put(x)
		settle()
		b.StartTimer()
		img, err := h.s.Add(context.Background(), dir, nil, Programs{})
		b.StopTimer()
		must(b, err)
		b.ReportMetric(float64(img.AddedBytes), "added-B")
		h.drop(img.ID)
		b.StartTimer()
	}
}

func BenchmarkCheckout(b *testing.B) {
	h := benchHome(b)
	x := image(benchPages())
	first, second := h.add(x), h.add(image(idle(x.pages)))
	settle()
	for _, c := range []struct {
		name         string
		id           ID
		cold, reboot bool
	}{
		{"warm", second.ID, false, false},
		{"pack", first.ID, true, false},
		{"cold", second.ID, true, false},
		{"warm after a reboot", second.ID, false, true},
		{"pack after a reboot", first.ID, true, true},
		{"cold after a reboot", second.ID, true, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(128000 * pageSize)
			for b.Loop() {
				b.StopTimer()
				if c.cold {
					h.cold(c.id)
					settle()
				}
				if c.reboot {
					h.forget()
				}
				b.StartTimer()
				_, release, err := h.s.Checkout(context.Background(), c.id)
				must(b, err)
				release()
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	h := benchHome(b)
	x := image(benchPages())
	h.add(x)
	h.add(image(idle(x.pages)))
	for b.Loop() {
		must(b, h.s.Close())
		h.open()
	}
}
