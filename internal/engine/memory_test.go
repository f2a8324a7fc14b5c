//go:build linux

package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// inGvisor makes a sandbox whose box can keep memory, with a command that runs.
func (h *home) inGvisor(t *testing.T, name string) (exec string) {
	t.Helper()
	h.onDir(name)
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.DB.UpdateSandbox(ctx, rec.ID,
		func(r *meta.Sandbox) error { r.Tier = tierGVisor; return nil }); err != nil {
		t.Fatal(err)
	}
	exec = h.keptIn(t, name)
	b := h.live(t, name)
	b.procs = 1
	b.hanging.Add(1)
	return exec
}

// live gives the box of a sandbox.
func (h *home) live(t *testing.T, name string) *fakeBox {
	t.Helper()
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	h.boxes.mu.Lock()
	defer h.boxes.mu.Unlock()
	return h.boxes.boxes[h.runDir(rec.ID)]
}

func TestCommitMemory_StoresImage(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	res, err := h.CommitMemory(ctx, "a", "warm")
	if err != nil {
		t.Fatal(err)
	}
	if res.Memory == nil || res.Memory.Size == 0 || res.Memory.Facts["gvisor"] != "v" || res.Node != res.Head {
		t.Fatalf("%+v", res)
	}
	again, err := h.CommitMemory(ctx, "a", "still warm")
	if err != nil {
		t.Fatal(err)
	}
	if again.Node == res.Node || again.Memory.Image == res.Memory.Image {
		t.Errorf("memory that is another has no snapshot of its own: %+v", again)
	}
	show, err := h.Show(ctx, "a", again.Node)
	if err != nil || show.Memory == nil || show.Memory.Image != again.Memory.Image || len(show.Changes) != 0 {
		t.Errorf("%+v %v", show, err)
	}
	if v, err := h.Verify(ctx, "a", func(wire.Progress) {}); err != nil || v.Images != 2 || len(v.Damage) > 0 {
		t.Errorf("%+v %v", v, err)
	}
	if _, err := h.DeleteSnapshot(ctx, "a", res.Node); err != nil {
		t.Fatal(err)
	}
	gc, err := h.GC(ctx, wire.GCRequest{}, func(wire.Progress) {})
	if err != nil || gc.Images != 1 || len(h.Memory.List()) != 1 {
		t.Errorf("%+v %v", gc, err)
	}
}

func TestMemory_IsRefusedWhereUnavailable(t *testing.T) {
	h := newHome(t)
	h.onDir("plain")
	if _, err := h.CommitMemory(ctx, "plain", "m"); !fault.Is(err, fault.Unsupported) {
		t.Errorf("in another tier: %v", err)
	}
	h.inGvisor(t, "a")
	if _, err := h.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CommitMemory(ctx, "a", "m"); !fault.Is(err, fault.Conflict) {
		t.Errorf("not live: %v", err)
	}
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Memory: true, At: "HEAD"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a fork of a snapshot without memory: %v", err)
	}
}

func TestRewind_ResumesFromMemory(t *testing.T) {
	h := newHome(t)
	exec := h.inGvisor(t, "a")
	warm, err := h.CommitMemory(ctx, "a", "warm")
	if err != nil {
		t.Fatal(err)
	}
	h.run("a", "write", "damage", "done")
	m, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: warm.Node})
	if err != nil {
		t.Fatal(err)
	}
	if m.Head != warm.Node || m.Resumed == nil || h.last().Image == "" || h.live(t, "a").released.Load() != 1 {
		t.Errorf("%+v", m)
	}
	left, err := h.Show(ctx, "a", m.Kept)
	if err != nil || left.Memory == nil {
		t.Errorf("what was left has no memory: %+v %v", left, err)
	}
	h.ends("a", exec)
	if x := h.exits(t, "a")[exec]; x == nil || x.Code != 137 {
		t.Errorf("the command that was left has %+v", x)
	}
	if m, err = h.Checkout(ctx, "a", wire.CheckoutRequest{Node: warm.Node, FilesOnly: true}); err != nil ||
		m.Resumed != nil {
		t.Errorf("%+v %v", m, err)
	}
	h.kernel = "2"
	if _, err = h.Checkout(ctx, "a", wire.CheckoutRequest{Node: warm.Node}); !fault.Is(err, fault.Conflict) ||
		!strings.Contains(fault.HintOf(err), "--files-only") {
		t.Errorf("with another gVisor: %v", err)
	}
}

func TestForkMemory_IsRekeyed(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	res, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b", "c"}, Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range res.Sandboxes {
		b := h.live(t, sb.Name)
		if sb.Quarantine != nil || b == nil || !slices.Equal(b.rekeyed, []string{sb.Name}) || b.released.Load() != 1 {
			t.Errorf("%+v", sb)
		}
		if got := h.rekeyed(t, sb.Name); !slices.Equal(got, []string{"hostname", "random", "gate"}) {
			t.Errorf("the ledger of %s has %v", sb.Name, got)
		}
	}
}

// rekeyed returns the steps of re-keying in the records of a sandbox.
func (h *home) rekeyed(t *testing.T, name string) (steps []string) {
	t.Helper()
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range h.Ledger.Read(t.Context(), format.Sandbox(rec.ID),
		ledger.Filter{Kinds: []format.Kind{format.KindRekey}}) {
		if err != nil {
			t.Fatal(err)
		}
		b := r.Body.(*format.Rekey)
		if b.Error != "" {
			b.Step += " failed"
		}
		steps = append(steps, b.Step)
	}
	return steps
}

func TestForkMemory_QuarantinedWhenRekeyFails(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	h.boxes.mu.Lock()
	h.boxes.rekeyErr = errors.New("no room for another id")
	h.boxes.mu.Unlock()
	res, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}, Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	b := h.live(t, "b")
	if q := res.Sandboxes[0].Quarantine; q == nil || q.Step != "machine-id" || !strings.Contains(q.Reason, "no room") ||
		b.released.Load() != 0 {
		t.Fatalf("%+v", res.Sandboxes[0])
	}
	if got := h.rekeyed(t, "b"); !slices.Equal(got, []string{"hostname", "machine-id failed"}) {
		t.Errorf("%v", got)
	}
	if _, err := h.CommitMemory(ctx, "b", "m"); !fault.Is(err, fault.Conflict) {
		t.Errorf("its memory is kept: %v", err)
	}
	b.mu.Lock()
	b.rekeyErr = nil
	b.mu.Unlock()
	sb, err := h.Resume(ctx, "b")
	if err != nil || sb.Quarantine != nil || b.released.Load() != 1 {
		t.Errorf("%+v %v", sb, err)
	}
}

// quarantined makes a sandbox a in tier gvisor, and of it a fork b that is quarantined.
func (h *home) quarantined(t *testing.T) {
	t.Helper()
	h.inGvisor(t, "a")
	h.boxes.mu.Lock()
	h.boxes.rekeyErr = errors.New("not yet")
	h.boxes.mu.Unlock()
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}, Memory: true}); err != nil {
		t.Fatal(err)
	}
}

// TestQuarantinedFork_StartsFromMemoryOnly checks that a quarantined fork whose processes have exited does
// not start from files that are still the parent's, and that resume continues them from memory again.
func TestQuarantinedFork_StartsFromMemoryOnly(t *testing.T) {
	h := newHome(t)
	h.quarantined(t)
	if _, err := h.Stop(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.open()
	if _, err := h.Start(ctx, "b"); !fault.Is(err, fault.Conflict) {
		t.Errorf("it starts: %v", err)
	}
	h.boxes.mu.Lock()
	h.boxes.rekeyErr = nil
	h.boxes.mu.Unlock()
	if sb, err := h.Resume(ctx, "b"); err != nil || sb.Quarantine != nil || h.last().Image == "" {
		t.Errorf("%+v %v", sb, err)
	}
}

// TestNextDaemon_OpensGate kills a daemon between the start of resumed processes and the
// opening of their gate: the next daemon opens it, unless the sandbox is quarantined.
func TestNextDaemon_OpensGate(t *testing.T) {
	h := newHome(t)
	h.quarantined(t)
	a, b := h.live(t, "a"), h.live(t, "b")
	before := a.released.Load()
	h.close()
	h.open()
	for _, name := range []string{"a", "b"} {
		if _, err := h.Commit(ctx, name, "to find its box"); err != nil {
			t.Fatal(err)
		}
	}
	if a.released.Load() == before || b.released.Load() != 0 {
		t.Errorf("released %d and %d times, %d before", a.released.Load(), b.released.Load(), before)
	}
}

func TestForkMemory_RefusesOtherTier(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	if _, err := h.Fork(ctx, "a",
		wire.ForkRequest{Names: []string{"c"}, Memory: true, Tier: "process"}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a fork in tier process: %v", err)
	}
	if _, err := h.Sandbox(ctx, "c"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is there: %v", err)
	}
}

func TestPause_SurvivesDaemonRestart(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	if sb, err := h.Pause(ctx, "a"); err != nil || !sb.Paused {
		t.Fatalf("%+v %v", sb, err)
	}
	h.close()
	h.open()
	if _, err := h.Commit(ctx, "a", "while it stands still"); err != nil {
		t.Error(err)
	}
	if st, err := h.Status(ctx, "a"); err != nil || !st.Sandbox.Paused {
		t.Errorf("%+v %v", st.Sandbox, err)
	}
	if sb, err := h.Resume(ctx, "a"); err != nil || sb.Paused {
		t.Errorf("%+v %v", sb, err)
	}
	h.onDir("idle")
	if _, err := h.Pause(ctx, "idle"); !fault.Is(err, fault.Conflict) {
		t.Errorf("not live: %v", err)
	}
}

// TestRecovery_DeletesUnstoredImage checks that an image that a killed daemon had not stored
// yet is deleted by the next one.
func TestRecovery_DeletesUnstoredImage(t *testing.T) {
	h := newHome(t)
	sb := h.onDir("a")
	dir := filepath.Join(h.dir, "sandboxes", sb.ID, images.Unstored)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.open()
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

// TestMemory_ChecksInitProtocol checks that a newer build can use the init of an older one,
// and not the reverse.
func TestMemory_ChecksInitProtocol(t *testing.T) {
	for _, c := range []struct {
		then, now int
		goesOn    bool
	}{{1, 1, true}, {1, 2, true}, {2, 1, false}, {0, 2, false}} {
		h := newHome(t)
		h.speaks = c.then
		h.inGvisor(t, "a")
		warm, err := h.CommitMemory(ctx, "a", "warm")
		if err != nil {
			t.Fatal(err)
		}
		h.speaks = c.now
		_, err = h.Checkout(ctx, "a", wire.CheckoutRequest{Node: warm.Node})
		if c.goesOn != (err == nil) || err != nil &&
			(!fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "protocol")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestMemory_ResumesWithItsOwnInit checks that processes resume with the init of their image,
// under another build too. If that init is gone, nothing is changed.
func TestMemory_ResumesWithItsOwnInit(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	warm, err := h.CommitMemory(ctx, "a", "warm")
	if err != nil || len(warm.Memory.Facts) != 3 || warm.Memory.Facts["gvisor"] != "v" {
		t.Fatalf("%+v %v", warm, err)
	}
	h.build = "2"
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: warm.Node}); err != nil {
		t.Fatal(err)
	}
	at := h.last().Init
	if b, err := os.ReadFile(at); err != nil || string(b) != fakeInit ||
		filepath.Base(filepath.Dir(at)) != warm.Memory.Facts["init"] {
		t.Errorf("its init is %s, %q: %v", at, b, err)
	}
	if err := os.RemoveAll(filepath.Dir(at)); err != nil {
		t.Fatal(err)
	}
	box, head := h.live(t, "a"), h.head("a").ID
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: warm.Node}); !fault.Is(err, fault.Corrupt) ||
		!strings.Contains(err.Error(), at) || !strings.Contains(fault.HintOf(err), "--files-only") {
		t.Errorf("without its init: %v, hint %q", err, fault.HintOf(err))
	}
	if h.live(t, "a") != box || h.head("a").ID != head {
		t.Error("something was touched")
	}
	v, err := h.Verify(ctx, "a", func(wire.Progress) {})
	if err != nil || len(v.Damage) == 0 || !strings.Contains(v.Damage[0].Message, at) {
		t.Errorf("%+v %v", v, err)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: warm.Node, FilesOnly: true}); err != nil {
		t.Error(err)
	}
}

// TestMemory_WithoutInitRequiresSameBuild covers an image from before inits were stored: only
// the build that took it can resume it.
func TestMemory_WithoutInitRequiresSameBuild(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	warm, err := h.CommitMemory(ctx, "a", "warm")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	m := &timeline.Memory{Image: warm.Memory.Image, Facts: map[string]string{"gvisor": "v", "build": "b"}}
	if _, err := h.Images.Resumable(&rec, timeline.Snapshot{Memory: m}); err != nil {
		t.Errorf("under the same build: %v", err)
	}
	h.build = "2"
	if _, err := h.Images.Resumable(&rec, timeline.Snapshot{Memory: m}); !fault.Is(err, fault.Conflict) ||
		!strings.Contains(err.Error(), `init is in the image and was not stored with it, was "b" when`) {
		t.Errorf("under another: %v", err)
	}
}

// TestCommitMemory_ThawsWhileImagesAreRemoved checks that processes are not kept frozen while
// memory images are removed.
func TestCommitMemory_ThawsWhileImagesAreRemoved(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.inGvisor(t, "a")
	b := h.boxNow("a")
	release := h.Images.Hold()
	done := make(chan error, 1)
	go func() { _, err := h.CommitMemory(ctx, "a", "m"); done <- err }()
	ok := false
	for deadline := time.Now().Add(time.Minute); !ok &&
		time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		ok = b.thawed.Load() > 0
	}
	if !ok {
		t.Error("the processes stand still for as long as images are dropped")
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
