package daemon

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
)

const boxID = "0123456789ab"

// one is an engine with one sandbox.
type one struct{ backend }

func (one) store() *meta.DB { return new(meta.DB) }

func (one) Sandbox(_ context.Context, name string) (wire.Sandbox, error) {
	if name != "box" && name != boxID {
		return wire.Sandbox{}, fault.New(fault.NotFound, "sandbox %q not found", name)
	}
	return wire.Sandbox{ID: boxID, Name: "box", Self: wire.SelfRead}, nil
}

func (one) Head(context.Context, string) (string, error) { return "aa", nil }

// startLines serves the sockets of a home. stop ends that as a daemon's exit does.
func startLines(t *testing.T, home string) (l *lines, stop func()) {
	t.Helper()
	base, cancel := context.WithCancel(t.Context())
	l = newLines(base, home, nil, slog.New(slog.DiscardHandler))
	stop = func() { cancel(); l.close() }
	t.Cleanup(stop)
	return l, stop
}

func ask(t *testing.T, path, q string) (string, error) {
	t.Helper()
	c, err := client.DialSocket(t.Context(), path)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, q+"\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

func TestLineSocket_SurvivesDaemonUntilClosed(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	l, stop := startLines(t, home)
	l.serve(adapted{one{}})
	if l.busy() {
		t.Error("busy without a socket")
	}
	path, err := l.OpenSocket(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.OpenSocket(t.Context(), boxID)
	if err != nil || again != path {
		t.Errorf("%s, %v", again, err)
	}
	for p, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if st, err := os.Lstat(p); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", p, st.Mode(), err)
		}
	}
	if got, err := ask(t, path, `{"op":"head"}`); got != `{"ok":true,"head":"aa"}`+"\n" {
		t.Errorf("%q, %v", got, err)
	}
	if !l.busy() {
		t.Error("not busy with a socket")
	}
	stop()
	if _, err := ask(t, path, `{"op":"head"}`); err == nil {
		t.Error("the closed socket still answers")
	}

	l, _ = startLines(t, home)
	l.serve(adapted{one{}})
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got, err := ask(t, path, `{"op":"head"}`)
		if err == nil && got == `{"ok":true,"head":"aa"}`+"\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if err := l.CloseSocket(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if err := l.CloseSocket(t.Context(), "box"); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) || l.busy() {
		t.Errorf("%v, busy %v", err, l.busy())
	}
	if _, err := l.OpenSocket(t.Context(), "other"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestLineSocket_EndsWithSandbox(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	l, _ := startLines(t, home)
	l.serve(adapted{one{}})
	path, err := l.OpenSocket(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if l.busy() {
		t.Error("busy for a sandbox that was removed")
	}
}

func TestInsideSocket_ServesItsSandbox(t *testing.T) {
	t.Parallel()
	run := filepath.Join(t.TempDir(), "sandboxes", boxID, "run")
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	l, _ := startLines(t, filepath.Dir(filepath.Dir(filepath.Dir(run))))
	sock := filepath.Join(run, plan.SelfDir, plan.SelfName)

	// A client may connect before the engine is set.
	d, err := l.openInside(boxID, run, wire.SelfRead, plan.TierProcess)
	if err != nil {
		t.Fatal(err)
	}
	early, err := net.Dial("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	l.serve(adapted{one{}})
	if got, err := ask(t, sock, `{"op":"commit"}`); !strings.Contains(got, "not allowed from inside") {
		t.Errorf("%q, %v", got, err)
	}

	// A box that starts while the previous one exits keeps its socket.
	gone, gone2 := make(chan struct{}), make(chan struct{})
	l.until(boxID, d, gone)
	d2, err := l.openInside(boxID, run, wire.SelfRead, plan.TierProcess)
	if err != nil {
		t.Fatal(err)
	}
	l.until(boxID, d2, gone2)
	close(gone)
	<-d.gone
	if got, err := ask(t, sock, `{"op":"head"}`); got != `{"ok":true,"head":"aa"}`+"\n" {
		t.Errorf("%q, %v", got, err)
	}
	close(gone2)
	<-d2.gone
	if _, err := os.Lstat(filepath.Dir(sock)); !os.IsNotExist(err) || l.busy() {
		t.Errorf("%v, busy %v", err, l.busy())
	}
	for _, self := range []string{wire.SelfOff, ""} {
		if d, err := l.openInside(boxID, run, self, plan.TierProcess); d != nil || err != nil {
			t.Errorf("%q: %v, %v", self, d, err)
		}
	}
}
