//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/restore"
)

// hooksOf gives the directory of the hooks of a sandbox, which is made.
func (h *home) hooksOf(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(h.live(t, name).root, restore.HooksDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestForkHook_IsLimitedInTime checks that a hook gets its time limit, or the sandbox's limit for
// each command if that is shorter, and that its failure is the reason for the quarantine of the fork.
func TestForkHook_IsLimitedInTime(t *testing.T) {
	h := newHome(t)
	h.inGvisor(t, "a")
	const name = restore.HooksDir + "/10-hook"
	if err := os.WriteFile(filepath.Join(h.hooksOf(t, "a"), "10-hook"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for fork, c := range map[string]struct {
		end    wire.Exit
		reason string
	}{
		"done": {wire.Exit{}, ""},
		"late": {wire.Exit{Code: 124, TimedOut: true}, name + " did not exit within 30 s"},
		"limited": {wire.Exit{Code: 124, TimedOut: true, Limit: wire.LimitTime, Message: "it took longer than time=1s"},
			name + " was killed: it took longer than time=1s"},
		"loud": {wire.Exit{Code: 153, Limit: wire.LimitOutput, Message: "it printed more than output=1"},
			name + " was killed: it printed more than output=1"},
		"absent": {wire.Exit{Code: 127, Message: "no such file"}, name + " failed with exit code 127: no such file"},
	} {
		h.boxes.mu.Lock()
		h.boxes.hookEnd, h.boxes.hooked = c.end, nil
		h.boxes.mu.Unlock()
		res, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{fork}, Memory: true})
		if err != nil {
			t.Fatal(err)
		}
		q, released := res.Sandboxes[0].Quarantine, h.live(t, fork).released.Load()
		if c.reason == "" && (q != nil || released != 1) || c.reason != "" &&
			(q == nil || q.Step != "hook" || q.Reason != c.reason || released != 0) {
			t.Errorf("%s: %+v, released %d times", fork, q, released)
		}
		if ran := h.boxes.hooked; len(ran) != 1 || ran[0].TimeoutMS != 30_000 || ran[0].Cmd[0] != name {
			t.Errorf("%s: %+v", fork, ran)
		}
	}
}

// TestForkHook_UnreadableKeepsQuarantine covers a sandbox whose user cannot see whether there
// are hooks: it is unknown whether they were run.
func TestForkHook_UnreadableKeepsQuarantine(t *testing.T) {
	if ids, err := os.ReadFile("/proc/self/uid_map"); err != nil || os.Getuid() == 0 &&
		len(strings.Fields(string(ids))) == 3 && strings.Fields(string(ids))[2] == "1" {
		t.Skip("needs real-root: to have a user who is not root")
	}
	h := newHome(t)
	h.boxes.user = 1
	h.quarantined(t)
	b := h.live(t, "b")
	b.mu.Lock()
	b.rekeyErr = nil
	b.mu.Unlock()
	dir := h.hooksOf(t, "b")
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	if sb, err := h.Resume(ctx, "b"); err == nil || b.released.Load() != 0 {
		t.Errorf("%+v", sb)
	}
	rec, err := h.DB.Sandbox(ctx, "b")
	if q := rec.Quarantine; err != nil || q == nil || q.Step != restore.StepHooks || !strings.Contains(q.Reason, restore.HooksDir[1:]) {
		t.Errorf("%+v %v", q, err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if sb, err := h.Resume(ctx, "b"); err != nil || sb.Quarantine != nil || b.released.Load() != 1 {
		t.Errorf("%+v %v", sb, err)
	}
}

// TestResume_RefusedWhileHookRuns checks that no client opens the gate of a fork while one of
// its hooks runs, not even by a second resume.
func TestResume_RefusedWhileHookRuns(t *testing.T) {
	h := newHome(t)
	h.quarantined(t)
	b := h.live(t, "b")
	b.mu.Lock()
	b.rekeyErr = nil
	b.mu.Unlock()
	if err := os.WriteFile(filepath.Join(h.hooksOf(t, "b"), "10-hook"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	goOn, first := make(chan struct{}), make(chan error)
	h.boxes.mu.Lock()
	h.boxes.hookGo = goOn
	h.boxes.mu.Unlock()
	go func() { _, err := h.Resume(ctx, "b"); first <- err }()
	for hooked := 0; hooked == 0; {
		h.boxes.mu.Lock()
		hooked = len(h.boxes.hooked)
		h.boxes.mu.Unlock()
	}
	if _, err := h.Resume(ctx, "b"); !fault.Is(err, fault.Conflict) || b.released.Load() != 0 {
		t.Errorf("a second time: %v, released %d times", err, b.released.Load())
	}
	close(goOn)
	if err := <-first; err != nil || b.released.Load() != 1 || len(h.boxes.hooked) != 1 {
		t.Errorf("%v, released %d times, %d hooks", err, b.released.Load(), len(h.boxes.hooked))
	}
	if _, err := h.Resume(ctx, "b"); err != nil {
		t.Error(err)
	}
}
