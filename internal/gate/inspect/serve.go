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

// Request is what a Judge is asked about.
type Request struct {
	Host policy.Host
	policy.HTTPRequest
	// Size is how many bytes the request has in all, as far as it says so itself.
	Size int64
	// Header is what its head has; the Judge does not change it.
	Header http.Header
}

// Denial is why a request is not passed on, for the sandbox to read.
type Denial struct {
	Status             int // of the answer
	Rule, Reason, Hint string
}

// Error gives the reason.
func (d *Denial) Error() string { return d.Reason }

// Judge decides on requests, and is told what becomes of them. Its methods are called
// from several goroutines, and must not wait for the sandbox or the network.
type Judge interface {
	// Begin decides on a request before anything of it goes out. It gives an Exchange,
	// or a Denial, which it has told.
	Begin(Request) (Exchange, *Denial)
	// Deny tells of what is denied whatever the policy says. The zero Request is of one
	// that was not understood.
	Deny(q Request, reason string)
}

// Exchange is a request that was allowed.
type Exchange interface {
	// Spend counts bytes before they are passed on in either direction: heads, informational
	// responses, bodies, and trailers of answers. If it returns a Denial, which it has
	// reported, they are not passed on, and the exchange ends.
	Spend(out, in int64) *Denial
	// Sent is given what is sent after the head, before it goes out. With a Denial, which
	// it has told, that does not, and the exchange ends.
	Sent(b []byte) *Denial
	// Trailer is given what a request has after its body, which goes nowhere. With a
	// Denial, which it has told, the exchange ends before the request has.
	Trailer(h http.Header) *Denial
	// End tells of the end. The status is the server's answer; 0 is none, for a reason.
	End(status int, reason string)
}

// Options are what Serve needs. All of them have to be given, but for Name or Names and
// Roots.
type Options struct {
	Inside  net.Conn // to the sandbox; what it sends, from its first byte on
	Outside net.Conn // to the server, which has sent and been sent nothing
	// Name is what a ClientHello that begins the connection was allowed for. Without it
	// the connection is not TLS, and Names are those that a request may be for.
	Name  policy.Host
	Names []policy.Host
	Port  uint16 // of the server

	Authority *Authority
	Roots     *x509.CertPool // nil is those of the host
	Judge     Judge
	Now       func() time.Time
	Patience  time.Duration // with handshakes, and with a head that has begun
}

// conn is a connection that is served.
type conn struct {
	Options
	in     *framed // nil with HTTP/2
	out    *http.ClientConn
	made   atomic.Bool // Outside was handed out
	beyond atomic.Bool // a WebSocket was asked for: what follows is read by nobody, and no request

	mu       sync.Mutex
	over     bool           // guarded by mu: no request begins any more
	requests sync.WaitGroup // Add with mu
}

// head2List is the head of a request by HTTP/2 as net/http takes it: with 32 bytes for
// each of ten headers.
const head2List = limit.Head2Bytes + 10*32

// Serve passes requests on until one of both sides ends the connection, and closes
// both. No goroutine of its own is left when it returns. It gives an error when the
// connection did not come as far as a request, and why.
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
	spoken.SetUnencryptedHTTP2(h2) // TLS ended before
	srv := &http.Server{
		Handler: c, Protocols: &spoken, ReadHeaderTimeout: o.Patience, MaxHeaderBytes: limit.HeadBytes,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(io.Discard, "", 0), // of what the sandbox sends; the Judge tells
		BaseContext:                  func(net.Listener) context.Context { return ctx },
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
		if s == http.StateClosed || s == http.StateHijacked { // one of both, once
			close(over)
			_ = l.Close()
		}
	}
	// The connection inside ends when the one outside has, after what is underway.
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
	_ = srv.Serve(l) // ends with the connection, or by Shutdown, perhaps before it began
	if l.given {
		<-over
	}
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.requests.Wait()
	return nil
}

// open makes the connections to both sides ready for requests.
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

// place stands for the server in URLs, of which no more than the path is sent.
func (c *conn) place() string { return "server:" + strconv.Itoa(int(c.Port)) }

// handshake ends TLS. The server's comes first, within the sandbox's: what it speaks is
// offered to the sandbox, and nothing if it cannot be trusted.
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

// begin takes a request on, and reports whether it may go on.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.requests.Add(1)
	}
	return !c.over
}

// host reads which of the names of the connection a Host header has; the zero Host is
// none.
func (c *conn) host(s string) policy.Host {
	if strings.ContainsAny(s, "[]") { // around an IPv6 address alone (RFC 3986, 3.2.2), which is no name
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

// listener gives one connection.
type listener struct {
	conn   net.Conn
	given  bool // by Accept alone, which one goroutine calls
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
