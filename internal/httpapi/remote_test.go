package httpapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// oneToken is a token store with one token.
type oneToken struct {
	auth.Store // a call of a method that oneToken does not implement panics
	tok        auth.Token
}

func (s *oneToken) AddToken(_ context.Context, t auth.Token) error {
	s.tok = t
	return nil
}

func (s *oneToken) Token(_ context.Context, id string) (auth.Token, error) {
	if id != s.tok.ID {
		return auth.Token{}, fault.New(fault.NotFound, "no token")
	}
	return s.tok, nil
}

func (s *oneToken) TokenUsed(context.Context, string, time.Time) error { return nil }

// remote serves an engine on TCP, with TLS if withTLS is set. It returns options for a client with a token of the
// given scope, and the number of connections so far.
func remote(t *testing.T, e engine, scope string, withTLS bool) (opt client.Options, conns *atomic.Int64) {
	t.Helper()
	tokens := &auth.Tokens{Store: &oneToken{}}
	res, err := tokens.Create(t.Context(), wire.TokenRequest{Name: "t", Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	g := auth.NewGuard(httpapi.New(httpapi.Options{Roles: roles(e), Log: log, Tokens: tokens}),
		auth.Options{Tokens: tokens, TLS: withTLS, Log: log})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := g.Server()
	conns = new(atomic.Int64)
	srv.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	t.Cleanup(func() { srv.Close() })
	opt = client.Options{Host: "http://" + ln.Addr().String(), Token: res.Secret, Patience: -1}
	if !withTLS {
		go srv.Serve(g.Limit(ln))
		return opt, conns
	}
	known := httptest.NewTLSServer(nil) // for its certificate, which is valid for 127.0.0.1
	defer known.Close()
	srv.TLSConfig = &tls.Config{Certificates: known.TLS.Certificates, MinVersion: tls.VersionTLS12}
	opt.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	opt.TLS.RootCAs.AddCert(known.Certificate())
	opt.Host = "https://" + ln.Addr().String() + "/"
	go srv.ServeTLS(g.Limit(ln), "", "")
	return opt, conns
}

func TestClient_ConnectsOverTCPAndTLS(t *testing.T) {
	t.Parallel()
	for name, withTLS := range map[string]bool{"tcp": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{exec: func(_ context.Context, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
				if err := wire.WriteJSON(stream, wire.FrameStarted, wire.Started{Exec: "e"}); err != nil {
					return wire.Exit{}, err
				}
				_, p, err := wire.ReadFrame(stream, nil)
				if err != nil {
					return wire.Exit{}, err
				}
				return wire.Exit{Code: 7}, wire.WriteFrame(stream, wire.FrameStdout, append([]byte("got "), p...))
			}}
			opt, conns := remote(t, f, "operate", withTLS)
			c := client.New(opt)
			defer c.Close()
			ctx := t.Context()
			for range 5 {
				if list, err := c.List(ctx); err != nil || len(list) != 2 {
					t.Fatalf("%v %v", list, err)
				}
			}
			if n := conns.Load(); n != 1 {
				t.Errorf("five calls that are safe to repeat took %d connections", n)
			}
			phases := 0
			sb, err := c.Create(ctx,
				wire.CreateRequest{Name: "n", From: wire.Source{Kind: wire.SourceTar},
					Tar: strings.NewReader(strings.Repeat("x", 1<<20))},
				func(wire.Progress) { phases++ })
			if err != nil || sb.Name != "n" || phases == 0 {
				t.Errorf("create: %+v %v, %d phases", sb, err, phases)
			}
			if _, err := c.Stop(ctx, "a"); err != nil {
				t.Errorf("stop: %v", err)
			}
			if n := conns.Load(); n != 3 {
				t.Errorf("a call that is not safe to repeat used an old connection: %d", n)
			}
			var out bytes.Buffer
			exit, err := c.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"cat"}, Stdin: true},
				client.Streams{Stdin: strings.NewReader("this"), Stdout: &out})
			if err != nil || exit.Code != 7 || out.String() != "got this" {
				t.Errorf("exec: %+v %v %q", exit, err, out.String())
			}
			if _, err := c.WriteFile(ctx, "a", "f", strings.NewReader("sent"), wire.WriteOptions{}); err != nil {
				t.Errorf("write a file: %v", err)
			}
			if _, err := c.TarFrom(ctx, "a", "d", strings.NewReader("archive")); err != nil {
				t.Errorf("unpack an archive: %v", err)
			}
			if _, err := c.Tokens(ctx); !client.IsKind(err, client.KindDenied) {
				t.Errorf("tokens: %v", err)
			}
		})
	}
}

func TestClient_FailsWithWrongTokenOrCA(t *testing.T) {
	t.Parallel()
	opt, _ := remote(t, &fake{}, "operate", true)
	try := func(name string, o client.Options, kind, says string) {
		t.Helper()
		c := client.New(o)
		defer c.Close()
		_, listed := c.List(t.Context())
		_, ran := c.Exec(t.Context(), "a", wire.ExecRequest{Cmd: []string{"x"}}, client.Streams{})
		for _, err := range []error{listed, ran} {
			var ce *client.Error
			if !errors.As(err, &ce) || ce.Kind != kind || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", name, err)
			}
			if err != nil && o.Token != "" && strings.Contains(err.Error(), o.Token) {
				t.Errorf("%s: the error contains the token: %v", name, err)
			}
		}
	}
	wrong := opt
	wrong.Token = "cpc_00000000_" + strings.Repeat("A", 43)
	try("a wrong token", wrong, client.KindDenied, "invalid or was revoked")
	wrong.Token = ""
	try("no token", wrong, client.KindDenied, "a token is required")
	wrong.Token = "x\r\nHost: evil.com"
	try("a token with a header in it", wrong, client.KindInvalid, "unexpected characters")
	stranger := opt
	stranger.TLS = nil
	try("an authority that is not known", stranger, client.KindUnavailable, "certificate")
	plain := opt
	plain.Host = strings.Replace(opt.Host, "https:", "http:", 1)
	try("no TLS where there is", plain, client.KindInternal, "400")
	for _, host := range []string{"127.0.0.1:80", "ftp://a", "https://", "http://a:b@c", "http://a?b", "http://a\r\nb"} {
		try(host, client.Options{Host: host}, client.KindInvalid, "invalid daemon address")
	}
}

func TestClient_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	stolen := make(chan string, 4)
	thief := httptest.NewServer(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen <- r.Header.Get("Authorization") }))
	defer thief.Close()
	daemon := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer daemon.Close()
	c := client.New(client.Options{Host: daemon.URL, Token: "t"})
	defer c.Close()
	if _, err := c.List(t.Context()); err == nil {
		t.Error("the client accepted a redirect")
	}
	if len(stolen) > 0 {
		t.Errorf("the client followed the redirect and sent %q", <-stolen)
	}
}
