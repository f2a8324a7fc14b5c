package inside

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// daemon answers each connection with a line, and returns what it received.
func daemon(t *testing.T, answer string) (c *Client, received <-chan string) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "sock")
	ln, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	lines := make(chan string, 9)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			lines <- strings.TrimSpace(line)
			_, _ = conn.Write([]byte(answer))
			conn.Close()
		}
	}()
	return New(at), lines
}

// TestClient_SendsOperations checks the requests, which older daemons read too.
func TestClient_SendsOperations(t *testing.T) {
	t.Parallel()
	c, got := daemon(t, `{"ok":true}`+"\n")
	ctx := t.Context()
	for want, send := range map[string]func() error{
		`{"op":"head"}`:     func() error { _, err := c.Head(ctx); return err },
		`{"op":"log"}`:      func() error { _, err := c.Log(ctx); return err },
		`{"op":"branches"}`: func() error { _, err := c.Branches(ctx); return err },
		`{"op":"tag"}`:      func() error { _, err := c.Tags(ctx); return err },

		`{"op":"show","node":"HEAD"}`:     func() error { _, err := c.Show(ctx, "HEAD"); return err },
		`{"op":"commit","message":"now"}`: func() error { _, err := c.Commit(ctx, "now"); return err },
		`{"op":"diff","a":"x","b":"y","paths":["etc"]}`: func() error {
			_, err := c.Diff(ctx, wire.DiffRequest{A: "x", B: "y", Paths: []string{"etc"}})
			return err
		},
		`{"op":"checkout","node":"x","in_place":true}`: func() error {
			_, err := c.Checkout(ctx, wire.CheckoutRequest{Node: "x", InPlace: true})
			return err
		},
		`{"op":"mark","label":"step"}`: func() error {
			_, err := c.Mark(ctx, wire.MarkRequest{Label: "step"})
			return err
		},
		`{"op":"tag","name":"good","ref":"HEAD"}`: func() error {
			_, err := c.SetTag(ctx, wire.TagRequest{Name: "good", Ref: "HEAD"})
			return err
		},
		`{"op":"trial","cmd":"make","at":"x","timeout_ms":5}`: func() error {
			_, err := c.Trial(ctx, wire.TrialRequest{Cmd: "make", At: "x", TimeoutMS: 5})
			return err
		},
	} {
		if err := send(); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if line := <-got; line != want {
			t.Errorf("sent %s, want %s", line, want)
		}
	}
}

func TestCall_ReportsFailures(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer string
		kind   fault.Kind
		text   string
	}{
		"a failure":               {`{"error":"no","kind":"denied","hint":"ask"}` + "\n", fault.Denied, "no"},
		"nothing":                 {"", fault.Unavailable, "without an answer"},
		"half a line":             {`{"ok":true`, fault.Unavailable, "without an answer"},
		"no JSON":                 {"hello\n", fault.Version, "invalid answer"},
		"neither":                 {"{}\n", fault.Version, "neither"},
		"another type":            {`{"ok":true,"head":7}` + "\n", fault.Version, "invalid answer"},
		"a line that is too long": {strings.Repeat("x", maxAnswer+1), fault.Unavailable, "without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := daemon(t, tt.answer)
			_, err := c.Head(t.Context())
			if !fault.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, kind %q; want kind %q and %q", err, fault.KindOf(err), tt.kind, tt.text)
			}
		})
	}
	dir := t.TempDir()
	_, err := New(filepath.Join(dir, "none")).Head(t.Context())
	if !fault.Is(err, fault.Denied) || !strings.Contains(fault.HintOf(err), "--self read") {
		t.Errorf("without a socket: %v, hint %q", err, fault.HintOf(err))
	}
	// The link to the socket remains while no daemon listens.
	link := filepath.Join(dir, "link")
	if err := os.Symlink("gone", link); err != nil {
		t.Fatal(err)
	}
	if _, err = New(link).Head(t.Context()); !fault.Is(err, fault.Unavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a daemon: %v", err)
	}
}

func TestCall_StopsOnCancel(t *testing.T) {
	t.Parallel()
	at := filepath.Join(t.TempDir(), "sock")
	ln, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := ln.Accept(); err == nil {
			_, _ = bufio.NewReader(conn).ReadString('\n')
			cancel()
		}
	}()
	if _, err := New(at).Head(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestSocket_IsThatOfASandbox checks that a chosen store or daemon has precedence, and that this host is not a sandbox.
func TestSocket_IsThatOfASandbox(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"COPPICE_HOME", "COPPICE_SOCKET", "COPPICE_HOST"} {
		if got := Socket(func(s string) string { return map[string]string{name: "/x"}[s] }); got != "" {
			t.Errorf("with %s: %q", name, got)
		}
	}
	if _, err := os.Lstat(wire.SelfSocket); err == nil {
		t.Skip("needs a host: this process is in a sandbox")
	}
	if got := Socket(func(string) string { return "" }); got != "" {
		t.Errorf("on a host: %q", got)
	}
}
