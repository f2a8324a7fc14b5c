package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// oneToken is a store with one token, or none.
type oneToken struct {
	auth.Store // a call of a method that oneToken does not implement panics

	mu  sync.Mutex
	tok *auth.Token // guarded by mu
}

func (s *oneToken) Token(context.Context, string) (auth.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tok == nil {
		return auth.Token{}, fault.New(fault.NotFound, "no token")
	}
	return *s.tok, nil
}

func (s *oneToken) set(tok *auth.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tok = tok
}

// TestInsideCalls_UseCurrentToken checks that a call within the daemon has the current rights of its token, and
// ends with the token.
func TestInsideCalls_UseCurrentToken(t *testing.T) {
	t.Parallel()
	const id = "00000001"
	store := &oneToken{}
	in := newInside(&auth.Tokens{Store: store})
	seen, ended := make(chan auth.Principal, 1), make(chan bool, 1)
	srv := in.server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- auth.From(r.Context())
		if r.URL.Path == "/v1/sandboxes/wait/head" {
			<-r.Context().Done()
			ended <- true
			return
		}
		fmt.Fprint(w, `{"head":"aa"}`)
	}), slog.New(slog.DiscardHandler))
	go srv.Serve(in)
	defer srv.Close()
	c := in.client(auth.Principal{TokenID: id, Scope: auth.Operate, Sandboxes: []string{"1"}})
	defer c.Close()

	if _, err := c.Head(t.Context(), "a"); !client.IsKind(err, client.KindDenied) {
		t.Errorf("a deleted token: %v", err)
	}
	for _, boxes := range [][]string{{"1"}, {"1", "2"}} {
		store.set(&auth.Token{ID: id, Scope: auth.Read, Sandboxes: boxes})
		if _, err := c.Head(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if p := <-seen; !slices.Equal(p.Sandboxes, boxes) || p.Scope != auth.Read {
			t.Errorf("%+v", p)
		}
	}
	wait := func() chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := c.Head(t.Context(), "wait")
			failed <- err
		}()
		<-seen
		return failed
	}
	failed := wait()
	in.drop("00000002")
	in.drop(id)
	<-ended
	if err := <-failed; err == nil {
		t.Error("a call with a revoked token was answered")
	}
	store.set(&auth.Token{ID: id, Scope: auth.Read, Expires: time.Now().Add(2 * time.Second)})
	failed = wait()
	<-ended
	if err := <-failed; err == nil {
		t.Error("a call with an expired token was answered")
	}
	srv.Close() // closes the remaining connections
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.open) != 0 {
		t.Errorf("%d connections are left", len(in.open))
	}
}
