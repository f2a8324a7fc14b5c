package memory

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// story is a sequence of operations for the tests of failures. The first image shares no pages, the second shares
// pages with it, and the third has duplicate pages. The second and the third have the same init, and the first
// another. Images are checked out with and without a cached copy, and the first is dropped.
type story struct {
	first, second, third shape
}

func newStory() story {
	first := append(seeds(1, 40), make([]uint32, 20)...)
	return story{
		first:  image(first),
		second: image(append(seeds(500, 5), first[3:]...)),
		third:  image(append(seeds(900, 9), seeds(900, 9)...)),
	}
}

// tell performs the story and returns the acknowledged images. Errors do not end it. dropped is the first image, if a
// Sweep was to drop it.
func (st story) tell(t *testing.T, h *home) (acked map[ID]shape, dropped ID) {
	t.Helper()
	ctx := t.Context()
	acked = map[ID]shape{}
	var ids []ID
	for i, x := range []shape{st.first, st.second, st.third} {
		dir := h.put(x)
		init := h.program(min(i, 1))
		img, err := h.s.Add(ctx, dir, nil, Programs{Init: init})
		must(t, init.Close())
		if err != nil {
			continue
		}
		acked[img.ID] = x
		ids = append(ids, img.ID)
	}
	for _, id := range ids {
		dir, release, err := h.s.Checkout(ctx, id)
		if err != nil {
			continue
		}
		acked[id].same(t, "checked out", dir)
		release()
		_ = h.s.uncache(id)
		if dir, release, err = h.s.Checkout(ctx, id); err == nil {
			acked[id].same(t, "assembled", dir)
			release()
		}
	}
	if len(ids) > 0 && len(acked[ids[0]].pages) == len(st.first.pages) {
		dropped = ids[0]
		_, _ = h.s.Sweep(ctx, func(id ID) bool { return id != dropped })
	}
	return acked, dropped
}

// holds fails unless all acknowledged images are complete, and the store continues to work.
func holds(t *testing.T, what string, h *home, acked map[ID]shape, dropped ID) {
	t.Helper()
	ctx := t.Context()
	for id, x := range acked {
		if id == dropped {
			if _, err := h.s.Stat(id); fault.Is(err, fault.NotFound) {
				continue
			}
		}
		h.check(what, id, x)
		h.checkInit(what, id, min(int(x.pages[0]/500), 1))
		if err := h.s.Verify(ctx, id); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := h.s.Sweep(ctx, func(other ID) bool { return other != dropped }); err != nil {
			t.Fatalf("%s: sweep: %v", what, err)
		}
	}
	for _, img := range h.s.List() {
		if err := h.s.Verify(ctx, img.ID); err != nil {
			t.Fatalf("%s: an image that was not acknowledged: %v", what, err)
		}
	}
	x := image(append(seeds(2000, 9), seeds(500, 5)...))
	img, err := h.s.Add(ctx, h.put(x), Facts{"what": what}, Programs{})
	if err != nil {
		t.Fatalf("%s: afterwards: %v", what, err)
	}
	h.cold(img.ID)
	h.check(what+": added afterwards", img.ID, x)
	if _, err := h.s.Sweep(ctx, func(ID) bool { return false }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// nothingLeft fails unless the store is empty.
func nothingLeft(t *testing.T, what string, h *home) {
	t.Helper()
	for _, sub := range []string{packsDir, imagesDir, blobsDir, initsDir, cacheDir, tmpDir} {
		if left := h.ls(sub); len(left) > 0 {
			t.Fatalf("%s: %s has %q", what, sub, left)
		}
	}
}

// TestWriteFailure_LosesNothing fails each write, once or permanently as on a full disk: nothing acknowledged is
// lost, nothing incomplete is visible, and the store continues when the disk works again, both without and after
// reopening it.
func TestWriteFailure_LosesNothing(t *testing.T) {
	t.Parallel()
	first, step := looptest.Sample(t, 31)
	for _, c := range []struct {
		errno syscall.Errno
		stay  bool
	}{{syscall.EIO, false}, {syscall.ENOSPC, true}} {
		for k := 1 + first; ; k += step {
			what := fmt.Sprintf("call %d fails with %v, stay %v", k, c.errno, c.stay)
			f := &vfs.Faulty{FS: vfs.OS()}
			h := newHome(t, inMemory(t), Options{FS: f})
			fds := openFiles(t, h.dir)
			f.FailAt(k, c.errno, c.stay)
			acked, dropped := newStory().tell(t, h)
			reached := f.Failed()
			f.FailAt(0, 0, false)
			if now := openFiles(t, h.dir); now != fds {
				t.Fatalf("%s: %d descriptors were not closed", what, now-fds)
			}
			if left := h.ls(tmpDir); c.stay && len(left) > 0 {
				t.Fatalf("%s: left behind: %q", what, left)
			}
			h.close()
			h.open()
			holds(t, what, h, acked, dropped)
			h.close()
			h.open()
			nothingLeft(t, what, h)
			h.close()
			must(t, os.RemoveAll(h.dir))
			if !reached {
				t.Logf("%d calls", k)
				break
			}
		}
	}
}

// TestStore_ContinuesAfterFailure is TestWriteFailure_LosesNothing without reopening the store.
func TestStore_ContinuesAfterFailure(t *testing.T) {
	t.Parallel()
	first, step := looptest.Sample(t, 31)
	for k := 1 + first; ; k += step {
		what := fmt.Sprintf("call %d fails", k)
		f := &vfs.Faulty{FS: vfs.OS()}
		h := newHome(t, inMemory(t), Options{FS: f})
		f.FailAt(k, syscall.EIO, false)
		acked, dropped := newStory().tell(t, h)
		reached := f.Failed()
		f.FailAt(0, 0, false)
		holds(t, what, h, acked, dropped)
		h.close()
		must(t, os.RemoveAll(h.dir))
		if !reached {
			break
		}
	}
}

// TestStore_SurvivesCrash stops at any call, with or without a power loss: what was acknowledged is complete, and the
// rest is complete or missing.
func TestStore_SurvivesCrash(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(k int) vfs.Crash{
		"the process":        func(int) vfs.Crash { return vfs.Kill },
		"contents":           func(int) vfs.Crash { return vfs.Crash{Names: 100} },
		"contents and names": func(int) vfs.Crash { return vfs.Crash{} },
		"some of both":       func(k int) vfs.Crash { return vfs.PowerLoss(uint64(k)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, step := looptest.Sample(t, 31)
			for k := 1 + first; crashAt(t, k, crash(k)); k += step {
			}
		})
	}
}

// crashAt simulates a crash at call k of the story, and reports whether the story has that many calls.
func crashAt(t *testing.T, k int, crash vfs.Crash) bool {
	t.Helper()
	what := fmt.Sprintf("dead at call %d, %+v", k, crash)
	h := &home{t: t, dir: inMemory(t)}
	disk := vfs.NewCrashable(h.file())
	f := &vfs.Faulty{FS: disk}
	f.CrashAt(k)
	h.o, h.unsynced = Options{FS: f, boot: "one"}, func(dir string) { must(t, disk.Unsync(dir)) }
	var acked map[ID]shape
	var dropped ID
	var err error
	if h.s, err = Open(t.Context(), h.file(), h.o); err == nil {
		acked, dropped = newStory().tell(t, h)
		h.close()
	}
	left := &home{t: t, dir: inMemory(t), o: Options{boot: "one"}}
	must(t, disk.CrashClone(left.file(), crash))
	must(t, errors.Join(disk.Close(), os.RemoveAll(h.dir)))
	h = left
	if crash != vfs.Kill {
		h.o.boot = "two"
	}
	h.open()
	holds(t, what, h, acked, dropped)
	h.close()
	h.open()
	nothingLeft(t, what, h)
	h.close()
	must(t, os.RemoveAll(h.dir))
	if !f.Failed() {
		t.Logf("%d calls", k)
	}
	return f.Failed()
}

// TestStore_ReportsFullDisk checks that the error says how much space is needed, and where.
func TestStore_ReportsFullDisk(t *testing.T) {
	t.Parallel()
	f := &vfs.Faulty{FS: vfs.OS()}
	h := newHome(t, inMemory(t), Options{FS: f})
	defer h.close()
	one := h.add(image(seeds(1, 700)))
	f.FailAt(2, syscall.ENOSPC, true)
	_, err := h.s.Add(t.Context(), h.put(image(append(seeds(1, 512), seeds(9000, 512)...))), nil, Programs{})
	if !fault.Is(err, fault.NoSpace) || !strings.Contains(err.Error(), "MiB") ||
		!strings.Contains(err.Error(), h.file()) || fault.HintOf(err) == "" {
		t.Errorf("add: %v", err)
	}
	t.Log(err)
	f.FailAt(0, 0, false)
	x := image(reversed(seeds(1, 700)))
	two := h.add(x)
	h.cold(two.ID)
	f.FailAt(2, syscall.ENOSPC, true)
	_, _, err = h.s.Checkout(t.Context(), two.ID)
	if !fault.Is(err, fault.NoSpace) || !strings.Contains(err.Error(), "2.7 MiB") {
		t.Errorf("check out: %v", err)
	}
	f.FailAt(0, 0, false)
	h.check("with room again", two.ID, x)
	must(t, h.s.Verify(t.Context(), one.ID))
}

// openFiles counts the descriptors of this process for files below a directory.
func openFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, f := range all {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, dir) {
			n++
		}
	}
	return n
}
