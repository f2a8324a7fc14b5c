package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// tb is what testing.T, testing.B and rapid.T have in common.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// shape describes an image in tests: a seed for each page; 0 is zeros.
type shape struct {
	pages        []uint32
	kernel, meta []byte
}

// fillPage makes the page of a seed.
func fillPage(p []byte, seed uint32) {
	if seed == 0 {
		clear(p)
		return
	}
	r := rand.NewPCG(uint64(seed), 7)
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
}

// write makes the files of an image as gVisor does.
func (x shape) write(t tb, dir string) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	f, err := os.Create(filepath.Join(dir, pagesName))
	must(t, err)
	b := make([]byte, 0, 1<<20)
	for i, seed := range x.pages {
		b = b[:len(b)+pageSize]
		fillPage(b[len(b)-pageSize:], seed)
		if len(b) == cap(b) || i == len(x.pages)-1 {
			_, err := f.Write(b)
			must(t, err)
			b = b[:0]
		}
	}
	must(t, f.Close())
	must(t, os.WriteFile(filepath.Join(dir, kernelName), x.kernel, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, metaName), x.meta, 0o600))
	return dir
}

// same fails unless a directory has exactly the image.
func (x shape) same(t tb, what, dir string) {
	t.Helper()
	for name, want := range map[string][]byte{kernelName: x.kernel, metaName: x.meta} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %s has %d bytes, want %d (%v)", what, name, len(got), len(want), err)
		}
	}
	f, err := os.Open(filepath.Join(dir, pagesName))
	must(t, err)
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != int64(len(x.pages))*pageSize {
		t.Fatalf("%s: %d bytes of pages, want %d (%v)", what, st.Size(), len(x.pages)*pageSize, err)
	}
	got, want := make([]byte, pageSize), make([]byte, pageSize)
	for i, seed := range x.pages {
		_, err := f.ReadAt(got, int64(i)*pageSize)
		must(t, err)
		if fillPage(want, seed); !bytes.Equal(got, want) {
			t.Fatalf("%s: page %d of %d differs", what, i, len(x.pages))
		}
	}
}

// seeds returns n consecutive seeds, starting at first.
func seeds(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(first + i)
	}
	return out
}

// image returns a shape with these pages, and with small files that are derived from them.
func image(pages []uint32) shape {
	return shape{pages, fmt.Appendf(nil, "kernel of %d %v", len(pages), pages[:min(3, len(pages))]),
		bytes.Repeat([]byte("meta"), len(pages)+1)}
}

// home is a directory with a store, which can be closed and opened again.
type home struct {
	t   tb
	dir string
	o   Options
	s   *Store
	n   int
	// unsynced, if set, is called with each directory that was written as by gVisor, without a sync.
	unsynced func(dir string)
}

func newHome(t tb, dir string, o Options) *home {
	t.Helper()
	h := &home{t: t, dir: dir, o: o}
	h.open()
	return h
}

func (h *home) open() {
	h.t.Helper()
	s, err := Open(context.Background(), filepath.Join(h.dir, "memory"), h.o)
	must(h.t, err)
	h.s = s
}

func (h *home) close() { must(h.t, h.s.Close()) }

// file returns the path of a file of the store.
func (h *home) file(path ...string) string {
	return filepath.Join(append([]string{h.dir, "memory"}, path...)...)
}

// put writes an image as gVisor would.
func (h *home) put(x shape) string {
	h.t.Helper()
	h.n++
	dir := x.write(h.t, filepath.Join(h.dir, fmt.Sprintf("checkpoint%d", h.n)))
	if h.unsynced != nil {
		h.unsynced(dir)
	}
	return dir
}

func (h *home) add(x shape) Image {
	h.t.Helper()
	img, err := h.s.Add(context.Background(), h.put(x), Facts{"gvisor": "release-1"}, Programs{})
	must(h.t, err)
	return img
}

// text returns the content of one of the programs that images have as init.
func (h *home) text(which int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "program %d\n", which), 3<<17)
}

// program opens one of these programs, as it is installed: the same file each time.
func (h *home) program(which int) *os.File {
	h.t.Helper()
	name := filepath.Join(h.dir, fmt.Sprintf("coppice%d", which))
	if _, err := os.Stat(name); err != nil {
		must(h.t, os.WriteFile(name, h.text(which), 0o755))
	}
	f, err := os.Open(name)
	must(h.t, err)
	return f
}

// checkInit fails unless the init of an image is the given program.
func (h *home) checkInit(what string, id ID, which int) {
	h.t.Helper()
	at, err := h.s.Program(context.Background(), id, InitFact)
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
	got, err := os.ReadFile(at)
	if err != nil || !bytes.Equal(got, h.text(which)) {
		h.t.Fatalf("%s: %s has %d bytes, and is not program %d (%v)", what, at, len(got), which, err)
	}
	if st, err := os.Stat(at); err != nil || st.Mode() != initMode {
		h.t.Fatalf("%s: %v %v", what, st.Mode(), err)
	}
}

// check checks an image out and compares it.
func (h *home) check(what string, id ID, x shape) {
	h.t.Helper()
	dir, release, err := h.s.Checkout(context.Background(), id)
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
	x.same(h.t, what, dir)
	release()
	release()
}

// cold removes the cached copy, so that the next checkout assembles the image.
func (h *home) cold(id ID) {
	h.t.Helper()
	must(h.t, h.s.uncache(id))
}

// forget makes the store hash everything again, as after a reboot.
func (h *home) forget() { h.s.boot = scratch("boot") }

// stored returns the disk space of all images, without the cache.
func (h *home) stored() (n int64) {
	h.t.Helper()
	for _, sub := range []string{packsDir, imagesDir, blobsDir, initsDir, tmpDir} {
		n += diskUse(h.t, h.file(sub))
	}
	return n
}

// diskUse returns the disk space of everything below a directory.
func diskUse(t tb, dir string) (n int64) {
	t.Helper()
	seen := map[uint64]bool{} // a file with two names counts once
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		err = unix.Lstat(path, &st)
		if !seen[st.Ino] {
			n += st.Blocks * 512
		}
		seen[st.Ino] = true
		return err
	}))
	return n
}

// ls lists a directory of the store.
func (h *home) ls(sub string) []string {
	h.t.Helper()
	d, err := os.ReadDir(h.file(sub))
	must(h.t, err)
	var out []string
	for _, e := range d {
		out = append(out, e.Name())
	}
	return out
}

func must(t tb, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// inMemory returns a directory where flushing takes no time, if there is one. Tests that inject failures do not test
// the disk.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "coppice-memory-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}
