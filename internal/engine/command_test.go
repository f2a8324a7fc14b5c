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
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

// exits returns the recorded exits of commands, by command id.
func (h *home) exits(t *testing.T, name string) map[string]*format.Exit {
	t.Helper()
	out := map[string]*format.Exit{}
	for _, r := range h.told(h.id(name), format.KindExit) {
		b := r.Body.(*format.Exit)
		if out[b.Exec] != nil {
			t.Errorf("%s has more than one exit", b.Exec)
		}
		out[b.Exec] = b
	}
	return out
}

// ends waits until the exit of a command is recorded.
func (h *home) ends(name, exec string) {
	h.t.Helper()
	for r, err := range h.Ledger.Follow(ctx, format.Sandbox(h.id(name)),
		ledger.Filter{Kinds: []format.Kind{format.KindExit}}) {
		if err != nil {
			h.t.Fatal(err)
		}
		if r.Body.(*format.Exit).Exec == exec {
			return
		}
	}
}

// boxNow returns the live box of a sandbox.
func (h *home) boxNow(name string) *fakeBox {
	h.boxes.mu.Lock()
	defer h.boxes.mu.Unlock()
	return h.boxes.boxes[h.runDir(h.id(name))]
}

// forgetAgreed resets the ledger checkpoint, as if the daemon had been killed before it stored which commands are
// open. The home is closed.
func (h *home) forgetAgreed() {
	h.t.Helper()
	db, err := meta.Open(ctx, filepath.Join(h.dir, "coppice.db"))
	if err == nil {
		err = errors.Join(db.SetSetting(ctx, "ledger_agreed", "0"), db.Close())
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// keptIn starts a command that runs until it is stopped, and returns its id.
func (h *home) keptIn(t *testing.T, name string) string {
	t.Helper()
	info, err := h.StartExec(ctx, name, wire.ExecRequest{Cmd: []string{"wait"}})
	if err != nil {
		t.Fatal(err)
	}
	return info.ID
}

func TestCommandExit_RecordedOnceOnStop(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	id := h.keptIn(t, "a")
	if _, err := h.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	h.ends("a", id)
	if x := h.exits(t, "a")[id]; x.Code != 137 || x.Signal != "KILL" || x.Reason == "" {
		t.Errorf("%+v", x)
	}
	if h.isOpen(t, "a", id) {
		t.Error("the command is still open")
	}
}

// TestCommandExit_RecordedOnceWhenThawFails checks that a snapshot in the history is in the exit of its command, even
// if the processes cannot be thawed afterwards.
func TestCommandExit_RecordedOnceWhenThawFails(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(h *home) (exec string){
		"kept": func(h *home) string { return h.keptIn(t, "a") },
		"supervised": func(h *home) string {
			run, err := h.Run(ctx, "a", wire.RunRequest{Cmd: []string{"serve"}, Capture: wire.Capture{Off: true}})
			if err != nil {
				t.Fatal(err)
			}
			return run.Exec
		},
		"restarted": func(h *home) string {
			run, err := h.Run(ctx, "a", wire.RunRequest{Cmd: []string{"serve"}, Capture: wire.Capture{Off: true},
				Restart: wire.RestartAlways})
			if err != nil {
				t.Fatal(err)
			}
			return run.Exec
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newKeptHome(t)
			exec := start(h)
			b := h.boxNow("a")
			if err := os.WriteFile(filepath.Join(b.root, "left"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			b.stuck.Store(true)
			b.end(exec)
			x, err := h.attached(ctx, exec)
			if err == nil && (x.Head == "" || name != "restarted" && strings.Contains(x.Message, "could not be captured")) {
				t.Errorf("the client received %+v", x)
			}
			if got := h.exits(t, "a")[exec]; got == nil || len(got.Changes) != 1 {
				t.Errorf("recorded: %+v", got)
			}
		})
	}
}

func TestCommandExit_RecordedOnceOnRemove(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	exec, id := h.keptIn(t, "a"), h.id("a")
	if _, err := h.Remove(ctx, []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	n, deleted := 0, false
	for _, r := range h.told(id, format.KindExit, format.KindDelete) {
		switch b := r.Body.(type) {
		case *format.Exit:
			if n++; b.Exec != exec || b.Reason == "" || deleted {
				t.Errorf("%+v, after the removal: %v", b, deleted)
			}
		case *format.Delete:
			deleted = true
		}
	}
	if n != 1 || !deleted {
		t.Errorf("%d exits, deleted: %v", n, deleted)
	}
}

// TestCommandExit_RecordedByNextDaemon checks that the next daemon records the exits of the commands that a daemon
// left, whether or not that daemon could store which commands are open, and whether or not they still run.
func TestCommandExit_RecordedByNextDaemon(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ killed, runs bool }{
		"it was killed, the command runs": {true, true}, "it was killed, and the command": {true, false},
		"it was stopped, the command runs": {false, true}, "it was stopped, and the command": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			h.onDir("a")
			id := h.keptIn(t, "a")
			box := h.boxNow("a")
			h.close()
			if !c.runs {
				if err := box.Stop(ctx, 0); err != nil {
					t.Fatal(err)
				}
			}
			if c.killed {
				h.forgetAgreed()
			}
			h.open()
			if c.runs {
				if x := h.exits(t, "a")[id]; x != nil {
					t.Fatalf("the command runs, and its recorded exit is %+v", x)
				}
				if !h.isOpen(t, "a", id) {
					t.Fatal("the command is not open")
				}
				if _, err := h.Stop(ctx, "a"); err != nil {
					t.Fatal(err)
				}
			}
			h.ends("a", id)
			h.close()
			h.open() // must not record it again
			if x := h.exits(t, "a")[id]; x.Code != 137 || x.Reason == "" {
				t.Errorf("%+v", x)
			}
			if len(h.exits(t, "a")) != 1 {
				t.Errorf("%+v", h.exits(t, "a"))
			}
		})
	}
}

func TestCommandExit_CountsDenials(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	id := h.keptIn(t, "a")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	drafts := h.Book.Drafts(ctx, &rec,
		audit.ByDaemon(&format.Denial{Count: 3, Reason: "x"}, &format.Network{Verdict: wire.VerdictDeny, Count: 2, Proto: "tcp"},
			&format.Network{Verdict: wire.VerdictAllow, Count: 9, Proto: "tcp"})...)
	if _, err := h.Book.Append(ctx, drafts...); err != nil {
		t.Fatal(err)
	}
	h.register.Denied(rec.ID, drafts)
	if _, err := h.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	h.ends("a", id)
	if x := h.exits(t, "a")[id]; x.Denials != 5 {
		t.Errorf("%d denials", x.Denials)
	}
}

// isOpen reports whether, by the records, a command of a sandbox has begun and not exited.
func (h *home) isOpen(t *testing.T, name, exec string) bool {
	t.Helper()
	rec, err := h.DB.Sandbox(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(h.register.Open(), func(c audit.OpenCommand) bool {
		return c.Sandbox == rec.ID && c.ID == exec
	})
}

// TestTakeUp_CountsDenialsWithoutDaemon checks that denials while no daemon ran are counted in the exit of a command
// that exited meanwhile.
func TestTakeUp_CountsDenialsWithoutDaemon(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	id := h.keptIn(t, "a")
	box := h.boxNow("a")
	place := h.journalAt(h.id("a"))
	h.close()
	j, err := journal.Open(place)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ev := to("one.example")
		ev.Time = time.Now()
		if err := j.Append(ev); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	if err := box.Stop(ctx, 0); err != nil {
		t.Fatal(err)
	}
	h.open()
	h.ends("a", id)
	if x := h.exits(t, "a")[id]; x.Denials != 3 {
		t.Errorf("%d denials, want 3", x.Denials)
	}
}
