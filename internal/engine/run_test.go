//go:build linux

package engine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// runHasEnded waits for the exit of the supervised command of sandbox a.
func (h *home) runHasEnded(t *testing.T) (st wire.StatusResult) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); st.Run == nil || st.Run.Exit == nil; time.Sleep(time.Millisecond) {
		if st, err = h.Status(ctx, "a"); err != nil || time.Now().After(deadline) {
			t.Fatalf("its exit is not recorded: %+v, %v", st.Run, err)
		}
	}
	return st
}

// began records the start of a supervised command.
func (h *home) began(t *testing.T, rec *meta.Sandbox, run wire.Run) {
	t.Helper()
	h.register.Found(audit.OpenCommand{ID: run.Exec, Sandbox: rec.ID, At: time.Now(), Before: rec.Head})
	began := audit.ByDaemon(&format.Exec{Exec: run.Exec, Args: run.Cmd, User: rec.User})
	if err := h.Book.Record(t.Context(), rec, began...); err != nil {
		t.Fatal(err)
	}
}

// TestRun_StartsOnceAcrossDaemonKill kills a daemon at each point while it starts a supervised
// command. The next daemon starts the command if it has not started, and follows it.
func TestRun_StartsOnceAcrossDaemonKill(t *testing.T) {
	t.Parallel()
	const id = "x0123456789"
	for name, prepare := range map[string]func(h *home, b *fakeBox){
		"before its box was started":               func(_ *home, b *fakeBox) { close(b.gone) },
		"before it was asked for":                  func(*home, *fakeBox) {},
		"before its box was started, and recorded": func(_ *home, b *fakeBox) { close(b.gone) },
		"before it was asked for, and recorded":    func(*home, *fakeBox) {},
		"before it was noted": func(_ *home, b *fakeBox) {
			_, _ = b.keep(wire.ExecRequest{ID: id})
		},
		"while it was asked for": func(_ *home, b *fakeBox) {
			_, _ = b.keep(wire.ExecRequest{ID: id})
			b.blind.Store(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			h := newHome(t)
			if _, err := h.Create(ctx, wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}},
				ignore); err != nil {
				t.Fatal(err)
			}
			b := h.box("a")
			rec, err := h.DB.Sandbox(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			run := wire.Run{
				RunRequest: wire.RunRequest{Cmd: []string{"agent"}, Restart: wire.RestartNo, Capture: wire.Capture{Off: true}},
				Exec:       id, Starts: 1, Started: time.Now()}
			err = h.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { r.Run, r.Starting = &run, true; return nil })
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "recorded") {
				h.began(t, &rec, run)
			}
			h.close()
			prepare(h, b)
			h.open()
			var end chan struct{}
			for deadline := time.Now().Add(time.Minute); end == nil; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the command does not run")
				}
				h.boxes.mu.Lock()
				b = h.boxes.boxes[h.runDir(rec.ID)]
				h.boxes.mu.Unlock()
				b.mu.Lock()
				end = b.kept[id]
				b.mu.Unlock()
			}
			if _, err := h.Run(ctx, "a", wire.RunRequest{Cmd: []string{"other"}}); err == nil {
				t.Error("another command was started beside it")
			}
			close(end)
			st := h.runHasEnded(t)
			if h.isOpen(t, "a", id) {
				t.Error("its exit is not recorded yet")
			}
			if st.Run.Exit.Code != 0 || st.Run.Exec != id || b.starts != 1 {
				t.Errorf("%+v after %d starts", st.Run.Exit, b.starts)
			}
			if rec, err = h.DB.Sandbox(ctx, "a"); err != nil || rec.Starting || rec.Again {
				t.Errorf("%+v, %v", rec, err)
			}
		})
	}
}

// TestRun_RestartsAfterInterruptedRewind covers a daemon that takes over a command which the daemon before it could
// not record as started, and that is killed when it is about to stop the command for a rewind. The next daemon starts
// the command again if it was stopped, and does not if it exited.
func TestRun_RestartsAfterInterruptedRewind(t *testing.T) {
	t.Parallel()
	const id = "x0123456789"
	for starts, stopped := range map[int]bool{1: false, 2: true} {
		ctx := context.Background()
		h := newHome(t)
		if _, err := h.Create(ctx, wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}},
			ignore); err != nil {
			t.Fatal(err)
		}
		b := h.box("a")
		if _, err := b.keep(wire.ExecRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		rec, err := h.DB.Sandbox(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		run := wire.Run{
			RunRequest: wire.RunRequest{Cmd: []string{"agent"}, Restart: wire.RestartOnRewind, Capture: wire.Capture{Off: true}},
			Exec:       id, Starts: 1, Started: time.Now()}
		err = h.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { r.Run, r.Starting = &run, true; return nil })
		if err != nil {
			t.Fatal(err)
		}
		h.close()
		h.open()
		s, rec, err := h.acquire(ctx, "a", "checking out")
		if err == nil {
			err = h.WillRestart(ctx, s.Held, &rec)
			s.unlock(h.Engine)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.close()
		h.open()
		b.stopping.Store(stopped)
		close(b.kept[id])
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			st, err := h.Status(ctx, "a")
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("stopped %v: %+v, %v", stopped, st.Run, err)
			}
			if st.Run.Starts == 2 || st.Run.Exit != nil {
				if st.Run.Starts != starts || (st.Run.Exit == nil) != stopped {
					t.Errorf("stopped %v: %+v", stopped, st.Run)
				}
				break
			}
		}
	}
}

// TestRun_HasOneExitWhenRestarted is TestRun_StartsOnceAcrossDaemonKill with changes that are not captured yet.
func TestRun_HasOneExitWhenRestarted(t *testing.T) {
	const id = "x0123456789"
	h := newHome(t)
	h.onDir("a")
	b := h.box("a")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	run := wire.Run{
		RunRequest: wire.RunRequest{Cmd: []string{"agent"}, Restart: wire.RestartNo, Capture: wire.Capture{Off: true}},
		Exec:       id, Starts: 1, Started: time.Now()}
	err = h.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { r.Run, r.Starting = &run, true; return nil })
	if err != nil {
		t.Fatal(err)
	}
	h.began(t, &rec, run)
	h.close()
	close(b.gone)
	if err := os.WriteFile(filepath.Join(b.root, "left"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.open()
	var end chan struct{}
	for deadline := time.Now().Add(time.Minute); end == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the command does not run")
		}
		b = h.boxNow("a")
		b.mu.Lock()
		end = b.kept[id]
		b.mu.Unlock()
	}
	close(end)
	h.runHasEnded(t)
	n := 0
	for _, r := range h.told(rec.ID, format.KindExec, format.KindExit) {
		t.Logf("%d %s %+v", r.Seq, r.Kind(), r.Body)
		if x, ok := r.Body.(*format.Exit); ok && x.Exec == id {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d exits of one command", n)
	}
}

// failingRecords is a database in which one change of the record of a sandbox fails.
type failingRecords struct {
	command.Records
	left int // changes before the one that fails
}

func (f *failingRecords) UpdateSandbox(
	ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error,
) error {
	if f.left--; f.left == 0 {
		return fault.New(fault.NoSpace, "the disk is full")
	}
	return f.Records.UpdateSandbox(ctx, id, change)
}

// TestRun_FollowsCommandItCannotStore checks that a supervised command that runs, but whose
// start could not be stored, is followed to its exit.
func TestRun_FollowsCommandItCannotStore(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	c := commandConfig(h.Engine)
	c.Records = &failingRecords{c.Records, 2}
	h.Commands = command.New(c)
	if _, err := h.Commands.Run(ctx, "a", wire.RunRequest{Cmd: []string{"serve"}}); !fault.Is(err, fault.NoSpace) {
		t.Fatal(err)
	}
	begun := h.told(h.id("a"), format.KindExec)
	if len(begun) != 1 {
		t.Fatalf("%d commands have started", len(begun))
	}
	if _, err := h.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(h.exits(t, "a")) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its exit is not recorded")
		}
	}
}
