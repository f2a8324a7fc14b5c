package auth

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Options configures a Guard. The zero value requires a token and accepts none.
type Options struct {
	// Tokens checks tokens.
	Tokens *Tokens
	// NoAuth makes every caller the owner if the request is for a name of the daemon and not from a page of
	// another site. Use it on loopback only.
	NoAuth bool
	// TLS means that the listener uses TLS.
	TLS bool
	// BehindProxy means that a trusted proxy is in front: it may terminate TLS, and the last X-Forwarded-For address
	// is the client's.
	BehindProxy bool
	// Hosts are additional names of the listener, besides those of SiteOf.
	Hosts []string
	// PreviewDomain is the parent domain of previews besides localhost; "" is none.
	PreviewDomain string
	// Preview serves the hosts of previews and checks their links. A request with a valid token has its principal,
	// others have none. nil disables previews.
	Preview http.Handler
	Log     *slog.Logger     // nil is slog.Default()
	Now     func() time.Time // nil is time.Now
	Limits  Limits
}

// Limits are the limits of a Guard. A zero field selects the default.
type Limits struct {
	Conns       int           // maximum connections; 4096
	HeaderBytes int           // 32 KiB
	HeaderTime  time.Duration // for TLS and the header of a request; 10 s
	BodyIdle    time.Duration // between two parts of a body; 60 s
	KeepAlive   time.Duration // between two requests; 120 s
	Token       Rate          // requests with one token; 2000 a second, 4000 at once
	Open        Rate          // requests without a token from one address, on open paths but health checks; 50, 100
	Failed      Rate          // wrong or missing tokens from one address; 1 in 3 s, 20
}

// Rate is a maximum rate of events.
type Rate struct {
	PerSecond float64
	Burst     int
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.Conns, 4096)
	orDefault(&l.HeaderBytes, 32<<10)
	orDefault(&l.HeaderTime, 10*time.Second)
	orDefault(&l.BodyIdle, time.Minute)
	orDefault(&l.KeepAlive, 2*time.Minute)
	orDefault(&l.Token, Rate{2000, 4000})
	orDefault(&l.Open, Rate{50, 100})
	orDefault(&l.Failed, Rate{1.0 / 3, 20})
	return l
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// maxKeys bounds each table of addresses and tokens.
const maxKeys = 4096

// Guard is the http.Handler in front of a TCP listener's API. Create one with NewGuard.
type Guard struct {
	next http.Handler
	opt  Options

	tokens, open, failed *buckets
	recent               *recent

	mu    sync.Mutex
	uses  map[string]map[*use]bool // requests in progress, by token; guarded by mu
	drops int                      // number of calls of Drop; guarded by mu
}

// use is a request in progress. It may have hijacked its connection.
type use struct {
	conn   *conn // nil in some tests
	cancel context.CancelFunc
}

// NewGuard returns a guard in front of next.
func NewGuard(next http.Handler, opt Options) *Guard {
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	opt.Limits = opt.Limits.withDefaults()
	return &Guard{next: next, opt: opt, uses: map[string]map[*use]bool{}, recent: newRecent(maxKeys),
		tokens: newBuckets(opt.Limits.Token, maxKeys), open: newBuckets(opt.Limits.Open, maxKeys),
		failed: newBuckets(opt.Limits.Failed, maxKeys)}
}

type (
	connKey  struct{} // *conn
	guardKey struct{} // *Guard, for an open path
)

// Proved marks the connection of a request without a principal as authenticated by other means, such as the token of
// a terminal or a preview, so that crowd keeps it.
func Proved(ctx context.Context) {
	if c, _ := ctx.Value(connKey{}).(*conn); c != nil {
		c.known()
	}
}

// As binds a request to an open path to the token that its ticket was issued for: the request ends when the token
// does. The error has kind Denied if the token has expired or was revoked. If tokenID is "" or ctx has no guard, As has
// no effect.
func As(ctx context.Context, tokenID string) (_ context.Context, done func(), _ error) {
	Proved(ctx)
	g, _ := ctx.Value(guardKey{}).(*Guard)
	if g == nil || tokenID == "" {
		return ctx, func() {}, nil
	}
	if g.opt.Tokens == nil {
		return ctx, nil, errWrong()
	}
	ctx, cancel := context.WithCancel(ctx)
	seen := g.dropped()
	tok, err := g.opt.Tokens.Good(ctx, tokenID)
	if err != nil {
		cancel()
		return ctx, nil, err
	}
	end := g.using(ctx, tok, cancel)
	done = func() { end(); cancel() }
	if g.dropped() != seen { // as in known
		if _, err := g.opt.Tokens.Good(ctx, tokenID); err != nil {
			done()
			return ctx, nil, errWrong()
		}
	}
	return ctx, done, nil
}

// Server returns a server for the guard on a listener of Limit; see Limits.Server.
func (g *Guard) Server() *http.Server { return g.opt.Limits.Server(g, g.opt.Log) }

// Server returns a server with these limits for h, on a listener of Listener. h is a Guard, or answers every caller
// alike. The caller may set TLSConfig. The server uses only HTTP/1.1: streams that share a connection would evade the
// limits.
func (l Limits) Server(h http.Handler, log *slog.Logger) *http.Server {
	l = l.withDefaults()
	var only http.Protocols
	only.SetHTTP1(true)
	return &http.Server{
		Handler: h, Protocols: &only,
		ReadHeaderTimeout: l.HeaderTime, IdleTimeout: l.KeepAlive, MaxHeaderBytes: l.HeaderBytes,
		// "OPTIONS *" is handled like any other request.
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, connOf(c))
		},
		ErrorLog: slog.NewLogLogger(quiet{log.Handler()}, slog.LevelWarn),
	}
}

// quiet drops log messages that any client can cause.
type quiet struct{ slog.Handler }

// Handle logs a record, unless it is one of those.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "http: TLS handshake error") {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// Limit bounds the connections of a listener.
func (g *Guard) Limit(ln net.Listener) net.Listener { return g.opt.Limits.Listener(ln) }

// Listener bounds the connections of a listener by Conns.
func (l Limits) Listener(ln net.Listener) net.Listener {
	return &crowd{Listener: ln, most: l.withDefaults().Conns}
}

// Drop ends requests in progress with a token that was revoked or has expired.
func (g *Guard) Drop(tokenID string) {
	g.mu.Lock()
	g.drops++
	uses := g.uses[tokenID]
	delete(g.uses, tokenID)
	g.mu.Unlock()
	for u := range uses {
		u.end()
	}
}

func (u *use) end() {
	u.cancel()
	if u.conn != nil {
		_ = u.conn.Close() // the client receives no answer
	}
}

// ServeHTTP passes a request to the next handler, or refuses it.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodConnect, http.MethodTrace:
		g.refuse(w, r, http.StatusMethodNotAllowed, 0, fault.New(fault.Invalid, "method %s is not supported", r.Method))
		return
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	switch SiteOf(r.Host, addrOf(local), g.opt.Hosts, g.opt.PreviewDomain) {
	case Foreign:
		g.refuse(w, r, http.StatusMisdirectedRequest, 0,
			fault.New(fault.Denied, "unknown host name %.100q", r.Host).
				WithHint("to accept it, start the daemon with: coppice serve --allow-host NAME"))
		return
	case Preview:
		g.preview(w, r)
		return
	case Own:
	}
	open := isOpen(r.URL.Path)
	if !g.ownPage(r) && (!open || r.Header.Get("Origin") != "") {
		g.refuse(w, r, http.StatusForbidden, 0,
			fault.New(fault.Denied, "requests from pages of another site (%.100q) are not allowed", r.Header.Get("Origin")).
				WithHint("send it from a program, or from a page of this daemon"))
		return
	}
	switch {
	case open:
		g.pass(w, r, Principal{})
	case g.opt.NoAuth:
		g.pass(w, r, Owner())
	default:
		g.known(w, r, g.pass)
	}
}

// isProbe reports whether a path is that of a health check. Their answers are known without work, so they cost no more
// than a refusal, and are not limited: otherwise strangers behind the address of a prober, such as a load balancer's,
// could make the daemon look dead.
func isProbe(p string) bool { return p == "/healthz" || p == "/readyz" }

// isOpen reports whether a path needs no token. Such paths have no data, except the terminals of /v1/attach/, which
// have their own tokens. A handler of an open path gets the zero principal.
func isOpen(p string) bool {
	if p != path.Clean(p) && p != path.Clean(p)+"/" {
		return false
	}
	return p == "/healthz" || p == "/readyz" || p == "/openapi.json" || p == "/docs" || strings.HasPrefix(p, "/docs/") ||
		strings.HasPrefix(p, "/v1/attach/")
}

func (g *Guard) ownPage(r *http.Request) bool {
	scheme := "http"
	switch {
	case g.opt.BehindProxy:
		scheme = ""
	case g.opt.TLS:
		scheme = "https"
	}
	// No browser sends more than one of each.
	if len(r.Header["Origin"]) > 1 || len(r.Header["Sec-Fetch-Site"]) > 1 {
		return false
	}
	return SameOrigin(r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site"), r.Host, scheme)
}

// preview passes a request to Options.Preview. A token of the daemon is verified as usual, and is removed from the
// request. Any other Authorization is the application's.
func (g *Guard) preview(w http.ResponseWriter, r *http.Request) {
	if g.opt.Preview == nil {
		g.refuse(w, r, http.StatusNotFound, 0, fault.New(fault.NotFound, "this daemon does not serve previews"))
		return
	}
	if len(r.Header["Authorization"]) > 1 {
		// The guard and the application could each use a different one.
		g.refuse(w, r, http.StatusBadRequest, 0, fault.New(fault.Invalid, "more than one Authorization header").
			WithHint("send one"))
		return
	}
	if secret, shown := bearer(r); shown && strings.HasPrefix(secret, secretPrefix) {
		g.known(w, r, func(w http.ResponseWriter, r *http.Request, p Principal) {
			r = r.Clone(With(r.Context(), p))
			r.Header.Del("Authorization")
			g.show(w, r)
		})
		return
	}
	g.show(w, r)
}

func (g *Guard) show(w http.ResponseWriter, r *http.Request) {
	done := pace(w, r, g.opt.Limits.BodyIdle)
	defer done()
	g.opt.Preview.ServeHTTP(w, r)
}

// known passes a request with a valid token.
func (g *Guard) known(
	w http.ResponseWriter, r *http.Request, pass func(http.ResponseWriter, *http.Request, Principal),
) {
	from, now := g.remote(r), g.opt.Now()
	secret, shown := bearer(r)
	// After too many guesses an address is locked out, except for recently valid secrets.
	if wait := g.failed.spent(from, now); wait > 0 && (!shown || !g.recent.has(HashOf(secret))) {
		g.refuse(w, r, http.StatusTooManyRequests, wait,
			fault.New(fault.Unavailable, "too many invalid tokens from this address").
				WithHint("wait for the number of seconds in the Retry-After header"))
		return
	}
	seen := g.dropped()
	tok, err := g.verify(r.Context(), secret, shown)
	switch {
	case err != nil && r.Context().Err() != nil:
		return // the client has disconnected
	case fault.Is(err, fault.Denied):
		g.failed.take(from, now)
		g.refuse(w, r, http.StatusUnauthorized, 0, err)
		return
	case err != nil:
		g.opt.Log.Error("could not check a token", "err", err)
		g.refuse(w, r, http.StatusServiceUnavailable, 0, fault.New(fault.Unavailable, "tokens cannot be checked at the "+
			"moment").
			WithHint("see the daemon's log"))
		return
	}
	g.recent.add(tok.Hash)
	if wait := g.tokens.take(tok.ID, now); wait > 0 {
		g.refuse(w, r, http.StatusTooManyRequests, wait, fault.New(fault.Unavailable, "too many requests with this token").
			WithHint("wait for the number of seconds in the Retry-After header"))
		return
	}
	if err := g.opt.Tokens.note(r.Context(), tok); err != nil {
		// A full disk must not lock out clients.
		g.opt.Log.Warn("could not record the last use of a token", "token", tok.ID, "err", err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer g.using(ctx, tok, cancel)()
	if g.dropped() != seen {
		// A token was revoked after the verification, and perhaps before this request was registered.
		if tok, err = g.verify(ctx, secret, shown); err != nil {
			g.refuse(w, r, http.StatusUnauthorized, 0, errWrong())
			return
		}
	}
	pass(w, r.WithContext(ctx), tok.Principal())
}

func (g *Guard) dropped() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drops
}

func (g *Guard) verify(ctx context.Context, secret string, shown bool) (Token, error) {
	if !shown {
		return Token{}, fault.New(fault.Denied, "a token is required").
			WithHint("create one: coppice token create NAME; and set it as COPPICE_TOKEN, or send " +
				"it as: Authorization: Bearer TOKEN")
	}
	if g.opt.Tokens == nil {
		return Token{}, errWrong()
	}
	return g.opt.Tokens.Verify(ctx, secret)
}

// bearer returns the secret of a request. Two headers count as none.
func bearer(r *http.Request) (secret string, shown bool) {
	h := r.Header["Authorization"]
	if len(h) != 1 {
		return "", false
	}
	kind, secret, ok := strings.Cut(h[0], " ")
	return strings.TrimSpace(secret), ok && strings.EqualFold(kind, "Bearer")
}

// pass serves a request.
func (g *Guard) pass(w http.ResponseWriter, r *http.Request, p Principal) {
	if p.Scope < Read && !isProbe(r.URL.Path) {
		if wait := g.open.take(g.remote(r), g.opt.Now()); wait > 0 {
			g.refuse(w, r, http.StatusTooManyRequests, wait, fault.New(fault.Unavailable, "too many requests from this address").
				WithHint("wait for the number of seconds in the Retry-After header"))
			return
		}
	}
	ctx := With(r.Context(), p)
	if p.Scope < Read {
		ctx = context.WithValue(ctx, guardKey{}, g)
	}
	// Handlers must not see, log or forward the secret.
	r = r.Clone(ctx)
	r.Header.Del("Authorization")
	done := pace(w, r, g.opt.Limits.BodyIdle)
	defer done()
	g.next.ServeHTTP(w, r)
}

// using registers a request in progress, so that it ends with its token.
func (g *Guard) using(ctx context.Context, tok Token, cancel context.CancelFunc) (done func()) {
	u := &use{cancel: cancel}
	u.conn, _ = ctx.Value(connKey{}).(*conn)
	Proved(ctx)
	g.mu.Lock()
	if g.uses[tok.ID] == nil {
		g.uses[tok.ID] = map[*use]bool{}
	}
	g.uses[tok.ID][u] = true
	g.mu.Unlock()
	expiry := func() bool { return false }
	if !tok.Expires.IsZero() {
		expiry = time.AfterFunc(tok.Expires.Sub(g.opt.Now()), u.end).Stop
	}
	return func() {
		expiry()
		g.mu.Lock()
		delete(g.uses[tok.ID], u)
		if len(g.uses[tok.ID]) == 0 {
			delete(g.uses, tok.ID)
		}
		g.mu.Unlock()
	}
}

// remote returns the source of a request: an IPv4 address, or the /64 of an IPv6 address, which belongs to one
// network.
func (g *Guard) remote(r *http.Request) string {
	var a netip.Addr
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		a = ap.Addr()
	}
	if f := r.Header["X-Forwarded-For"]; g.opt.BehindProxy && len(f) > 0 {
		last := f[len(f)-1]
		if p, err := netip.ParseAddr(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])); err == nil {
			a = p
		}
	}
	a = a.Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64) // 64 is a valid length for an IPv6 address
		return p.String()
	}
	return a.String()
}

func addrOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr()
	}
	return netip.Addr{}
}

// refuse answers with a problem document and closes the connection: the rest of its input is not read.
func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, code int, wait time.Duration, err error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftover))
	h := w.Header()
	if code == http.StatusUnauthorized {
		challenge := `Bearer realm="coppice"`
		if _, shown := bearer(r); shown {
			challenge += `, error="invalid_token"`
		}
		h.Set("WWW-Authenticate", challenge)
	}
	if wait > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	b, _ := json.Marshal(wire.Problem{Type: "about:blank", Title: http.StatusText(code), Status: code,
		Detail: err.Error(), Kind: string(fault.KindOf(err)), Hint: fault.HintOf(err)}) // strings and a number
	h.Set("Connection", "close")
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(append(b, '\n')) // the client may be gone
	}
}
