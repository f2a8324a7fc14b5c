package httpapi_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/httpapi"
	"github.com/coppice-dev/coppice/internal/limit"
)

// costly is an engine that reports how much memory its operations hold.
type costly struct {
	two
	gate  *admission.Gate
	held  chan int64
	patch int // bytes
}

func newCostly() *costly {
	return &costly{gate: admission.New(admission.Options{Memory: 2 * limit.CostLarge, Log: slog.New(slog.DiscardHandler)}),
		held: make(chan int64, 1)}
}

func (c *costly) Log(context.Context, string) (wire.LogResult, error) {
	c.held <- c.gate.Stats().Held
	return wire.LogResult{}, nil
}

func (c *costly) Head(context.Context, string) (string, error) {
	c.held <- c.gate.Stats().Held
	return "", nil
}

func (c *costly) Show(context.Context, string, string) (wire.ShowResult, error) {
	c.held <- c.gate.Stats().Held
	return wire.ShowResult{}, nil
}

func (c *costly) Patch(_ context.Context, _ string, _ wire.DiffRequest, w io.Writer) error {
	_, err := w.Write(make([]byte, c.patch))
	return err
}

func TestAdmission_CountsSmallRequests(t *testing.T) {
	t.Parallel()
	e := newCostly()
	h := owned(httpapi.Options{Roles: roles(e), Admission: e.gate})
	for path, want := range map[string]int64{"/log": limit.CostSmall, "/nodes/HEAD": limit.CostLarge, "/head": 0} {
		if w := ask(h, "GET", "/v1/sandboxes/mine"+path, ""); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if got := <-e.held; got != want {
			t.Errorf("%s holds %d bytes, want %d", path, got, want)
		}
	}
	if s := e.gate.Stats(); s.Held != 0 {
		t.Errorf("memory still held: %+v", s)
	}
}

func TestAdmission_RefusesWithRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newCostly()
		h := owned(httpapi.Options{Roles: roles(e), Admission: e.gate})
		leave, err := e.gate.Enter(t.Context(),
			admission.Request{Cost: limit.CostLarge, Parties: []admission.Party{admission.Sandbox("1")}})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"mine", "1"} { // both the name and the ID refer to the same sandbox
			w := ask(h, "GET", "/v1/sandboxes/"+name+"/nodes/HEAD", "")
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" ||
				!strings.Contains(w.Body.String(), `"kind":"unavailable"`) {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
		}
		if w := ask(h, "GET", "/v1/sandboxes/theirs/nodes/HEAD", ""); w.Code != http.StatusOK {
			t.Errorf("another sandbox: %d %s", w.Code, w.Body)
		}
		leave()
	})
}

// listener accepts the server's ends of pipes.
type listener chan net.Conn

func (l listener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l listener) Close() error   { return nil }
func (l listener) Addr() net.Addr { return &net.UnixAddr{} }

func TestAdmission_EndsStalledResponse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		who  auth.Principal
		ends bool
	}{
		"a token's":   {auth.Principal{TokenID: "t", Scope: auth.Read}, true},
		"the owner's": {auth.Owner(), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := newCostly()
				e.patch = 1 << 20
				srv := &http.Server{Handler: newServer(tc.who, httpapi.Options{Roles: roles(e), Admission: e.gate})}
				ours, theirs := net.Pipe()
				ln := make(listener, 1)
				ln <- theirs
				done := make(chan error, 1)
				go func() { done <- srv.Serve(ln) }()
				if _, err := io.WriteString(ours,
					"GET /v1/sandboxes/mine/diff?patch=true HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if s := e.gate.Stats(); s.Held != limit.CostLarge {
					t.Errorf("while the answer is sent: %+v", s)
				}
				time.Sleep(limit.AnswerSeconds*time.Second + time.Second)
				synctest.Wait()
				if s := e.gate.Stats(); (s.Held == 0) != tc.ends {
					t.Errorf("afterwards: %+v", s)
				}
				ours.Close()
				close(ln)
				<-done
				srv.Close()
			})
		})
	}
}
