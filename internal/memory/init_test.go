package memory

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// addWith adds an image that has one of the programs as its init.
func (h *home) addWith(x shape, which int) Image {
	h.t.Helper()
	init := h.program(which)
	defer init.Close()
	img, err := h.s.Add(h.t.(*testing.T).Context(), h.put(x), Facts{"gvisor": "release-1"}, Programs{Init: init})
	must(h.t, err)
	return img
}

func TestInit_IsStoredOnce(t *testing.T) {
	t.Parallel()
	f := &vfs.Faulty{FS: vfs.OS()}
	h := newHome(t, t.TempDir(), Options{FS: f})
	one := h.addWith(image(seeds(1, 3)), 0)
	f.FailAt(0, 0, false)
	two := h.addWith(image(seeds(10, 3)), 0)
	with := f.Calls()
	f.FailAt(0, 0, false)
	h.add(image(seeds(20, 3)))
	if without := f.Calls(); with > without+2 { // two calls for the record of its source
		t.Errorf("another image with the same init takes %d calls, and one without an init %d", with, without)
	}
	if got := h.ls(initsDir); len(got) != 1 || got[0] != one.Facts[InitFact] || two.Facts[InitFact] != got[0] ||
		one.Facts["gvisor"] != "release-1" {
		t.Fatalf("inits %q; %+v; %+v", got, one, two)
	}
	h.checkInit("one", one.ID, 0)
	// The installed file is overwritten in place; the stored init is not affected.
	must(t, os.WriteFile(filepath.Join(h.dir, "coppice0"), []byte("another version"), 0o755))
	h.checkInit("afterwards", two.ID, 0)
	// The same program under another name, and after a reboot, is the same init.
	must(t, os.WriteFile(filepath.Join(h.dir, "coppice1"), h.text(0), 0o755))
	h.forget()
	if three := h.addWith(image(seeds(30, 3)), 1); three.Facts[InitFact] != one.Facts[InitFact] ||
		len(h.ls(initsDir)) != 1 {
		t.Errorf("%+v", three)
	}
	h.close()
	h.open()
	h.checkInit("opened anew", one.ID, 0)
	h.close()
}

// TestClient_IsKeptLikeInit checks that an image's second program is stored beside its init, verified with the image,
// and removed with the last image that has it.
func TestClient_IsKeptLikeInit(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	defer h.close()
	init, client := h.program(0), h.program(1)
	img, err := h.s.Add(t.Context(), h.put(image(seeds(1, 3))), nil, Programs{Init: init, Client: client})
	must(t, err)
	must(t, Programs{Init: init, Client: client}.Close())
	at, err := h.s.Program(t.Context(), img.ID, ClientFact)
	must(t, err)
	got, err := os.ReadFile(at)
	must(t, err)
	if !bytes.Equal(got, h.text(1)) || len(h.ls(initsDir)) != 2 {
		t.Errorf("the client is %d bytes; %q", len(got), h.ls(initsDir))
	}
	_, err = h.s.Sweep(t.Context(), func(ID) bool { return true })
	must(t, err)
	if len(h.ls(initsDir)) != 2 {
		t.Errorf("after a sweep that keeps the image: %q", h.ls(initsDir))
	}
	must(t, os.Truncate(at, 7))
	if err := h.s.Verify(t.Context(), img.ID); !fault.Is(err, fault.Corrupt) {
		t.Errorf("verify of an image with a damaged client: %v", err)
	}
	_, err = h.s.Sweep(t.Context(), func(ID) bool { return false })
	must(t, err)
	if left := h.ls(initsDir); len(left) != 0 {
		t.Errorf("after the image was removed: %q", left)
	}
}

func TestInit_OfImageWithoutOne(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	defer h.close()
	img := h.add(image(seeds(1, 3)))
	if at, err := h.s.Program(t.Context(), img.ID, InitFact); at != "" || err != nil {
		t.Errorf("%q %v", at, err)
	}
	if _, err := h.s.Program(t.Context(), ID(strings.Repeat("0", 64)), InitFact); !fault.Is(err, fault.NotFound) {
		t.Errorf("init of an unknown image: %v", err)
	}
	if _, err := h.s.Add(t.Context(), h.put(image(seeds(5, 2))), Facts{InitFact: "x"},
		Programs{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("an init that is only named in the facts: %v", err)
	}
	none, err := os.Open("/dev/null")
	must(t, err)
	defer none.Close()
	if _, err := h.s.Add(t.Context(), h.put(image(seeds(5, 2))), nil,
		Programs{Init: none}); !fault.Is(err, fault.Invalid) {
		t.Errorf("an init that is not a file: %v", err)
	}
}

// TestInit_RefusesDamage checks that a damaged init is not returned, also if the file has its old times and
// everything is hashed again. Adding an image with the same init repairs it.
func TestInit_RefusesDamage(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	defer h.close()
	img := h.addWith(image(seeds(1, 3)), 0)
	at, err := h.s.Program(t.Context(), img.ID, InitFact)
	must(t, err)
	for what, damage := range map[string]func(){
		"a bit": func() {
			b := h.text(0)
			b[len(b)/2] ^= 4
			must(t, os.Chmod(at, 0o700))
			must(t, os.WriteFile(at, b, 0o700))
		},
		"its end": func() { must(t, os.Truncate(at, 7)) },
		"all":     func() { must(t, os.Remove(at)) },
		"the directory": func() {
			must(t, os.RemoveAll(filepath.Dir(at)))
		},
	} {
		damage()
		_, err := h.s.Program(t.Context(), img.ID, InitFact)
		if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "inits/"+img.Facts[InitFact]+"/init") ||
			!strings.Contains(fault.HintOf(err), "--files-only") {
			t.Errorf("%s: %v, hint %q", what, err, fault.HintOf(err))
		}
		if err := h.s.Verify(t.Context(), img.ID); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: verify: %v", what, err)
		}
		h.addWith(image(seeds(40, 3)), 0)
		h.checkInit("mended: "+what, img.ID, 0)
		must(t, h.s.Verify(t.Context(), img.ID))
	}
	// Damage that the record of hashes does not show is found by Verify, and refused from then on.
	b := h.text(0)
	b[0] ^= 1
	must(t, os.Chmod(at, 0o700))
	must(t, os.WriteFile(at, b, 0o700))
	must(t, os.Chmod(at, initMode))
	dir, err := dirfd.OpenDir(h.s.inits, img.Facts[InitFact])
	must(t, err)
	defer unix.Close(dir)
	must(t, h.s.setChecked(dir, initName))
	if err := h.s.Verify(t.Context(), img.ID); !fault.Is(err, fault.Corrupt) {
		t.Errorf("verify: %v", err)
	}
	if _, err := h.s.Program(t.Context(), img.ID, InitFact); !fault.Is(err, fault.Corrupt) {
		t.Errorf("after verify: %v", err)
	}
}

// TestSweep_RemovesUnusedInit checks that an init is removed with the last image that names it, unless a sandbox that
// outlived a daemon still has it open.
func TestSweep_RemovesUnusedInit(t *testing.T) {
	t.Parallel()
	h := newHome(t, t.TempDir(), Options{})
	one, two := h.addWith(image(seeds(1, 3)), 0), h.addWith(image(seeds(10, 3)), 0)
	other := h.addWith(image(seeds(20, 3)), 1)
	sweep := func(want int, keep ...ID) {
		t.Helper()
		freed, err := h.s.Sweep(t.Context(), func(id ID) bool {
			for _, k := range keep {
				if k == id {
					return true
				}
			}
			return false
		})
		must(t, err)
		if got := h.ls(initsDir); len(got) != want {
			t.Errorf("%d inits, want %d; %d bytes were freed", len(got), want, freed)
		}
	}
	sweep(2, two.ID, other.ID)
	h.checkInit("two", two.ID, 0)
	used, err := h.s.Program(t.Context(), two.ID, InitFact)
	must(t, err)
	f, err := os.Open(used)
	must(t, err)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_SH))
	sweep(2, other.ID)
	if b, err := os.ReadFile(used); err != nil || !bytes.Equal(b, h.text(0)) {
		t.Errorf("an init in use was removed: %v", err)
	}
	h.close()
	h.open()
	sweep(2, other.ID)
	must(t, f.Close())
	sweep(1, other.ID)
	sweep(0)
	if _, err := h.s.Program(t.Context(), one.ID, InitFact); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	h.close()
	h.open()
	nothingLeft(t, "at the end", h)
	h.close()
}
