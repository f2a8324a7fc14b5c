//go:build linux

package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/fault"
)

// end makes a command exit that was started with Keep.
func (b *fakeBox) end(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.kept[id])
}

// begun waits until n commands were started that the daemon follows.
func (b *fakeBox) begun(n int) {
	for {
		b.mu.Lock()
		starts := b.starts
		b.mu.Unlock()
		if starts >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// attached waits for the exit of a command that was started with Keep, as a client that sends nothing and stays
// connected.
func (h *home) attached(ctx context.Context, id string) (wire.Exit, error) {
	in, _ := io.Pipe()
	return h.Exec(ctx, "a", wire.ExecRequest{Attach: id, Keep: true}, silent{in, io.Discard})
}

// silent is a client that sends nothing, until the engine stops reading from it.
type silent struct {
	*io.PipeReader
	io.Writer
}

func (s silent) SetReadDeadline(time.Time) error { return s.Close() }

func newKeptHome(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	if _, err := h.Create(t.Context(),
		wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}}, ignore); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestDetachedCommand_SurvivesDaemonRestart(t *testing.T) {
	t.Parallel()
	h := newKeptHome(t)
	ctx := t.Context()
	x, err := h.StartExec(ctx, "a", wire.ExecRequest{Cmd: []string{"long"}})
	if err != nil || x.ID == "" || !x.Kept || x.Exit != nil {
		t.Fatalf("%+v, %v", x, err)
	}
	b := h.box("a")
	h.close()
	h.open()
	if all, err := h.Execs(ctx, "a"); err != nil || len(all) != 1 || all[0].ID != x.ID {
		t.Fatalf("%+v, %v", all, err)
	}
	h.run("a", "true")
	end := make(chan error, 2)
	for range 2 { // several clients may wait
		go func() {
			got, err := h.attached(ctx, x.ID)
			if err == nil && (got.Code != 0 || got.Head == "") {
				err = fmt.Errorf("%+v", got)
			}
			end <- err
		}()
	}
	b.end(x.ID)
	for range 2 {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
	if got, err := h.attached(ctx, x.ID); err != nil || got.Head == "" {
		t.Errorf("the exit, asked for again: %+v, %v", got, err)
	}
}

func TestExitedCommands_AreBounded(t *testing.T) {
	t.Parallel()
	h := newKeptHome(t)
	ctx := t.Context()
	var ids []string
	for range command.MaxEnded + 1 {
		x, err := h.StartExec(ctx, "a", wire.ExecRequest{Cmd: []string{"long"}})
		if err != nil {
			t.Fatal(err)
		}
		h.box("a").end(x.ID)
		if _, err := h.attached(ctx, x.ID); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, x.ID)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := h.attached(ctx, ids[0]); fault.Is(err, fault.NotFound) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the first command is still known")
		}
	}
	if _, err := h.attached(ctx, ids[len(ids)-1]); err != nil {
		t.Error("the last command is not known")
	}
}

// TestStartExec_EndsWithItsContext covers a command that cannot be run: its exit is awaited only as long as the
// caller waits.
func TestStartExec_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	h := newKeptHome(t)
	h.run("a", "true")
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 2)
	req := wire.ExecRequest{Cmd: []string{"missing"}, Keep: true} // its exit is never reported
	go func() {
		_, err := h.StartExec(ctx, "a", req)
		failed <- err
	}()
	go func() {
		_, err := h.Exec(ctx, "a", req, stream{&bytes.Buffer{}, io.Discard})
		failed <- err
	}()
	h.boxNow("a").begun(2)
	cancel()
	for range 2 {
		select {
		case err := <-failed:
			if !fault.Is(err, fault.Cancelled) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a canceled call still waits")
		}
	}
}

func TestExecCalls_RefuseUnknownCommand(t *testing.T) {
	t.Parallel()
	h := newKeptHome(t)
	ctx := t.Context()
	for name, err := range map[string]error{
		"signal": h.SignalExec(ctx, "a", "x1", "INT"),
		"cancel": h.CancelExec(ctx, "a", "x1"),
	} {
		if !fault.Is(err, fault.NotFound) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all, err := h.Execs(ctx, "a"); err != nil || all == nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := h.StartExec(ctx, "a", wire.ExecRequest{}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	if _, err := h.Execs(ctx, "b"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// TestExec_ReportsImmediateExitOfRun checks that the client that starts a supervised command
// receives its exit, also if the command exits before the client is attached.
func TestExec_ReportsImmediateExitOfRun(t *testing.T) {
	h := newHome(t)
	var all errgroup.Group
	for i := range 8 { // concurrently
		name := fmt.Sprint("s", i)
		h.onDir(name)
		all.Go(func() error {
			for range 50 {
				near, far := net.Pipe() // the client stays connected
				var heard sync.WaitGroup
				heard.Go(func() { _, _ = io.Copy(io.Discard, far) }) // until near is closed
				x, err := h.Exec(ctx, name, wire.ExecRequest{Run: &wire.RunRequest{Cmd: []string{"over"}}}, near)
				near.Close()
				heard.Wait()
				if err != nil || x.Code != 0 {
					return fmt.Errorf("%+v, %w", x, err)
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}
