package inspect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Request is a request to decide about.
type Request struct {
	Host policy.Host
	policy.HTTPRequest
	// Size is the total size of the request in bytes, as far as it declares one.
	Size int64
	// Header is its headers; a Judge must not change it.
	Header http.Header
}

// Denial is why a request is not forwarded; the sandbox receives it.
type Denial struct {
	Status             int // HTTP status of the response
	Rule, Reason, Hint string
}

// Error returns the reason.
func (d *Denial) Error() string { return d.Reason }

// Judge decides about requests and records their results. Its methods, and those of an Exchange, are called from
// several goroutines, and must not wait for the sandbox or the network; but Begin may wait for the values of secrets
// and for the owner's approval, and Fill for the body.
type Judge interface {
	// Begin decides about a request before any of it is forwarded. It returns an Exchange, or a Denial, which it has
	// recorded. ctx ends with the connection at the latest.
	Begin(ctx context.Context, q Request) (Exchange, *Denial)
	// Deny records a request that is denied under any policy. The zero Request stands for one that could not be
	// parsed.
	Deny(q Request, reason string)
}

// Exchange is an allowed request.
type Exchange interface {
	// Spend counts bytes before they are passed on in either direction: heads, informational responses, bodies, and
	// trailers of answers. If it returns a Denial, which it has recorded, they are not passed on, and the exchange
	// ends.
	Spend(out, in int64) *Denial
	// Sent is called with what follows the head, before it is forwarded. If it returns a Denial, which it has
	// recorded, that is not forwarded, and the exchange ends.
	Sent(b []byte) *Denial
	// Trailer is called with the trailers of a request, which are never forwarded. If it returns a Denial, which it
	// has recorded, the exchange ends before the request has.
	Trailer(h http.Header) *Denial
	// Fill changes the request just before it is forwarded: it puts secrets in. It may read the body, and replace it. If
	// it returns a Denial, which it has recorded, the request is not forwarded. A body in place of another may return a
	// Denial as an error, which ends the exchange.
	Fill(r *http.Request) *Denial
	// Clean removes secrets from the headers or trailers of an answer, before they are passed on.
	Clean(h http.Header)
	// Search returns a reader of an answer's body that removes secrets without changing its length, or nil if the body
	// may be passed on as it is. h is the head of the answer. If it returns a Denial, which it has recorded, the answer is
	// not passed on. The reader is closed if it is an io.Closer.
	Search(body io.Reader, h http.Header) (io.Reader, *Denial)
	// End records the end. status is the server's; 0 means that there was no response, for the given reason.
	End(status int, reason string)
}

// Options configures Serve. All fields are required, except Name or Names, and Roots.
type Options struct {
	Inside  net.Conn // to the sandbox, unread
	Outside net.Conn // to the server, unused
	// Name is the allowed server name if the connection starts with a ClientHello. If it is zero, the connection is
	// not TLS, and Names are those that a request may be for.
	Name  policy.Host
	Names []policy.Host
	Port  uint16 // of the server

	Authority *Authority
	Roots     *x509.CertPool // nil uses those of the host
	Judge     Judge
	Now       func() time.Time
	Patience  time.Duration // timeout of handshakes, and of a head that has started
}

// conn is a connection that is served.
type conn struct {
	Options
	in     *framed // nil with HTTP/2
	out    *http.ClientConn
	made   atomic.Bool // Outside was handed out
	beyond atomic.Bool // a WebSocket was requested: what follows is not parsed

	mu       sync.Mutex
	over     bool           // no new request may start; guarded by mu
	requests sync.WaitGroup // Add with mu
}

// head2List is the maximum head of a request over HTTP/2 as net/http counts it: with 32 bytes for each of ten
// headers.
const head2List = limit.Head2Bytes + 10*32

// Serve forwards requests until either side ends the connection, and closes both. All its goroutines have ended when
// it returns. It returns an error if the connection ended before its first request.
func Serve(ctx context.Context, o Options) error {
	defer o.Inside.Close()
	defer o.Outside.Close()
	c := &conn{Options: o}
	in, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.out.Close() }()
	var own sync.WaitGroup
	defer own.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	l := &listener{conn: in, closed: make(chan struct{})}
	var spoken http.Protocols
	_, h2 := in.(*watched)
	spoken.SetHTTP1(!h2)
	spoken.SetUnencryptedHTTP2(h2) // TLS is terminated already
	srv := &http.Server{
		Handler: c, Protocols: &spoken, ReadHeaderTimeout: o.Patience, MaxHeaderBytes: limit.HeadBytes,
		DisableGeneralOptionsHandler: true,
		// errors about the sandbox's input; the Judge reports them
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: limit.Streams, MaxReadFrameSize: limit.FrameBytes,
			MaxReceiveBufferPerStream: limit.StreamBuffer, MaxReceiveBufferPerConnection: limit.StreamsBuffer,
		},
	}
	if h2 {
		srv.MaxHeaderBytes = limit.Head2Bytes
	}
	over := make(chan struct{})
	srv.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed || s == http.StateHijacked { // reached once by either
			close(over)
			_ = l.Close()
		}
	}
	// The inside connection ends when the outside one has, after requests in progress.
	gone := make(chan struct{})
	var once sync.Once
	c.out.SetStateHook(func(out *http.ClientConn) {
		if out.Err() != nil {
			once.Do(func() { close(gone) })
		}
	})
	own.Go(func() {
		select {
		case <-gone:
			_ = srv.Shutdown(ctx)
		case <-ctx.Done():
		}
		<-ctx.Done()
		c.Inside.Close()
		c.Outside.Close()
	})
	_ = srv.Serve(l) // ends with the connection, or by Shutdown, perhaps before it started
	if l.given {
		<-over
	}
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.requests.Wait()
	return nil
}

// open prepares both connections for requests.
func (c *conn) open(ctx context.Context) (in net.Conn, err error) {
	scheme, outside := "http", c.Outside
	in = c.Inside
	if !c.Name.IsZero() {
		scheme = "https"
		if in, outside, err = c.handshake(ctx); err != nil {
			return nil, err
		}
	}
	give := func(context.Context, string, string) (net.Conn, error) {
		if c.made.Swap(true) {
			return nil, errors.New("the connection was used")
		}
		return outside, nil
	}
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	t := &http.Transport{
		DialContext: give, DialTLSContext: give, Protocols: &both, DisableCompression: true,
		MaxResponseHeaderBytes: limit.HeadBytes, ExpectContinueTimeout: time.Second,
		HTTP2: &http.HTTP2Config{StrictMaxConcurrentRequests: true, MaxReceiveBufferPerStream: limit.StreamBuffer,
			MaxReceiveBufferPerConnection: limit.StreamsBuffer},
	}
	if c.out, err = t.NewClientConn(ctx, scheme, c.place()); err != nil {
		return nil, fmt.Errorf("the server does not speak HTTP: %w", err)
	}
	if x, ok := in.(*tls.Conn); ok && x.ConnectionState().NegotiatedProtocol == "h2" {
		return newWatched(in, c.host, c.Judge.Deny), nil
	}
	c.in = newFramed(in, func(err error) { c.Judge.Deny(Request{Host: c.Name}, err.Error()) })
	return c.in, nil
}

// place stands for the server in URLs, of which only the path is sent.
func (c *conn) place() string { return "server:" + strconv.Itoa(int(c.Port)) }

// handshake terminates TLS. It completes the server's handshake first, within the sandbox's, to offer the sandbox the
// same protocol, and nothing if the server cannot be trusted.
func (c *conn) handshake(ctx context.Context) (in, out net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	var outside *tls.Conn
	var refused error
	answer := func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if h.ServerName != c.Name.String() && !sameHost(h.ServerName, c.Name) {
			refused = errors.New("the ClientHello has a different server name")
			return nil, refused
		}
		var offer []string
		for _, p := range h.SupportedProtos {
			if p == "h2" || p == "http/1.1" {
				offer = append(offer, p)
			}
		}
		if len(h.SupportedProtos) > 0 && len(offer) == 0 {
			refused = errors.New("the ClientHello offers no version of HTTP that can be inspected")
			return nil, refused
		}
		outside = tls.Client(c.Outside, &tls.Config{
			ServerName: c.Name.String(), RootCAs: c.Roots, NextProtos: offer, MinVersion: tls.VersionTLS12, Time: c.Now,
		})
		if err := outside.HandshakeContext(ctx); err != nil {
			refused = fmt.Errorf("TLS with the server failed: %w", err)
			return nil, refused
		}
		proto := outside.ConnectionState().NegotiatedProtocol
		if proto == "" {
			proto = "http/1.1"
		}
		cert, err := c.Authority.certify(c.Name, c.Now())
		if err != nil {
			refused = err
			return nil, err
		}
		return &tls.Config{
			Certificates: []tls.Certificate{*cert}, NextProtos: []string{proto}, MinVersion: tls.VersionTLS12,
			SessionTicketsDisabled: true, Time: c.Now,
		}, nil
	}
	inside := tls.Server(c.Inside, &tls.Config{GetConfigForClient: answer, MinVersion: tls.VersionTLS12})
	switch err := inside.HandshakeContext(ctx); {
	case refused != nil:
		return nil, nil, refused
	case err != nil:
		return nil, nil, fmt.Errorf("TLS with the sandbox failed; does the program trust the gate's CA? %w", err)
	}
	return inside, outside, nil
}

// sameHost reports whether s names h.
func sameHost(s string, h policy.Host) bool {
	got, err := policy.ParseHost(s)
	return err == nil && got == h && s[len(s)-1] != '.'
}

// begin registers a request, and reports whether it may continue.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.requests.Add(1)
	}
	return !c.over
}

// host returns the name of the connection that a Host header has; the zero Host if it is not one of them.
func (c *conn) host(s string) policy.Host {
	if strings.ContainsAny(s, "[]") { // only around an IPv6 address (RFC 3986, 3.2.2), which is not a name
		return policy.Host{}
	}
	name := s
	if h, port, err := net.SplitHostPort(s); err == nil {
		if name = h; port != strconv.Itoa(int(c.Port)) {
			return policy.Host{}
		}
	}
	h, err := policy.ParseHost(name)
	if err != nil || name[len(name)-1] == '.' {
		return policy.Host{}
	}
	if !c.Name.IsZero() && h == c.Name || c.Name.IsZero() && slices.Contains(c.Names, h) {
		return h
	}
	return policy.Host{}
}

// listener accepts one given connection.
type listener struct {
	conn   net.Conn
	given  bool // used only by Accept, which one goroutine calls
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }
