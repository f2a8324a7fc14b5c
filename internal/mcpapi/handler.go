package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// sessionHeader has the ID of a session, in requests and in the answer that created it.
	sessionHeader = "Mcp-Session-Id"
	mostSessions  = 256
	mostOwn       = 64
	sessionIdle   = 30 * time.Minute
)

// Caller is the sender of a request.
type Caller struct {
	// ID identifies the caller: a session belongs to the caller that started it, and does not exist for others.
	ID string
	// Options are the options for the caller. Their Client must have exactly the caller's rights.
	Options Options
}

// HandlerOptions configures a Handler.
type HandlerOptions struct {
	// Caller returns the sender of a request; it is called for each one.
	Caller func(*http.Request) (Caller, error)
	// Base ends all sessions; nil is context.Background().
	Base context.Context
	// Sessions is the maximum number of sessions of all callers; 0 means 256. Own is that of one caller, so that
	// it cannot exclude others; 0 means 64.
	Sessions, Own int
	// Idle is the time without requests after which a session ends; 0 means 30 minutes.
	Idle time.Duration
	// Log receives errors between client and server; nil is slog.Default().
	Log *slog.Logger
}

// Handler serves MCP over streamable HTTP. It checks neither Host nor Origin: the guard of the listener does.
func Handler(opt HandlerOptions) http.Handler {
	if opt.Base == nil {
		opt.Base = context.Background()
	}
	if opt.Sessions == 0 {
		opt.Sessions = mostSessions
	}
	if opt.Own == 0 {
		opt.Own = mostOwn
	}
	if opt.Idle == 0 {
		opt.Idle = sessionIdle
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	h := &handler{opt: opt, servers: map[string]*served{}}
	h.stream = mcp.NewStreamableHTTPHandler(
		func(r *http.Request) *mcp.Server { m, _ := r.Context().Value(serverKey{}).(*mcp.Server); return m },
		&mcp.StreamableHTTPOptions{Logger: quiet(opt.Log), SessionTimeout: opt.Idle, DisableLocalhostProtection: true})
	context.AfterFunc(opt.Base, h.close)
	return h
}

type handler struct {
	opt    HandlerOptions
	stream *mcp.StreamableHTTPHandler
	begun  atomic.Int64 // requests in progress that may create a session

	mu      sync.Mutex
	servers map[string]*served // guarded by mu; by Caller.ID
}

// served is the server of one caller.
type served struct {
	*mcp.Server
	used  time.Time    // last use; guarded by handler.mu
	begun atomic.Int64 // this caller's share of handler.begun
}

// serverKey is the key of the caller's server in a request's context.
type serverKey struct{}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	caller, err := h.opt.Caller(r)
	if err != nil {
		refuse(w, err)
		return
	}
	m := h.server(caller)
	switch id := r.Header.Get(sessionHeader); {
	case id != "" && !has(m.Server, id):
		http.Error(w, "session not found", http.StatusNotFound) // the client then starts a new session
		return
	case id == "":
		begun := sync.OnceFunc(func() { h.begun.Add(-1); m.begun.Add(-1) })
		defer begun()
		w = &firstWord{ResponseWriter: w, said: begun}
		own, all := m.begun.Add(1)+sessions(m.Server), h.begun.Add(1)+h.sessions()
		if own > int64(h.opt.Own) || all > int64(h.opt.Sessions) {
			w.Header().Set("Retry-After", "60")
			refuse(w, fault.New(fault.Unavailable,
				"too many sessions: %d of this client, %d in total", own-1, all-1).
				WithHint("end one with DELETE, or wait until an idle one has expired"))
			return
		}
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), serverKey{}, m.Server))
	defer cancel()
	//nolint:contextcheck // Base is not the request's: a stream of events ends with either
	defer context.AfterFunc(h.opt.Base, cancel)()
	h.stream.ServeHTTP(w, r.WithContext(ctx))
}

// firstWord calls said when the answer begins. If the request has created a session, that exists by then.
type firstWord struct {
	http.ResponseWriter
	said func()
}

func (w *firstWord) WriteHeader(status int) {
	w.said()
	w.ResponseWriter.WriteHeader(status)
}

func (w *firstWord) Write(p []byte) (int, error) {
	w.said()
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which the MCP library requires.
func (w *firstWord) Flush() {
	w.said()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the next write returns the error
}

// server returns the caller's server, which all its sessions share.
func (h *handler) server(c Caller) *served {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.servers[c.ID]
	if m == nil {
		for id, old := range h.servers { // remove the servers of callers without sessions
			if none(old.Server) && time.Since(old.used) > h.opt.Idle {
				delete(h.servers, id)
			}
		}
		m = &served{Server: newServer(c.Options)}
		h.servers[c.ID] = m
	}
	m.used = time.Now()
	return m
}

// sessions returns the number of sessions of all callers.
func (h *handler) sessions() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.servers {
		n += sessions(m.Server)
	}
	return n
}

// sessions counts initialized sessions. A session whose first request is not initialize ends with that request.
func sessions(m *mcp.Server) (n int64) {
	for s := range m.Sessions() {
		if s.InitializeParams() != nil {
			n++
		}
	}
	return n
}

func (h *handler) close() {
	h.mu.Lock()
	var all []*mcp.ServerSession
	for _, m := range h.servers {
		for s := range m.Sessions() {
			all = append(all, s)
		}
	}
	h.mu.Unlock()
	for _, s := range all {
		_ = s.Close() // the client may be gone
	}
}

func has(m *mcp.Server, id string) bool {
	for s := range m.Sessions() {
		if s.ID() == id {
			return true
		}
	}
	return false
}

func none(m *mcp.Server) bool {
	for range m.Sessions() {
		return false
	}
	return true
}

// refuse answers with a problem document.
func refuse(w http.ResponseWriter, err error) {
	var f *fault.Error
	status := http.StatusForbidden
	if errors.As(err, &f) && f.Kind == fault.Unavailable {
		status = http.StatusServiceUnavailable
	}
	b, _ := json.Marshal(wire.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status,
		Detail: err.Error(), Kind: string(fault.KindOf(err)), Hint: fault.HintOf(err)}) // strings and a number
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}
