package memory

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

const mib = 1 << 20

// TestAdd_FirstImageIsItsPack checks that the first image is stored as its own pack, and is never copied.
func TestAdd_FirstImageIsItsPack(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	defer h.close()
	x := image(append(seeds(1, 2000), make([]uint32, 2000)...))
	src := h.put(x)
	var before unix.Stat_t
	must(t, unix.Stat(filepath.Join(src, pagesName), &before))
	img, err := h.s.Add(t.Context(), src, Facts{"gvisor": "a", "cpu": "b"}, Programs{})
	must(t, err)
	if img.Pages != 4000 || img.ZeroPages != 2000 || img.Facts["cpu"] != "b" ||
		img.Size != 4000*pageSize+int64(len(x.kernel)+len(x.meta)) {
		t.Errorf("%+v", img)
	}
	if img.AddedBytes < 2000*pageSize || img.AddedBytes > 2000*pageSize+mib/2 {
		t.Errorf("%d bytes were added for 2000 pages", img.AddedBytes)
	}
	if _, err := os.Stat(src); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", src, err)
	}
	for range 2 {
		dir, release, err := h.s.Checkout(t.Context(), img.ID)
		must(t, err)
		x.same(t, "checked out", dir)
		var after unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, pagesName), &after))
		if after.Ino != before.Ino {
			t.Error("the pages were copied")
		}
		release()
		h.cold(img.ID)
	}
	must(t, h.s.Verify(t.Context(), img.ID))
	if got, err := h.s.Stat(img.ID); err != nil || got.Pages != 4000 ||
		!slices.EqualFunc(h.s.List(), []Image{img}, func(a, b Image) bool { return a.ID == b.ID }) {
		t.Errorf("%+v, %v, %+v", got, err, h.s.List())
	}
}

// TestPages_OfRemovedImageStayReadable checks that pages that a reader has open do not change when their image is
// removed and nothing else holds it.
func TestPages_OfRemovedImageStayReadable(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	defer h.close()
	x := image(seeds(1, 2000))
	gone := h.add(x)
	h.add(image(append(seeds(1, 100), seeds(5000, 50)...)))
	dir, release, err := h.s.Checkout(t.Context(), gone.ID)
	must(t, err)
	f, err := os.Open(filepath.Join(dir, pagesName))
	must(t, err)
	defer f.Close()
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_SH))
	before, err := io.ReadAll(f)
	must(t, err)
	release()
	sweep := func() int64 {
		_, err := h.s.Sweep(t.Context(), func(id ID) bool { return id != gone.ID })
		must(t, err)
		return h.stored()
	}
	held := sweep()
	after := make([]byte, len(before))
	_, err = f.ReadAt(after, 0)
	must(t, err)
	if !bytes.Equal(before, after) {
		t.Error("pages that are being read were freed")
	}
	f.Close()
	if now := sweep(); now > held-1500*pageSize {
		t.Errorf("%d bytes are stored without a reader, %d before", now, held)
	}
}

// TestAdd_DeduplicatesPages checks that a second image with few differences adds little, wherever its pages are.
func TestAdd_DeduplicatesPages(t *testing.T) {
	t.Parallel()
	const n = 25600 // 100 MiB
	first := seeds(1, n)
	for name, second := range map[string][]uint32{
		"the same":            first,
		"a page at the front": append([]uint32{n + 9}, first...),
		"some changed":        append(seeds(n+100, 50), first[50:]...),
		"the other way round": reversed(first),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t, t.TempDir(), Options{})
			defer h.close()
			a, b := image(first), image(second)
			b.kernel = []byte("another")
			one := h.add(a)
			if one.AddedBytes > n*pageSize+2*mib {
				t.Errorf("the first added %d bytes for %d", one.AddedBytes, n*pageSize)
			}
			two := h.add(b)
			most := int64(mib / 2)
			if two.AddedBytes > most {
				t.Errorf("the second added %d bytes", two.AddedBytes)
			}
			h.check("just added", two.ID, b)
			h.cold(two.ID)
			h.check("assembled", two.ID, b)
			h.cold(one.ID)
			h.check("the first", one.ID, a)
		})
	}
}

func reversed(s []uint32) []uint32 {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

// TestAdd_SameImageHasSameID checks that adding the same pages with the same facts again returns the same ID.
func TestAdd_SameImageHasSameID(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{})
	defer h.close()
	x := image(seeds(1, 300))
	a, b := h.add(x), h.add(x)
	if a.ID != b.ID || b.AddedBytes != 0 || len(h.ls(packsDir)) != 1 {
		t.Errorf("%+v\n%+v\n%q", a, b, h.ls(packsDir))
	}
	c, err := h.s.Add(t.Context(), h.put(x), Facts{"other": "facts"}, Programs{})
	must(t, err)
	if c.ID == a.ID || len(h.ls(packsDir)) != 1 {
		t.Errorf("%+v", c)
	}
	h.check("once more", a.ID, x)
	h.check("with other facts", c.ID, x)
}

// TestAdd_DeduplicatesPagesWithinImage checks that an image of many equal pages is stored without the duplicates, and
// not as its own pack.
func TestAdd_DeduplicatesPagesWithinImage(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{})
	defer h.close()
	var pages []uint32
	for i := range 1000 {
		pages = append(pages, uint32(i%10+1))
	}
	x := image(pages)
	img := h.add(x)
	if img.AddedBytes > 10*pageSize+40<<10 {
		t.Errorf("%d bytes were added for 10 pages", img.AddedBytes)
	}
	h.check("cached", img.ID, x)
	h.cold(img.ID)
	h.check("assembled", img.ID, x)
}

func TestEmptyAndZeroImages(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{})
	defer h.close()
	for _, n := range []int{0, 1, 5000} {
		x := image(make([]uint32, n))
		img := h.add(x)
		if img.AddedBytes > 32<<10 || img.ZeroPages != int64(n) {
			t.Errorf("%+v", img)
		}
		h.cold(img.ID)
		h.check("zeros", img.ID, x)
		must(t, h.s.Verify(t.Context(), img.ID))
	}
}

// TestAdd_RefusesInvalidImages checks that Add does not keep an image that it refuses, and does not remove one that
// it cannot move.
func TestAdd_RefusesInvalidImages(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{})
	defer h.close()
	x := image(seeds(1, 3))
	for name, damage := range map[string]func(dir string) error{
		"a missing file":   func(d string) error { return os.Remove(filepath.Join(d, metaName)) },
		"a further file":   func(d string) error { return os.WriteFile(filepath.Join(d, "x"), nil, 0o600) },
		"a further tree":   func(d string) error { return os.MkdirAll(filepath.Join(d, "a/b/c"), 0o700) },
		"half a page":      func(d string) error { return os.Truncate(filepath.Join(d, pagesName), 100) },
		"a link to a file": func(d string) error { return relink(d, pagesName, "/etc/passwd") },
		"a link to zeros":  func(d string) error { return relink(d, kernelName, "/dev/zero") },
		"a FIFO": func(d string) error {
			return unix.Mknod(filepath.Join(d, "x"), unix.S_IFIFO|0o600, 0)
		},
	} {
		dir := h.put(x)
		must(t, damage(dir))
		if _, err := h.s.Add(t.Context(), dir, nil, Programs{}); err == nil {
			t.Errorf("%s was stored", name)
		}
		if _, err := os.Stat(dir); err == nil || len(h.ls(tmpDir)) > 0 {
			t.Errorf("%s: left behind: %v, %q", name, err, h.ls(tmpDir))
		}
	}
	if _, err := h.s.Add(t.Context(), filepath.Join(h.dir, "none"), nil, Programs{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a missing directory: %v", err)
	}
	if _, err := h.s.Add(t.Context(), h.put(x), Facts{"a": "\xff"}, Programs{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("facts that are not text: %v", err)
	}
	if _, err := h.s.Add(t.Context(), h.put(x), Facts{"a": strings.Repeat("x", maxFacts)},
		Programs{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("facts that are too long: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.s.Add(ctx, h.put(x), nil, Programs{}); !fault.Is(err, fault.Cancelled) {
		t.Errorf("cancelled: %v", err)
	}
	for _, sub := range []string{packsDir, imagesDir, blobsDir, cacheDir, tmpDir} {
		if left := h.ls(sub); len(left) > 0 {
			t.Errorf("%s has %q", sub, left)
		}
	}
}

func relink(dir, name, to string) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		return err
	}
	return os.Symlink(to, filepath.Join(dir, name))
}

// TestAdd_RefusesOtherFileSystem also checks that the refused directory is not removed.
func TestAdd_RefusesOtherFileSystem(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	defer h.close()
	other := inMemory(t)
	var a, b unix.Stat_t
	must(t, unix.Stat(h.dir, &a))
	must(t, unix.Stat(other, &b))
	if a.Dev == b.Dev {
		t.Skip("needs a second file system: /dev/shm is not one")
	}
	dir := image(seeds(1, 3)).write(t, filepath.Join(other, "image"))
	if _, err := h.s.Add(t.Context(), dir, nil, Programs{}); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, pagesName)); err != nil {
		t.Error(err)
	}
}

// TestAdd_CopiesWritableFiles covers a process that wrote an image and can still write to its files: it cannot change
// what is stored.
func TestAdd_CopiesWritableFiles(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	defer h.close()
	x := image(seeds(1, 500))
	for what, hold := range map[string]func(path string) func(){
		"open": func(path string) func() {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			return func() {
				_, err := f.WriteAt(make([]byte, 3*pageSize), 5*pageSize)
				must(t, err)
				must(t, f.Close())
			}
		},
		"mapped": func(path string) func() {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			b, err := unix.Mmap(int(f.Fd()), 0, pageSize, unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			must(t, f.Close())
			return func() { b[7]++; must(t, unix.Munmap(b)) }
		},
		"another name": func(path string) func() {
			must(t, os.Link(path, path+".too"))
			must(t, os.Rename(path+".too", filepath.Join(h.dir, "too")))
			return func() { must(t, os.WriteFile(filepath.Join(h.dir, "too"), []byte("x"), 0o600)) }
		},
	} {
		dir := h.put(x)
		write := hold(filepath.Join(dir, pagesName))
		img, err := h.s.Add(t.Context(), dir, Facts{"how": what}, Programs{})
		must(t, err)
		write()
		h.check(what, img.ID, x)
		must(t, h.s.Verify(t.Context(), img.ID))
		_, err = h.s.Sweep(t.Context(), func(ID) bool { return false })
		must(t, err)
	}
}

// TestCache_IsBounded checks that the cache stays within its limit, and keeps the images that were used last and all
// that are held.
func TestCache_IsBounded(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{CacheBytes: 6 * mib})
	defer h.close()
	base := seeds(1, 512) // 2 MiB
	var ids []ID
	var shapes []shape
	for i := range 6 {
		x := image(append([]uint32{uint32(90000 + i)}, base...))
		shapes, ids = append(shapes, x), append(ids, h.add(x).ID)
	}
	if n := diskUse(t, h.file(cacheDir)); n > 7*mib+2*mib { // the first image is also a pack
		t.Errorf("%d bytes are cached", n)
	}
	var dirs []string
	var releases []func()
	for _, id := range ids {
		dir, release, err := h.s.Checkout(t.Context(), id)
		must(t, err)
		dirs, releases = append(dirs, dir), append(releases, release)
	}
	for i := range ids {
		shapes[i].same(t, "held", dirs[i])
	}
	for _, r := range releases {
		r()
	}
	if n := diskUse(t, h.file(cacheDir)); n > 9*mib {
		t.Errorf("%d bytes are cached", n)
	}
	if _, err := os.Stat(dirs[5]); err != nil {
		t.Error("the image used last was dropped first")
	}
	if _, err := os.Stat(dirs[1]); err == nil {
		t.Error("the image used first was not dropped")
	}
	for i := range ids {
		h.check("assembled again", ids[i], shapes[i])
	}
}

func TestUnknownImages(t *testing.T) {
	t.Parallel()
	h := newHome(t, inMemory(t), Options{})
	defer h.close()
	for _, id := range []ID{"", "..", "../../etc", ID(strings.Repeat("0", 64)), ID(strings.Repeat("A", 64))} {
		_, _, err := h.s.Checkout(t.Context(), id)
		_, stat := h.s.Stat(id)
		for _, err := range []error{err, stat, h.s.Verify(t.Context(), id)} {
			if !fault.Is(err, fault.NotFound) {
				t.Errorf("%q: %v", id, err)
			}
		}
	}
}

func TestBootID(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Skip("needs /proc/sys/kernel/random/boot_id:", err)
	}
	if bootID() != strings.TrimSpace(string(b)) {
		t.Errorf("%q, the kernel says %q", bootID(), b)
	}
}
