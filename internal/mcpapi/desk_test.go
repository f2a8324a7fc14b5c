//go:build linux

package mcpapi_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/cli"
	"github.com/coppice-dev/coppice/internal/mcpapi"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// withPrograms runs tests with the helper programs installed.
type withPrograms struct{ *testing.M }

func (w withPrograms) Run() int { return programtest.Run(w.M) }

// TestMain makes this binary also serve as the program coppice, so that tests have a real daemon.
func TestMain(m *testing.M) {
	testscript.Main(withPrograms{m}, map[string]func(){"coppice": func() { os.Exit(cli.Main(os.Args)) }})
}

const (
	sandbox  = "box"
	patience = 60 * time.Second
)

// desk is a home with a daemon and one sandbox on the host.
type desk struct {
	t      *testing.T
	home   string
	env    []string
	client *client.Client
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	dir, err := os.MkdirTemp("", "mcp")
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, home: filepath.Join(dir, "store")}
	d.env = append(os.Environ(), "COPPICE_HOME="+d.home, "COPPICE_IDLE=10m", "LANG=C.UTF-8", "GORACE=atexit_sleep_ms=0")
	d.client = client.New(client.Options{Socket: filepath.Join(d.home, "daemon.sock")})
	t.Cleanup(func() {
		for _, name := range strings.Fields(d.coppice("ls", "-q")) {
			d.coppice("rm", "--force", name)
		}
		d.coppice("serve", "--stop")
		_ = exec.Command("chmod", "-R", "u+rwx", dir).Run() // files that the daemon owns as root in its user namespace
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	d.coppice("create", sandbox)
	// The login files of the host's user must not affect the test.
	d.coppice("exec", sandbox, "--", "sh", "-c", "rm -f ~/.profile ~/.bash_profile ~/.bash_login")
	return d
}

// coppice runs the program coppice.
func (d *desk) coppice(args ...string) string {
	d.t.Helper()
	cmd := exec.Command("coppice", args...)
	cmd.Env = d.env
	out, err := cmd.Output()
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			out = append(out, ee.Stderr...)
		}
		d.t.Errorf("coppice %q: %v: %s", args, err, out)
	}
	return string(out)
}

// model is an MCP client that uses the official Go SDK.
type model struct {
	t *testing.T
	*mcp.ClientSession
	hangUp func() // closes the server's stdin, and waits for it to exit

	mu       sync.Mutex
	progress []mcp.ProgressNotificationParams // guarded by mu
}

// meet connects a client to its own server.
func meet(t *testing.T, opt mcpapi.Options) *model {
	t.Helper()
	in, clientOut := io.Pipe()
	clientIn, out := io.Pipe()
	var served sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	served.Go(func() {
		if err := mcpapi.Serve(ctx, opt, in, out); err != nil {
			t.Errorf("serve: %v", err)
		}
		out.Close()
	})
	m := &model{t: t}
	m.connect(&mcp.IOTransport{Reader: clientIn, Writer: clientOut})
	m.hangUp = sync.OnceFunc(func() { clientOut.Close(); served.Wait() })
	t.Cleanup(func() {
		_ = m.Close() // it may be closed already
		m.hangUp()
		cancel()
	})
	return m
}

func (m *model) connect(tr mcp.Transport) {
	m.t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.progress = append(m.progress, *req.Params)
		}})
	var err error
	if m.ClientSession, err = c.Connect(m.t.Context(), tr, nil); err != nil {
		m.t.Fatal(err)
	}
}

// told returns the progress notifications so far.
func (m *model) told() []mcp.ProgressNotificationParams {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]mcp.ProgressNotificationParams(nil), m.progress...)
}

type args map[string]any

// try calls a tool, and returns its text and structured content.
func (m *model) try(name string, in args) (text string, out map[string]any, failed bool) {
	m.t.Helper()
	p := &mcp.CallToolParams{Name: name, Arguments: in}
	p.SetProgressToken("call of " + name)
	res, err := m.CallTool(m.t.Context(), p)
	if err != nil {
		m.t.Fatalf("%s %v: %v", name, in, err)
	}
	for _, c := range res.Content {
		text += c.(*mcp.TextContent).Text
	}
	out, _ = res.StructuredContent.(map[string]any)
	return text, out, res.IsError
}

// call is try, and fails the test if the call fails.
func (m *model) call(name string, in args) (string, map[string]any) {
	m.t.Helper()
	text, out, failed := m.try(name, in)
	if failed || out == nil {
		m.t.Fatalf("%s %v: %v %s", name, in, failed, text)
	}
	return text, out
}

// holds checks that text contains all parts.
func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in:\n%.2000s", p, text)
		}
	}
}

// eventually waits until is returns true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout after %s: %s", patience, what)
		}
	}
}
