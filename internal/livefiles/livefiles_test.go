//go:build linux

package livefiles

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// one is a sandbox whose live root is a directory.
type one struct {
	*sandbox.Sandbox
	dir      string
	captured []string // guarded by the sandbox's lock
}

// oneHeld is the sandbox with its lock held.
type oneHeld struct {
	one *one
	*sandbox.Held
}

func (o *one) lock(ctx context.Context, what string) (Held, error) {
	h, err := o.Lock(ctx, string(o.ID), what)
	if err != nil {
		return nil, err
	}
	return oneHeld{o, h}, nil
}

func (o *one) Acquire(ctx context.Context, _, what string) (Held, meta.Sandbox, error) {
	h, err := o.lock(ctx, what)
	return h, meta.Sandbox{ID: o.ID, Name: "a"}, err
}

func (o *one) Fixed(context.Context, *meta.Sandbox) ([]string, error) {
	return []string{"/fixed/d"}, nil
}

func (o *one) Decoys(context.Context, *meta.Sandbox) ([]string, error) { return nil, nil }

func (h oneHeld) Release() { h.Unlock() }

func (h oneHeld) Capture(_ context.Context, what string) error {
	h.one.captured = append(h.one.captured, what)
	return nil
}

func (h oneHeld) Root(context.Context, *meta.Sandbox) (*Root, error) {
	fd, err := unix.Open(h.one.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	return &Root{
		Dir: os.NewFile(uintptr(fd), "live root"), Close: func() error { return nil }, Lock: h.one.lock,
		User: boxfs.User{
			UID: uid, GID: gid, UIDs: []boxfs.IDMap{{Inside: uid, Outside: uid, Size: 1}},
			GIDs: []boxfs.IDMap{{Inside: gid, Outside: gid, Size: 1}},
		},
		Rename: func(_ context.Context, _, _ string, failed error) error { return failed },
	}, nil
}

func newOne(t *testing.T) (*one, *Opener) {
	t.Helper()
	o := &one{Sandbox: sandbox.New("0123456789ab"), dir: t.TempDir()}
	return o, New(o)
}

func opened(t *testing.T, o *Opener) *Files {
	t.Helper()
	f, err := o.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestDone_CapturesAfterFilesAreClosed(t *testing.T) {
	t.Parallel()
	s, o := newOne(t)
	if err := os.MkdirAll(filepath.Join(s.dir, "fixed", "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := opened(t, o)
	if !o.InUse(s.ID) {
		t.Error("open files are not in use")
	}
	if _, err := f.WriteFile(f.Context(), "x", strings.NewReader("text"), wire.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(f.Context(), "fixed", true); err == nil {
		t.Error("a path that the policy keeps in place was removed")
	}
	if err := f.Done(t.Context(), "write x"); err != nil {
		t.Fatal(err)
	}
	if o.InUse(s.ID) || len(s.captured) != 1 || s.captured[0] != "write x" {
		t.Errorf("in use: %v; captured %q", o.InUse(s.ID), s.captured)
	}
	if err := f.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if h := s.TryLock("looking"); h == nil {
		t.Error("the lock was not released")
	}
}

func TestAlone_WaitsForOpenFiles(t *testing.T) {
	t.Parallel()
	s, o := newOne(t)
	f := opened(t, o)
	f.Begin("write big\x1b")
	tries := make(chan struct{}, 2)
	acquire := func() (timeline.SandboxID, Held, error) {
		h, err := s.lock(t.Context(), "moving")
		tries <- struct{}{}
		return s.ID, h, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := o.Alone(ctx, acquire)
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "write big") ||
		strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%v: want a conflict that names the holder", err)
	}
	<-tries
	done := make(chan error, 1)
	go func() { done <- o.Alone(t.Context(), acquire) }()
	<-tries
	if err := f.Close(); err != nil { // needs no lock
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if h := s.TryLock("looking"); h != nil {
		t.Error("Alone returned without the lock")
	}
}

func TestCut_CancelsOperationsAndWaits(t *testing.T) {
	t.Parallel()
	s, o := newOne(t)
	f := opened(t, o)
	f.OnStop(func(cause error) {
		if !fault.Is(cause, fault.Unavailable) {
			t.Errorf("the cause of the stop is %v", cause)
		}
		_ = f.Close()
	})
	h := s.TryLock("stopping")
	if err := o.Cut(t.Context(), h, s.ID); err != nil || o.InUse(s.ID) {
		t.Errorf("%v; in use: %v", err, o.InUse(s.ID))
	}
	if err := o.Cut(t.Context(), h, "ba9876543210"); err != nil {
		t.Errorf("Cut of a sandbox without open files: %v", err)
	}
	h.Unlock()
	g := opened(t, o)
	if h = s.TryLock("stopping"); h == nil {
		t.Fatal("Open did not release the lock")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Cut(ctx, h, s.ID); !fault.Is(err, fault.Conflict) || g.Context().Err() == nil {
		t.Errorf("%v: want a conflict because files stay open, and their context canceled", err)
	}
	o.Forget(s.ID)
	if o.InUse(s.ID) {
		t.Error("a removed sandbox has files in use")
	}
}

// noDecoys is a sandbox whose decoys cannot be read.
type noDecoys struct {
	*one
	root *Root // the root that was opened
}

// noDecoysHeld remembers the root that was opened.
type noDecoysHeld struct {
	Held
	of *noDecoys
}

func (n *noDecoys) Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error) {
	h, rec, err := n.one.Acquire(ctx, name, what)
	return noDecoysHeld{h, n}, rec, err
}

func (n *noDecoys) Decoys(context.Context, *meta.Sandbox) ([]string, error) {
	return nil, fault.New(fault.Corrupt, "its decoys are damaged")
}

func (h noDecoysHeld) Root(ctx context.Context, rec *meta.Sandbox) (*Root, error) {
	in, err := h.Held.Root(ctx, rec)
	h.of.root = in
	return in, err
}

// TestOpen_ClosesRootOnError matters because an open root keeps the mount of the sandbox: a root that stays open
// after an error would keep it forever.
func TestOpen_ClosesRootOnError(t *testing.T) {
	t.Parallel()
	s, _ := newOne(t)
	n := &noDecoys{one: s}
	o := New(n)
	if _, err := o.Open(t.Context(), "a"); !fault.Is(err, fault.Corrupt) {
		t.Fatalf("Open = %v; want the error of Decoys", err)
	}
	if err := n.root.Dir.Close(); err == nil {
		t.Error("the live root was not closed")
	}
	if o.InUse(s.ID) {
		t.Error("files that could not be opened are in use")
	}
}
