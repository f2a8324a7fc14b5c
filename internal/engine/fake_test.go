//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// fakeBoxes confine nothing: their commands are done by Go code on the plain
// tree of driver copy. So the engine's history can be tested anywhere.
type fakeBoxes struct {
	mu    sync.Mutex
	boxes map[string]*fakeBox // by run directory
}

type fakeBox struct {
	root string
	gone chan struct{}
	once sync.Once

	alone    bool     // what commands end with
	suspects []string // what freezes find
	freezes  int
}

func (f *fakeBoxes) Start(_ context.Context, c BoxConfig) (Box, Enforced, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := &fakeBox{root: c.Spec.Bind, gone: make(chan struct{})}
	f.boxes[c.RunDir] = b
	return b, Enforced{Tier: c.Tier}, nil
}

func (f *fakeBoxes) Attach(_ context.Context, dir string) (Box, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.boxes[dir]; b != nil {
		select {
		case <-b.gone:
		default:
			return b, nil
		}
	}
	return nil, fault.New(fault.NotFound, "no keeper listens in %s", dir)
}

func (b *fakeBox) Gone() <-chan struct{}              { return b.gone }
func (b *fakeBox) Procs(context.Context) (int, error) { return 0, nil }
func (b *fakeBox) Freeze(context.Context) (Frozen, error) {
	b.freezes++
	return fakeFrozen{b.suspects}, nil
}
func (b *fakeBox) Stop(context.Context, time.Duration) error {
	b.once.Do(func() { close(b.gone) })
	return nil
}

type fakeFrozen struct{ suspects []string }

func (fakeFrozen) Procs() int           { return 0 }
func (f fakeFrozen) Suspects() []string { return f.suspects }
func (fakeFrozen) Thaw() error          { return nil }

// Exec does one of: true; write PATH TEXT; rm PATH; mv FROM TO; mkdir PATH.
func (b *fakeBox) Exec(_ context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error) {
	at := func(i int) string { return filepath.Join(b.root, req.Cmd[i]) }
	var err error
	switch req.Cmd[0] {
	case "true":
	case "write":
		err = errors.Join(os.MkdirAll(filepath.Dir(at(1)), 0o755), os.WriteFile(at(1), []byte(req.Cmd[2]), 0o644))
	case "rm":
		err = os.RemoveAll(at(1))
	case "mv":
		err = os.Rename(at(1), at(2))
	case "mkdir":
		err = os.MkdirAll(at(1), 0o755)
	default:
		err = fmt.Errorf("no such command %q", req.Cmd[0])
	}
	x := ending{Alone: b.alone}
	if err != nil {
		x.Exit = wire.Exit{Code: 1, Message: err.Error()}
	}
	var out bytes.Buffer
	return stream{&out, io.Discard}, wire.WriteJSON(&out, wire.FrameExit, x)
}

type stream struct {
	io.Reader
	io.Writer
}

func (stream) Close() error { return nil }

// home is an engine over a directory, which can be closed and opened again.
type home struct {
	t     testing.TB
	dir   string
	boxes *fakeBoxes
	boot  string
	now   time.Time
	*Engine
}

func newHome(t testing.TB) *home {
	dir, err := os.MkdirTemp("", "engine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error { return os.Chmod(p, 0o700) })
		os.RemoveAll(dir)
	})
	h := &home{t: t, dir: dir, boxes: &fakeBoxes{boxes: map[string]*fakeBox{}}, boot: "boot-1", now: time.Now()}
	h.open()
	t.Cleanup(h.close)
	return h
}

func (h *home) open() {
	ctx := context.Background()
	db, err := meta.Open(ctx, filepath.Join(h.dir, "coppice.db"))
	if err != nil {
		h.t.Fatal(err)
	}
	layers, err := layer.Open(ctx, vfs.OS(), filepath.Join(h.dir, "layers"))
	if err != nil {
		h.t.Fatal(err)
	}
	drv, err := rootfs.New("copy", rootfs.Deps{Home: h.dir, Materialise: func(ctx context.Context, st rootspec.Stack, dst string) error {
		return layers.Materialise(ctx, layers.View(st), dst)
	}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.Engine, err = Open(ctx, Config{
		Home: h.dir, DB: db, Layers: layers, Boxes: h.boxes, BootID: h.boot,
		Drivers: map[string]rootfs.Driver{"copy": drv},
		ProbeHost: func(context.Context, bool) (wire.ProbeReport, error) {
			return wire.ProbeReport{Tier: "process", Driver: "copy"}, nil
		},
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *home) close() {
	if h.Engine == nil {
		return
	}
	if err := h.Close(); err != nil {
		h.t.Error(err)
	}
	if err := errors.Join(h.Layers.Close(), h.DB.Close()); err != nil {
		h.t.Error(err)
	}
	h.Engine = nil
}

// run is exec with the exit code checked.
func (h *home) run(name string, cmd ...string) wire.Exit {
	h.t.Helper()
	x, err := h.Exec(context.Background(), name, wire.ExecRequest{Cmd: cmd}, stream{strings.NewReader(""), io.Discard})
	if err != nil {
		h.t.Fatalf("%q: %v", cmd, err)
	}
	return x
}

// tree reads the live root of a sandbox: path to content, directories end in /.
func (h *home) tree(name string) map[string]string {
	h.t.Helper()
	h.run(name, "true")
	rec, err := h.DB.Sandbox(context.Background(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.boxes.mu.Lock()
	root := h.boxes.boxes[h.runDir(rec.ID)].root
	h.boxes.mu.Unlock()
	return readTree(h.t, root)
}

func readTree(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if d.IsDir() {
			out[rel+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(p)
		out[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
