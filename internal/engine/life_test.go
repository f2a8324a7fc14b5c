//go:build linux

package engine

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/lifetime"
	"github.com/coppice-dev/coppice/internal/meta"
)

func TestTTL_RemovesExpiredSandbox(t *testing.T) {
	ctx := context.Background()
	h := newHome(t)
	dir := wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}
	create := func(name string, ttl int64) {
		t.Helper()
		if _, err := h.Create(ctx, wire.CreateRequest{Name: name, From: dir, TTLMS: ttl}, ignore); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) func() bool {
		return func() bool { _, err := h.DB.Sandbox(ctx, name); return fault.Is(err, fault.NotFound) }
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}

	create("lasting", 0)
	create("short", 100)
	eventually("it lives on", gone("short"))

	create("spared", time.Hour.Milliseconds())
	never := int64(0)
	if sb, err := h.SetLife(ctx, "spared", wire.LifeRequest{TTLMS: &never}); err != nil || sb.Expires != nil {
		t.Errorf("%+v, %v", sb, err)
	}
	soon := int64(1)
	if _, err := h.SetLife(ctx, "lasting", wire.LifeRequest{TTLMS: &soon}); err != nil {
		t.Fatal(err)
	}
	eventually("it lives on", gone("lasting"))

	// The next daemon removes a sandbox that expired while no daemon ran.
	create("between", 200)
	h.close()
	time.Sleep(250 * time.Millisecond)
	h.open()
	eventually("it lives on", gone("between"))
	if gone("spared")() {
		t.Error("a sandbox whose expiry was removed is gone")
	}
	for _, ms := range []int64{-1, lifetime.Max.Milliseconds() + 1} {
		if _, err := h.SetLife(ctx, "spared", wire.LifeRequest{TTLMS: &ms}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d ms: %v", ms, err)
		}
	}
}

// extendsWhileItExpires removes the expiry of sandbox a while its removal waits for the sandbox's lock. It returns
// the record from before.
func (h *home) extendsWhileItExpires(t *testing.T) meta.Sandbox {
	t.Helper()
	s, rec, err := h.acquire(t.Context(), "a", "changing its life")
	if err != nil {
		t.Fatal(err)
	}
	live := func(until *time.Time) {
		t.Helper()
		err := h.DB.UpdateSandbox(t.Context(), rec.ID, func(r *meta.Sandbox) error { r.Expires = until; return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	past := h.Now().Add(-time.Second)
	live(&past)
	expired := make(chan error, 1)
	go func() { expired <- h.Expire(t.Context(), rec.ID) }()
	for waits := false; !waits; runtime.Gosched() { // Expire cancels starts while it waits for the lock
		ctx, done := s.Starting(t.Context())
		waits = ctx.Err() != nil
		done()
	}
	live(nil)
	s.unlock(h.Engine)
	if err := <-expired; err != nil {
		t.Error(err)
	}
	return rec
}

// TestExpire_SparesExtendedSandbox covers a sandbox whose lifetime is extended while its removal waits for another
// operation.
func TestExpire_SparesExtendedSandbox(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.extendsWhileItExpires(t)
	if _, err := h.DB.Sandbox(t.Context(), "a"); err != nil {
		t.Errorf("the extended sandbox was removed: %v", err)
	}
}

func TestTags_OutliveSandbox(t *testing.T) {
	ctx := context.Background()
	h := newHome(t)
	if _, err := h.Create(ctx, wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}},
		ignore); err != nil {
		t.Fatal(err)
	}
	tag := func(name string) string {
		t.Helper()
		r, err := h.SetTag(ctx, "a", name, "")
		if err != nil {
			t.Fatal(err)
		}
		return r.Node
	}
	h.run("a", "write", "f", "one")
	one := tag("one")
	h.run("a", "write", "f", "lost")
	h.run("a", "write", "g", "two")
	two := tag("two")
	h.run("a", "write", "f", "three")
	fork, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}, N: 1})
	if err != nil || fork.Sandboxes[0].Expires != nil {
		t.Fatalf("%+v, %v", fork, err)
	}
	h.run("a", "write", "f", "four")
	soon := int64(1)
	if _, err := h.SetLife(ctx, "a", wire.LifeRequest{TTLMS: &soon}); err != nil {
		t.Fatal(err)
	}
	var st wire.StatusResult
	for deadline := time.Now().Add(time.Minute); len(st.Notices) == 0; time.Sleep(5 * time.Millisecond) {
		if st, err = h.Status(ctx, "a"); err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", st, err)
		}
	}
	if st.Sandbox.Expires != nil || st.Sandbox.Head != two {
		t.Errorf("%+v, tagged are %s and %s", st.Sandbox, one, two)
	}
	log, err := h.Log(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	// The base, the first snapshot, the two tagged ones, and the one that the fork started from.
	if len(log.Nodes) != 5 {
		t.Errorf("left: %+v", log.Nodes)
	}
	if got := h.tree("a"); got["f"] != "lost" || got["g"] != "two" {
		t.Errorf("%v", got)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: "one"}); err != nil {
		t.Fatal(err)
	}
	if got := h.tree("a"); got["f"] != "one" || got["g"] != "" {
		t.Errorf("%v", got)
	}
	if got := h.tree("b"); got["f"] != "three" {
		t.Errorf("%v", got)
	}
}

// TestConflict_NamesHolder checks that the error about a busy sandbox names the operation that holds its lock.
func TestConflict_NamesHolder(t *testing.T) {
	ctx := context.Background()
	h := newHome(t)
	if _, err := h.Create(ctx, wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}},
		ignore); err != nil {
		t.Fatal(err)
	}
	s, _, err := h.acquire(ctx, "a", "checking out 0123")
	if err != nil {
		t.Fatal(err)
	}
	defer s.unlock(h.Engine)
	h.Patience = time.Millisecond
	_, err = h.Commit(ctx, "a", "m")
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "sandbox a is busy: checking out 0123") {
		t.Errorf("%v", err)
	}
	if _, err := h.Log(ctx, "a"); err != nil {
		t.Errorf("a reader waits too: %v", err)
	}
}

// TestExpire_SparesExtendedTaggedSandbox is TestExpire_SparesExtendedSandbox for a sandbox with a tag.
func TestExpire_SparesExtendedTaggedSandbox(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	if _, err := h.SetTag(ctx, "a", "base", "HEAD"); err != nil {
		t.Fatal(err)
	}
	h.run("a", "write", "f", "1")
	rec := h.extendsWhileItExpires(t)
	now, err := h.DB.Sandbox(t.Context(), "a")
	if err != nil || now.Head != rec.Head {
		t.Errorf("the extended sandbox is at %s instead of %s, %v", now.Head, rec.Head, err)
	}
}
