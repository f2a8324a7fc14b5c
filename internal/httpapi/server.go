package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Options configures a Server.
type Options struct {
	Roles
	// Status returns the state of the daemon; the server fills in the numbers of sandboxes.
	Status func() wire.DaemonStatus
	// Ready returns why the daemon should receive no requests, with kind Unavailable and a text for callers without a
	// token; nil: it always serves.
	Ready func(ctx context.Context) error
	// Sockets opens and closes the sockets of the line protocol; nil: unsupported.
	Sockets Sockets
	// MCP serves the Model Context Protocol, with each caller's own rights; nil: not served.
	MCP http.Handler
	// Tokens creates and revokes tokens; nil: unsupported.
	Tokens Tokens
	// Previews creates links to ports; nil: unsupported.
	Previews Previews
	// Grants adds forks to the limited token that created them; nil: such forks are refused.
	Grants Grants
	// Answers stores answers for repeated requests; nil: an Idempotency-Key is refused.
	Answers Answers
	// Single is the name or ID of a sandbox whose operations are also served without /sandboxes/{name}: /v1/head,
	// /v1/log and so on; "" for none.
	Single string
	// Origins are hosts, in addition to the requested one, whose pages may open terminals.
	Origins []string
	// Admission makes costly requests wait for memory; nil admits all.
	Admission *admission.Gate
	// Base is the context of commands, which outlive their requests.
	Base context.Context
	// Log receives internal errors; nil is slog.Default().
	Log *slog.Logger
}

// Server is the http.Handler of the API. A request needs a principal in its context (see package auth), except
// for the few operations that are open to all.
type Server struct {
	opt    Options
	mux    *http.ServeMux
	active atomic.Int64
	last   atomic.Int64 // unix nanoseconds of the end of the last request

	costs    map[string]int64 // by operation ID; not changed after New
	metrics  *metrics
	replays  replays
	sessions sessions
	document func() []byte // the OpenAPI document
}

// New returns a Server. Every role must be set.
func New(opt Options) *Server {
	if opt.Base == nil {
		opt.Base = context.Background()
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	if opt.Status == nil {
		opt.Status = func() wire.DaemonStatus { return wire.DaemonStatus{} }
	}
	s := &Server{opt: opt, mux: http.NewServeMux(), costs: costs(), metrics: newMetrics()}
	s.last.Store(time.Now().UnixNano())
	api := s.newAPI()
	s.add(api)
	tidy(api.OpenAPI())
	s.document = sync.OnceValue(func() []byte {
		err := describe(api.OpenAPI())
		var b []byte
		if err == nil {
			b, err = json.Marshal(api.OpenAPI())
		}
		if err != nil {
			s.opt.Log.Error("cannot generate the OpenAPI document", "err", err)
		}
		return b
	})
	if opt.MCP != nil {
		s.mux.Handle("/mcp", opt.MCP)
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, fault.New(fault.NotFound, "unknown operation %s %s", r.Method, r.URL.Path).
			WithHint("client and daemon may be of different versions; run: coppice system version"))
	})
	return s
}

// add registers all operations.
func (s *Server) add(api huma.API) {
	for _, add := range []func(huma.API){
		s.addDaemon, s.addTokens, s.addDocs, s.addSandboxes, s.addHistory, s.addExec, s.addSessions, s.addProcesses,
		s.addPorts, s.addNet, s.addGrants, s.addGit, s.addProposals, s.addTravel, s.addLedger, s.addFiles, s.addEvents,
	} {
		add(api)
	}
}

// Active returns the number of requests and execs in progress, and when the last one ended.
func (s *Server) Active() (n int, last time.Time) {
	return int(s.active.Load()), time.Unix(0, s.last.Load())
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.active.Add(1)
	defer func() {
		s.last.Store(time.Now().UnixNano())
		s.active.Add(-1)
	}()
	r = s.single(r)
	m := &meter{ResponseWriter: w, bytes: &s.metrics.bytes}
	began := time.Now()
	defer func() { s.metrics.count(r.Pattern, m.code(), time.Since(began)) }()
	s.mux.ServeHTTP(m, r)
}

// route adds an operation to the metrics.
func (s *Server) route(op *huma.Operation) {
	s.metrics.add(op.Method+" "+op.Path, op.Metadata[metaStream] != nil)
}

// single rewrites a path without /sandboxes/{name} to the sandbox of Options.Single.
func (s *Server) single(r *http.Request) *http.Request {
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/v1/")
	if s.opt.Single == "" || !ok {
		return r
	}
	if _, pattern := s.mux.Handler(r); pattern != "/" && rest != "events" && rest != "verify" {
		return r
	}
	raw := "/v1/sandboxes/" + url.PathEscape(s.opt.Single) + "/" + rest
	path, err := url.PathUnescape(raw)
	if err != nil {
		return r
	}
	u := *r.URL
	u.Path, u.RawPath = path, raw
	r = r.WithContext(r.Context())
	r.URL = &u
	return r
}

func noSockets() error {
	return fault.New(fault.Unsupported, "this daemon does not serve the line protocol")
}
