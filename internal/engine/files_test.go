//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/livefiles"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// openFiles opens the files of a sandbox.
func (h *home) openFiles(name string) *livefiles.Files {
	h.t.Helper()
	f, err := h.Files.Open(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { f.Close() })
	return f
}

// put writes a file from outside.
func (h *home) put(name, p, text string) {
	h.t.Helper()
	f := h.openFiles(name)
	if _, err := f.WriteFile(f.Context(), p, strings.NewReader(text), wire.WriteOptions{}); err != nil {
		h.t.Fatal(err)
	}
	if err := f.Done(h.t.Context(), "write "+p+" (4 B)"); err != nil {
		h.t.Fatal(err)
	}
}

func (h *home) head(name string) wire.Snapshot {
	h.t.Helper()
	l, err := h.Log(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	i := slices.IndexFunc(l.Nodes, func(s wire.Snapshot) bool { return s.Head })
	return l.Nodes[i]
}

func TestFileWrite_TakesSnapshot(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.put("a", "src/x", "text")
	if s := h.head("a"); s.Message != "write src/x (4 B)" || s.Cause != "auto" {
		t.Errorf("%+v", s)
	}
	if h.tree("a")["src/x"] != "text" {
		t.Errorf("%v", h.tree("a"))
	}
	before := h.head("a").ID
	f := h.openFiles("a")
	if _, err := f.Stat("src/x", false); err != nil {
		t.Error(err)
	}
	if err := f.Done(t.Context(), "nothing"); err != nil || h.head("a").ID != before {
		t.Errorf("a snapshot without a change, %v", err)
	}
	f = h.openFiles("a")
	if err := f.Remove(f.Context(), "src", true); err != nil {
		t.Fatal(err)
	}
	if err := f.Done(t.Context(), "remove \x1b[31m\xff"); err != nil || strings.Contains(h.head("a").Message, "\x1b") {
		t.Errorf("%q, %v", h.head("a").Message, err)
	}
	if f.Close() != nil || h.Files.InUse(h.id("a")) {
		t.Error("the files are still in use")
	}
	if _, err := h.Files.Open(t.Context(), "none"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestSnapshotFiles_AreReadWithoutStart(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.put("a", "d/sub/x", "old")
	old := h.head("a").ID
	root := h.box("a").root
	if err := errors.Join(os.Symlink("/d/sub", root+"/abs"), os.Symlink("../../../../d/./sub/x", root+"/d/up"),
		os.Symlink("loop", root+"/loop")); err != nil {
		t.Fatal(err)
	}
	h.put("a", "d/sub/x", "new")
	linked := h.head("a").ID
	if _, err := h.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	read := func(ref, p string) string {
		past, err := h.OpenPast(t.Context(), "a", ref)
		if err != nil {
			t.Fatal(err)
		}
		_, f, err := past.Open(p)
		if err != nil {
			return string(fault.KindOf(err))
		}
		defer f.Close()
		b, _ := io.ReadAll(f)
		return string(b)
	}
	for _, c := range [][3]string{
		{old, "d/sub/x", "old"}, {linked, "/d/sub/x", "new"}, {linked, "abs/x", "new"}, {linked, "d/up", "new"},
		{linked, "abs/../sub/../../d/up", "new"},
		{linked, "loop", "invalid"}, {linked, "d", "invalid"}, {linked, "no", "not_found"}, {old, "abs/x", "not_found"},
		{linked, "d/sub/x/y", "not_found"},
	} {
		if got := read(c[0], c[1]); got != c[2] {
			t.Errorf("%s: %q, want %q", c[1], got, c[2])
		}
	}
	past, err := h.OpenPast(t.Context(), "a", linked)
	if err != nil {
		t.Fatal(err)
	}
	l, err := past.List(t.Context(), "/", -1)
	if err != nil || len(l.Files) < 5 {
		t.Errorf("%+v, %v", l, err)
	}
	if i, err := past.Stat("abs", false); err != nil || i.Type != wire.FileLink || i.Target != "/d/sub" {
		t.Errorf("%+v, %v", i, err)
	}
	var b bytes.Buffer
	if err := past.TarTo(t.Context(), "d", &b); err != nil || b.Len() < 2048 {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
	if sb, err := h.Status(t.Context(), "a"); err != nil || sb.Sandbox.State != wire.StateIdle {
		t.Errorf("%+v, %v", sb.Sandbox.State, err)
	}
	if _, err := h.OpenPast(t.Context(), "a", "nonsense"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// TestFiles_KeepsBoxWhoseKeeperRuns checks that a box is replaced only after its keeper has exited, whatever the keeper
// answers: a second box beside running processes would have the same files, and nothing would stop the first one.
func TestFiles_KeepsBoxWhoseKeeperRuns(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.put("a", "x", "text")
	b := h.box("a")
	b.rootless.Store(true)
	ctx, cancel := context.WithCancelCause(t.Context())
	opened := make(chan error, 1)
	go func() { _, err := h.Files.Open(ctx, "a"); opened <- err }()
	cancel(errors.New("the client waits no longer"))
	if err := <-opened; err == nil || len(h.boxes.started) != 1 {
		t.Fatalf("the files were opened in box %d: %v", len(h.boxes.started), err)
	}
	go func() { _, err := h.Files.Open(t.Context(), "a"); opened <- err }()
	b.once.Do(func() { close(b.gone) })
	if err := <-opened; err != nil || len(h.boxes.started) != 2 {
		t.Errorf("after the exit there were %d boxes: %v", len(h.boxes.started), err)
	}
}

func TestRewind_WaitsForFileWrites(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	first := h.head("a").ID
	h.put("a", "x", "1")
	f := h.openFiles("a")
	f.Begin("write big\x1b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	_, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: first})
	cancel()
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "write big") ||
		strings.Contains(err.Error(), "\x1b") {
		t.Fatalf("%v: want a conflict that names the holder", err)
	}
	h.run("a", "write", "beside", "it") // other commands and writers do not wait
	h.put("a", "y", "2")
	moved := make(chan error, 1)
	go func() {
		_, err := h.Checkout(t.Context(), "a", wire.CheckoutRequest{Node: first})
		moved <- err
	}()
	select {
	case err := <-moved:
		t.Fatalf("the rewind did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := f.WriteFile(f.Context(), "z", strings.NewReader("3"), wire.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Done(t.Context(), "write z"); err != nil {
		t.Fatal(err)
	}
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	if _, ok := h.tree("a")["z"]; ok {
		t.Error("a file was written after the rewind")
	}
	l, err := h.Log(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.ContainsFunc(l.Nodes, func(s wire.Snapshot) bool {
		past, err := h.OpenPast(t.Context(), "a", s.ID)
		if err != nil {
			t.Fatal(err)
		}
		_, err = past.Stat("z", false)
		return err == nil
	})
	if !kept {
		t.Error("the written file is in no snapshot")
	}
}

func TestStop_EndsFileOperations(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.put("a", "d/x", "1")
	f, g := h.openFiles("a"), h.openFiles("a")
	watching := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		watching <- f.Watch(f.Context(), "d", true, func(ev wire.FileEvent) error {
			if ev.Kind == "" {
				close(ready)
			}
			return nil
		})
		f.Close()
	}()
	<-ready
	pr, pw := io.Pipe()
	writing := make(chan error, 1)
	go func() {
		_, err := g.WriteFile(g.Context(), "d/y", pr, wire.WriteOptions{})
		writing <- err
		g.Close()
	}()
	_, _ = pw.Write([]byte("half"))
	context.AfterFunc(g.Context(), func() { pw.CloseWithError(errors.New("cut off")) }) // as the API's deadline does
	if _, err := h.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := <-watching; !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Error(err)
	}
	if err := <-writing; !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	if _, ok := h.tree("a")["d/y"]; ok {
		t.Error("half a file was written")
	}
}

// TestCapture_DuringFileWrites captures while other clients write, replace, move and remove files: no file that the
// capture has seen disappears before it is captured, and no file is captured under its temporary name.
func TestCapture_DuringFileWrites(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.run("a", "true")
	rec, err := h.DB.Sandbox(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	sbx := h.entry(rec.ID)
	done := make(chan struct{})
	var writers sync.WaitGroup
	for i := range 2 {
		f := h.openFiles("a")
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				dir := "d" + itoa(i)
				var errs []error
				for k := range 20 {
					_, err := f.WriteFile(f.Context(), dir+"/f"+itoa(k), strings.NewReader(itoa(n)), wire.WriteOptions{})
					errs = append(errs, err)
				}
				errs = append(errs, f.Root.Move(dir, dir+"-moved"), f.Remove(f.Context(), dir+"-moved", true))
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 80 {
		s, err := h.lock(t.Context(), sbx, "capturing")
		if err != nil {
			t.Fatal(err)
		}
		rec, err := h.DB.Sandbox(t.Context(), "a")
		if err == nil {
			_, err = h.capture(t.Context(), s, &rec, note{cause: timeline.CauseAuto, message: "beside"})
		}
		s.unlock(h.Engine)
		if err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	writers.Wait()
	l, err := h.Log(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range l.Nodes {
		if n.Parent == "" {
			continue
		}
		shown, err := h.Show(t.Context(), "a", n.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range shown.Changes {
			if strings.Contains(c.Path, ".coppice-part-") {
				t.Fatalf("%s is in the history", c.Path)
			}
		}
	}
}
