package ports

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Engine finds and connects to sandboxes.
type Engine interface {
	// Identify returns the ID and the name of a sandbox, by either.
	Identify(ctx context.Context, nameOrID string) (id, name string, err error)
	// DialPort connects to a port that a process of the sandbox listens on.
	DialPort(ctx context.Context, name string, port int) (net.Conn, error)
}

// Listener is the address at which clients reach a Proxy by HTTP.
type Listener struct {
	Addr   netip.AddrPort
	Secure bool // it uses TLS, or is behind a proxy that does
	// Proxied is set behind a proxy, whose address is unknown.
	Proxied bool
}

// Options configures a Proxy.
type Options struct {
	Engine Engine
	// Domain is where links lead, if it is set; else they lead to localhost.
	Domain Domain
	// Home contains the key that links are signed with; it is created on first use.
	Home string
	// Allow returns, for a caller that the listener has authenticated with a bearer token, a function that checks
	// access to the ports of a sandbox, by its ID: nil or an error. For any other caller it returns nil. If Allow is
	// nil, only links give access.
	Allow func(r *http.Request) (may func(sandboxID string) error)
	// Proved is called for each request with a valid link or cookie: its connection is then not anonymous. It may be
	// nil.
	Proved func(ctx context.Context)
	// HeaderTimeout is how long a server in a sandbox may take to send a response header; 0 is two minutes.
	HeaderTimeout time.Duration
	Now           func() time.Time // nil is time.Now
}

const (
	defaultTTL = time.Hour
	maxTTL     = 7 * 24 * time.Hour

	// maxRequestHeader and maxResponseHeader limit forwarded headers, in bytes.
	maxRequestHeader  = 64 << 10
	maxResponseHeader = 256 << 10
)

// Proxy is the http.Handler of all hosts for which Domain.IsPreview is true. It is safe for concurrent use.
type Proxy struct {
	opt   Options
	tr    *http.Transport
	proxy *httputil.ReverseProxy

	served atomic.Pointer[Listener] // nil until ServedAt

	mu  sync.Mutex
	key *Key // guarded by mu; nil until loaded
}

// New returns a Proxy; Options.Engine and Home are required. The caller must call Close when it is no longer used.
func New(opt Options) *Proxy {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.HeaderTimeout == 0 {
		opt.HeaderTimeout = 2 * time.Minute
	}
	p := &Proxy{opt: opt}
	p.tr = &http.Transport{
		DialContext: p.dial,
		// Forward responses unchanged.
		DisableCompression:     true,
		ResponseHeaderTimeout:  opt.HeaderTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        30 * time.Second,
	}
	p.proxy = &httputil.ReverseProxy{
		Rewrite: p.rewrite, ModifyResponse: clean, ErrorHandler: p.failed, Transport: p.tr, FlushInterval: -1,
		// The log is discarded: a server in a sandbox could fill the daemon's.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return p
}

// ServedAt sets the address for links. No links can be created before.
func (p *Proxy) ServedAt(l Listener) { p.served.Store(&l) }

// secret returns the key, which it loads on first use.
func (p *Proxy) secret() (Key, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.key == nil {
		k, err := LoadKey(p.opt.Home)
		if err != nil {
			return k, err
		}
		p.key = &k
	}
	return *p.key, nil
}

// Close closes idle connections.
func (p *Proxy) Close() { p.tr.CloseIdleConnections() }

// Before returns a handler that answers the hosts of ports, and passes other requests to next.
func (p *Proxy) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.opt.Domain.IsPreview(r.Host) {
			p.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Preview creates a link to a port of a sandbox that is valid for ttl; 0 is an hour.
func (p *Proxy) Preview(ctx context.Context, name string, port int, ttl time.Duration) (wire.PreviewResult, error) {
	var none wire.PreviewResult
	if ttl == 0 {
		ttl = defaultTTL
	}
	switch {
	case port < 1 || port > 0xffff:
		return none, fault.New(fault.Invalid, "invalid port %d", port).WithHint("ports are 1 to 65535")
	case ttl < time.Second || ttl > maxTTL:
		return none, fault.New(fault.Invalid, "invalid link lifetime %s", ttl).
			WithHint("use a second to %d hours, for example: coppice net forward NAME %d --expires 1h",
				int(maxTTL.Hours()), port)
	}
	id, name, err := p.opt.Engine.Identify(ctx, name)
	if err != nil {
		return none, err
	}
	l := p.served.Load()
	if l == nil {
		return none, fault.New(fault.Unsupported, "cannot create a link: the daemon has no HTTP address").
			WithHint("restart it with one: coppice serve --stop; coppice serve --http 127.0.0.1:7070; or forward the port to "+
				"this machine: coppice net forward %s %d --forward", name, port)
	}
	key, err := p.secret()
	if err != nil {
		return none, err
	}
	expires := p.opt.Now().Add(ttl).Truncate(time.Second).UTC()
	token := key.sign(claim{use: forLink, sandbox: id, port: port, expires: expires.Unix()})
	d := p.opt.Domain
	u := url.URL{Scheme: scheme(l.Secure), Host: overHost(d.Host(port, name, id), d.portOf(*l), l.Secure), Path: "/",
		RawQuery: param + "=" + token}
	return wire.PreviewResult{URL: u.String(), Expires: expires}, nil
}

func scheme(secure bool) string {
	if secure {
		return "https"
	}
	return "http"
}

// secure reports whether the browser that sent a request uses TLS.
func (p *Proxy) secure(r *http.Request) bool {
	l := p.served.Load()
	return r.TLS != nil || l != nil && l.Secure
}

// ServeHTTP answers one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := p.opt.Domain.ParseHost(r.Host)
	switch {
	case !ok:
		page(w, r, http.StatusBadRequest, "Unknown host",
			"The host name of a port is PORT--NAME-ID, for example "+p.opt.Domain.Host(3000, "box", "0123456789ab")+".",
			"create a link: coppice net forward NAME PORT")
		return
	case forWorker(r):
		page(w, r, http.StatusForbidden, "Service workers are refused", "Previews do not serve service workers: one would "+
			"stay in the browser after a rewind, and answer for the pages of another state.",
			"use the application without its service worker, or forward the port: coppice net forward NAME "+
				strconv.Itoa(t.Port)+" --forward")
		return
	case r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.Path, "/"):
		page(w, r, http.StatusBadRequest, "Unsupported request", "Only requests for a path are forwarded.", "")
		return
	case headerSize(r) > maxRequestHeader:
		page(w, r, http.StatusRequestHeaderFieldsTooLarge, "Too large",
			"The request's header is larger than "+strconv.Itoa(maxRequestHeader>>10)+" KiB.",
			"remove cookies of this host in the browser")
		return
	}
	tokens, rest := takeParam(r.URL.RawQuery)
	key, err := p.secret()
	if err != nil {
		page(w, r, http.StatusInternalServerError, "Not reachable", "The daemon cannot check links.",
			"see the error: coppice net forward NAME PORT")
		return
	}
	a, err := p.admit(r, key, t, tokens)
	if err != nil {
		page(w, r, http.StatusBadGateway, "Not reachable", "The sandbox cannot be found.", "see the daemon's log")
		return
	}
	if a.by != byNothing && p.opt.Proved != nil {
		p.opt.Proved(r.Context())
	}
	switch a.by {
	case byNothing:
		forbid(w, r, a.expired)
	case byLink:
		p.exchange(w, r, key.sign(claim{use: forCookie, sandbox: a.sandbox, port: t.Port, expires: a.expires}),
			a.expires, rest)
	case byCookie:
		// Streams and WebSockets end when their link or cookie expires.
		ctx, cancel := context.WithTimeoutCause(r.Context(), time.Unix(a.expires, 0).Sub(p.opt.Now()), errExpired)
		defer cancel()
		p.pass(w, r.WithContext(ctx), upstream{a.sandbox, t.Port, rest})
	default:
		p.pass(w, r, upstream{a.sandbox, t.Port, rest})
	}
}

// errExpired is the cause that ends requests of an expired link.
var errExpired = errors.New("the link has expired")

// upstream is the destination of a request.
type upstream struct {
	sandbox string // id
	port    int
	query   string // raw, without the parameter of links
}

type upstreamKey struct{}

// pass forwards an admitted request.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, to upstream) {
	p.proxy.ServeHTTP(final{w}, r.WithContext(context.WithValue(r.Context(), upstreamKey{}, to)))
}

// exchange sets a cookie for a link, and redirects to the same URL without the token.
func (p *Proxy) exchange(w http.ResponseWriter, r *http.Request, token string, until int64, rest string) {
	secure := p.secure(r)
	expires := time.Unix(until, 0)
	http.SetCookie(w, &http.Cookie{
		Name: param, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: secure,
		Expires: expires.UTC(), MaxAge: max(1, int(expires.Sub(p.opt.Now()).Seconds())),
	})
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	// The host was parsed, so this cannot lead elsewhere, whatever the path.
	to := url.URL{Scheme: scheme(secure), Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: rest}
	h.Set("Location", to.String())
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// rewrite is httputil.ReverseProxy.Rewrite.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	to, _ := pr.In.Context().Value(upstreamKey{}).(upstream)
	out := pr.Out
	// The ID is used instead of the name because idle connections are pooled by it.
	out.URL.Scheme, out.URL.Host, out.URL.RawQuery = "http", net.JoinHostPort(to.sandbox, strconv.Itoa(to.port)), to.query
	out.Host = pr.In.Host
	withoutOurs(out.Header)
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Proto", scheme(p.secure(pr.In)))
}

// dial is http.Transport.DialContext.
func (p *Proxy) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	sandbox, number, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fault.Wrap(err, "connect to %s", addr)
	}
	port, ok := parsePort(number)
	if !ok || sandbox == "" {
		return nil, fault.New(fault.Internal, "connect to %q", addr)
	}
	return p.opt.Engine.DialPort(ctx, sandbox, port)
}

// final is a ResponseWriter that drops informational responses, because clean does not process them.
type final struct{ http.ResponseWriter }

// WriteHeader writes the header of a final response.
func (f final) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols {
		f.ResponseWriter.WriteHeader(code)
	}
}

// Unwrap is for http.ResponseController.
func (f final) Unwrap() http.ResponseWriter { return f.ResponseWriter }
