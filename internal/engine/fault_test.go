//go:build linux

package engine

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// copyHome copies a home that no engine has open.
func copyHome(from, to string) error {
	disk := vfs.NewCrashable(from)
	return errors.Join(disk.CrashClone(to, vfs.Kill), disk.Close())
}

// failing is something that an engine does while its disk fails.
type failing struct {
	boot    string                        // what the home is opened with
	prepare func(h *home, k *acked)       // makes what it begins with; an engine is open
	step    func(h *home, k *acked) error // what is done, which notes what it acknowledges; nil: the home is opened
}

var failings = map[string]failing{
	"open": {boot: "boot-1", prepare: func(h *home, k *acked) {}},
	"commit": {boot: "boot-1", prepare: func(h *home, k *acked) {}, step: func(h *home, k *acked) error {
		k.tried["new"] = true
		x, err := h.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"write", "f", "new"}},
			stream{strings.NewReader(""), io.Discard})
		if err == nil {
			k.all[x.Head] = "new"
		}
		return err
	}},
	"gc": {boot: "boot-1", prepare: func(h *home, k *acked) {
		if _, err := h.Remove(ctx, []string{"b"}, false); err != nil {
			h.t.Fatal(err)
		}
		delete(k.boxes, "b")
		head := h.head("a").ID
		maps.DeleteFunc(k.all, func(id, _ string) bool { return id != head })
		left := filepath.Join(h.dir, "sandboxes", "0123456789ab.removed", liveDir, "1")
		if err := errors.Join(os.MkdirAll(left, 0o700),
			os.Mkdir(filepath.Join(h.dir, "layers", "0123456789abcdef"), 0o700)); err != nil {
			h.t.Fatal(err)
		}
	}, step: func(h *home, k *acked) error {
		_, err := h.GC(ctx, wire.GCRequest{Keep: wire.Keep{Last: 1}}, ignore)
		return err
	}},
	// A daemon was killed while a live root became a layer, and before a snapshot was finalized.
	"recovery": {boot: "boot-1", prepare: func(h *home, k *acked) {
		h.run("b", "write", "f", "of b")
		k.live["b"] = "of b"
		k.tried["unfinalized"] = true
		k.all[h.run("a", "write", "f", "unfinalized").Head] = "unfinalized"
		h.halfAdopted("b")
	}},
	// So was the power; with it goes the snapshot.
	"recovery from a power loss": {boot: "boot-2", prepare: func(h *home, k *acked) {
		h.run("b", "write", "f", "of b")
		k.live["b"] = "of b"
		if err := h.Finalize(ctx); err != nil {
			h.t.Fatal(err)
		}
		k.tried["unfinalized"] = true
		h.release = h.Hold() // until the home was cloned
		h.run("a", "write", "f", "unfinalized")
		h.halfAdopted("b")
	}},
}

// Whichever write, flush or rename fails, once or from then on as on a full disk, what was
// acknowledged is there when the home is opened again: after the daemon was ended, or killed.
func TestFaults_NothingAcknowledgedIsLost(t *testing.T) {
	for name, s := range failings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.eachFault(t)
		})
	}
}

func (s failing) eachFault(t *testing.T) {
	every := 10
	if os.Getenv("COPPICE_TEST_FULL") != "" {
		every = 1
	}
	first, step := looptest.Sample(t, 7)
	h := emptyHome(t)
	copies := t.TempDir()
	begin := filepath.Join(copies, "begin")
	before := newAcked()
	disk := vfs.NewCrashable(h.dir)
	h.fs, h.book, h.disk = disk, disk, disk
	h.open()
	h.lives(func(fn func(k *acked)) { fn(&before) })
	clear(before.live)
	s.prepare(h, &before)
	before.told = h.log()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(disk.CrashClone(begin, vfs.Kill))
	if h.release != nil {
		h.release()
	}
	h.close()
	must(disk.Close())
	for i, kind := range []struct {
		errno  syscall.Errno
		stay   bool
		killed bool
	}{{syscall.EIO, false, false}, {syscall.ENOSPC, true, true}} {
		tried := 0
		for at := 1 + every*first + every/2*i; ; at += every * step {
			what := fmt.Sprintf("call %d fails with %v, stay %v", at, kind.errno, kind.stay)
			k := before.clone()
			here := filepath.Join(copies, "here")
			must(copyHome(begin, here))
			h.become(here)
			h.boot = s.boot
			disk := vfs.NewCrashable(h.dir)
			faulty := &vfs.Faulty{FS: disk}
			h.fs, h.book, h.disk = faulty, faulty, faulty
			var err error
			if s.step == nil {
				faulty.FailAt(at, kind.errno, kind.stay)
				err = h.tryOpen()
			} else {
				h.open()
				faulty.FailAt(at, kind.errno, kind.stay)
				err = s.step(h, &k)
			}
			if kind.killed {
				must(disk.CrashClone(here, vfs.Kill))
			}
			reached := faulty.Failed()
			faulty.FailAt(0, 0, false)
			if h.Engine != nil && !kind.killed {
				k.told = h.log()
			}
			h.close()
			must(disk.Close())
			if kind.killed {
				h.become(here)
			} else {
				h.fs, h.book, h.disk = unflushed{vfs.OS()}, unflushed{vfs.OS()}, unflushed{vfs.OS()}
			}
			h.open()
			h.holds(what, k, s.boot != "boot-1")
			h.close()
			if t.Failed() {
				t.Logf("%s: the step ended with: %v", what, err)
				return
			}
			if !reached {
				if err != nil {
					t.Errorf("nothing failed, but: %v", err)
				}
				break
			}
			tried++
		}
		t.Logf("%v: %d calls failed, one at a time", kind.errno, tried)
	}
}
