package inspect

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/coppice-dev/coppice/internal/limit"
)

// overrides are headers that frameworks use in place of the request's method or path. Many treat _ in a name like -
// (RFC 3875, 4.1.18).
var overrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url",
	"X-Rewrite-Url"}

// alwaysDenied returns why a request is denied under any policy, or "".
func (c *conn) alwaysDenied(r *http.Request, q *Request) string {
	switch {
	case r.Method == http.MethodConnect:
		return string(errConnect)
	case !token(r.Method):
		return string(errHead)
	case checkTarget(r.RequestURI) != nil:
		return checkTarget(r.RequestURI).Error()
	case r.URL.RequestURI() != r.RequestURI:
		return string(errEscape)
	case q.Host.IsZero():
		return "the request is for another host than the connection"
	}
	if h := r.Header["Host"]; len(h) > 1 || len(h) == 1 && h[0] != r.Host {
		return string(errHost)
	}
	if up, ok := r.Header["Upgrade"]; ok && (len(up) != 1 || !strings.EqualFold(up[0], "websocket")) {
		return string(errUpgrade)
	}
	for h := range r.Header {
		for _, name := range overrides {
			if strings.EqualFold(strings.ReplaceAll(h, "_", "-"), name) {
				return "the header " + name + " would change the meaning of the request"
			}
		}
	}
	return ""
}

// ServeHTTP decides about one request and forwards it.
func (c *conn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.in != nil {
		defer c.in.done()
	}
	if !c.begin() {
		return
	}
	defer c.requests.Done()
	q := Request{Host: c.host(r.Host),
		Size:   headSize(r.Header) + int64(len(r.Method)+len(r.RequestURI)+len(r.Host)) + max(r.ContentLength, 0),
		Header: r.Header}
	q.Method, q.Path, q.Query = r.Method, r.URL.EscapedPath(), r.URL.RawQuery
	if c.beyond.Load() {
		// The refusal, or any other answer, closed the connection. This is a second safeguard.
		c.Judge.Deny(q, string(errUpgrade))
		panic(http.ErrAbortHandler) //nolint:forbidigo // so net/http ends the connection
	}
	_, upgrades := r.Header["Upgrade"]
	c.beyond.Store(upgrades)
	if why := c.alwaysDenied(r, &q); why != "" {
		c.Judge.Deny(q, why)
		refuse(w, r, &Denial{Status: http.StatusForbidden, Reason: why})
		return
	}
	ex, no := c.Judge.Begin(r.Context(), q)
	if no != nil {
		refuse(w, r, no)
		return
	}
	x := &exchange{Exchange: ex, conn: c, in: r, w: w, asked: q}
	defer x.end()
	if no := ex.Spend(q.Size-max(r.ContentLength, 0), 0); no != nil {
		x.no.Store(no)
		refuse(w, r, no)
		return
	}
	x.pass()
}

// exchange is a forwarded request.
type exchange struct {
	Exchange
	conn   *conn
	in     *http.Request
	w      http.ResponseWriter
	asked  Request        // as judged
	reply  *http.Response // the answer; nil before it
	failed string
	no     atomic.Pointer[Denial] // why it ends early
	cut    atomic.Bool            // the sandbox closed its direction before the end of the request body
	before informed
}

func (x *exchange) end() {
	if no := x.no.Load(); no != nil && x.failed == "" {
		x.failed = no.Reason
	}
	var status int
	if x.reply != nil {
		status = x.reply.StatusCode
	}
	x.End(status, x.failed)
}

// pass forwards the request unchanged, and returns the answer.
func (x *exchange) pass() {
	w, r := x.w, x.in
	// The answer may start before the request has ended, as it always may in HTTP/2.
	_ = http.NewResponseController(w).EnableFullDuplex()
	if r.ContentLength != 0 {
		r.Body = &metered{rc: r.Body, x: x, out: true}
	}
	p := httputil.ReverseProxy{
		Rewrite: x.rewrite, ModifyResponse: x.answer, ErrorHandler: x.unanswered, Transport: x,
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
	}
	p.ServeHTTP(w, r)
}

// rewrite makes the forwarded request equal to the one that was decided on. It drops trailers, which were not decided
// on: some servers treat them as headers, and any intermediary may drop them (RFC 9110, 6.5.1).
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	u := p.In.URL
	scheme := "http"
	if !x.conn.Name.IsZero() {
		scheme = "https"
	}
	p.Out.URL = &url.URL{Scheme: scheme, Host: x.conn.place(), Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery,
		ForceQuery: u.ForceQuery}
	p.Out.Host = x.asked.Host.String() // as it was judged, not as it was written
	if _, port, err := net.SplitHostPort(p.In.Host); err == nil {
		p.Out.Host = net.JoinHostPort(p.Out.Host, port)
	}
	p.Out.Trailer = nil
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[name]; ok {
			p.Out.Header[name] = v
		}
	}
	_ = x.refused(x.Fill(p.Out)) // RoundTrip then fails
	if _, same := p.Out.Body.(*metered); !same && p.Out.Body != nil && p.Out.Body != http.NoBody {
		p.Out.Body = filled{p.Out.Body, x}
	}
}

// filled is the body of a request with its secrets.
type filled struct {
	io.ReadCloser
	x *exchange
}

// Read ends the exchange if the body must not be forwarded further.
func (f filled) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if no := (*Denial)(nil); errors.As(err, &no) {
		_ = f.x.refused(no)
	}
	return n, err
}

// unanswered ends an exchange without an answer.
func (x *exchange) unanswered(w http.ResponseWriter, r *http.Request, err error) {
	if no := x.no.Load(); no != nil && !x.before.end() {
		refuse(w, r, no)
		return
	}
	x.failed = "no answer: " + err.Error()
	panic(http.ErrAbortHandler) //nolint:forbidigo // so net/http ends the connection, as it would end without a gate
}

// metered counts bytes before they are forwarded.
type metered struct {
	rc     io.ReadCloser
	x      *exchange
	out    bool        // to the server
	closed atomic.Bool // by net/http, which reads no more from it
}

func (m *metered) Read(p []byte) (int, error) {
	if m.out { // net/http reads up to half a megabyte ahead
		p = p[:min(len(p), limit.FrameBytes)]
	}
	n, err := m.rc.Read(p)
	if n > 0 {
		if no := m.count(n, m.out); no != nil {
			return 0, no
		}
		if m.out {
			if no := m.refused(m.x.Sent(p[:n])); no != nil {
				return 0, no
			}
		}
	}
	if m.out && err != nil && !errors.Is(err, io.EOF) && !m.closed.Load() {
		m.x.cut.Store(true)
	}
	if m.out && errors.Is(err, io.EOF) && len(m.x.in.Trailer) > 0 { // the trailer is complete now
		if no := m.refused(m.x.Trailer(m.x.in.Trailer)); no != nil {
			return 0, no
		}
	}
	if !m.out && errors.Is(err, io.EOF) {
		if no := m.x.after(); no != nil {
			return 0, no
		}
	}
	return n, err
}

func (m *metered) count(n int, out bool) error {
	if out {
		return m.refused(m.x.Spend(int64(n), 0))
	}
	return m.refused(m.x.Spend(0, int64(n)))
}

func (m *metered) refused(no *Denial) error { return m.x.refused(no) }

func (m *metered) Close() error {
	m.closed.Store(true)
	return m.rc.Close()
}

// tunnel is the server's side of a WebSocket.
type tunnel struct {
	*metered
	w io.Writer
}

func (t *tunnel) Write(p []byte) (int, error) {
	if err := t.count(len(p), true); err != nil {
		return 0, err
	}
	if err := t.refused(t.x.Sent(p)); err != nil {
		return 0, err
	}
	return t.w.Write(p)
}

// headSize returns the number of bytes of headers.
func headSize(h http.Header) (n int64) {
	for k, vs := range h {
		for _, v := range vs {
			n += int64(len(k) + len(v) + 4)
		}
	}
	return n
}

// refuse answers a request that is not forwarded, with an explanation for people inside.
func refuse(w http.ResponseWriter, r *http.Request, d *Denial) {
	h := w.Header()
	for k := range h {
		delete(h, k)
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if _, ok := r.Header["Upgrade"]; ok {
		h.Set("Connection", "close") // what follows was not read as requests
	}
	w.WriteHeader(d.Status)
	fmt.Fprintf(w, "coppice: the sandbox's gate refused this request\nrequest: %s %q\nreason: %s\n", r.Method,
		r.Host+r.URL.EscapedPath(), d.Reason)
	if d.Rule != "" {
		fmt.Fprintf(w, "rule: %s\n", d.Rule)
	}
	if d.Hint != "" {
		fmt.Fprintf(w, "hint: %s\n", d.Hint)
	}
}
