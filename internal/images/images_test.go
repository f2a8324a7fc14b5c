//go:build linux

package images

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// noSnapshots is a Records without snapshots that have images.
type noSnapshots struct{ Records }

func (noSnapshots) MemoryImages(context.Context) ([]string, error) { return nil, nil }
func (noSnapshots) Flush() error                                   { return nil }

// frozen is a box with an image of one page.
type frozen struct{}

func (frozen) Save(_ context.Context, dir string) (p memory.Programs, err error) {
	for _, name := range []string{"checkpoint.img", "pages.img", "pages_meta.img"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 4096), 0o600); err != nil {
			return p, err
		}
	}
	p.Init, err = os.Open("/proc/self/exe")
	return p, err
}

// facts returns a function that always returns the same facts.
func facts(f map[string]string) func() (map[string]string, error) {
	return func() (map[string]string, error) { return f, nil }
}

func newImages(t *testing.T) *Images {
	t.Helper()
	store, err := memory.Open(t.Context(), filepath.Join(t.TempDir(), "memory"), memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return New(Config{
		Store: store, Records: noSnapshots{}, Home: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Host: Host{
			MemoryFacts: facts(map[string]string{"gvisor": "1", factProtocol: "3"}),
			BuildFacts:  facts(map[string]string{"build": "b"}),
			Understands: func(protocol string) bool { return protocol == "2" },
			Print:       func() string { return "now" },
		},
	})
}

func TestResumable_ComparesDependencies(t *testing.T) {
	t.Parallel()
	m := newImages(t)
	rec := &meta.Sandbox{Name: "a"}
	rec.Tier = "gvisor"
	for name, c := range map[string]struct {
		facts map[string]string
		says  string // part of the conflict; "" if the image can be resumed
	}{
		"the same":       {map[string]string{"gvisor": "1", "build": "b"}, ""},
		"another gVisor": {map[string]string{"gvisor": "0", "build": "b"}, "the version of gVisor was"},
		"another build":  {map[string]string{"gvisor": "1", "build": "a"}, "the build of Coppice"},
		"its init was kept, and speaks a protocol of before": {
			map[string]string{"gvisor": "1", factProtocol: "2", memory.InitFact: "x"}, ""},
		"its init was kept, and speaks a protocol that is unknown": {
			map[string]string{"gvisor": "1", factProtocol: "9", memory.InitFact: "x"}, "the protocol between"},
	} {
		_, err := m.Resumable(rec, timeline.Snapshot{Memory: &timeline.Memory{Facts: c.facts}})
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (!fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want a Conflict that says %q", name, err, c.says)
		}
	}
	if _, err := m.Resumable(rec, timeline.Snapshot{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a snapshot without memory: %v", err)
	}
	rec.Tier = "process"
	if _, err := m.Resumable(rec, timeline.Snapshot{Memory: &timeline.Memory{}}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a sandbox of another tier: %v", err)
	}
}

// TestKeep_BlocksSweepUntilOwnerIsKnown covers an image that is in the store before a snapshot refers to it: no
// sweep may run until its owner is known.
func TestKeep_BlocksSweepUntilOwnerIsKnown(t *testing.T) {
	t.Parallel()
	m := newImages(t)
	rec := &meta.Sandbox{ID: "0123456789ab", Name: "a"}
	if err := os.MkdirAll(filepath.Join(m.config.Home, "sandboxes", string(rec.ID)), 0o700); err != nil {
		t.Fatal(err)
	}
	i, err := m.Save(t.Context(), rec, frozen{})
	if err != nil {
		t.Fatal(err)
	}
	kept, known, err := m.Keep(t.Context(), rec, i)
	if err != nil || len(m.config.Store.List()) != 1 {
		t.Fatalf("%+v, %v: want one image in the store", kept, err)
	}
	if m.imaging.TryLock() {
		t.Error("a sweep was not blocked")
		m.imaging.Unlock()
	}
	known()
	var res wire.GCResult
	if err := m.Sweep(t.Context(), &res); err != nil || res.Images != 1 || len(m.config.Store.List()) != 0 {
		t.Errorf("%+v, %v: want the image of no snapshot dropped", res, err)
	}
}

func TestDropUnstored(t *testing.T) {
	t.Parallel()
	m := newImages(t)
	dir := filepath.Join(m.config.Home, "sandboxes", "0123456789ab")
	if err := os.MkdirAll(filepath.Join(dir, Unstored), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.DropUnstored(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}
