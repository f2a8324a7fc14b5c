package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// maxJSON is the largest request document, in bytes.
const maxJSON = 4 << 20

// Options configures a Server.
type Options struct {
	Engine Engine
	// Status gives what the daemon knows of itself; the server fills in the
	// numbers of sandboxes.
	Status func() wire.DaemonStatus
	// Base is the context of execs: it outlives their requests.
	Base context.Context
	// Log gets internal errors; nil is slog.Default().
	Log *slog.Logger
}

// Server is the http.Handler of the API.
type Server struct {
	opt    Options
	mux    *http.ServeMux
	active atomic.Int64
	last   atomic.Int64 // unix nanoseconds of the last end of a request
}

// New makes a Server. Engine must be set.
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
	s := &Server{opt: opt, mux: http.NewServeMux()}
	s.last.Store(time.Now().UnixNano())
	s.routes()
	return s
}

// Active gives the number of requests and execs under way, and when the last
// one ended.
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
	s.mux.ServeHTTP(w, r)
}

// reply is what a plain route gives: a value for JSON, or an error.
type reply func(r *http.Request) (any, error)

func (s *Server) get(pattern string, fn reply) { s.mux.HandleFunc(pattern, s.plain(http.StatusOK, fn)) }

func (s *Server) routes() {
	e := s.opt.Engine
	const box = "/v1/sandboxes/{name}"

	s.get("GET /v1/status", func(r *http.Request) (any, error) {
		st := s.opt.Status()
		list, err := e.List(r.Context())
		if err != nil {
			return nil, err
		}
		st.Sandboxes, st.Live = len(list), 0
		for _, sb := range list {
			if sb.State == wire.StateLive {
				st.Live++
			}
		}
		return st, nil
	})
	s.get("GET /v1/probe", func(r *http.Request) (any, error) { return e.Probe(r.Context()) })
	s.mux.HandleFunc("POST /v1/gc", s.long(func(r *http.Request, progress func(wire.Progress)) (any, error) {
		var req wire.GCRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		res, err := e.GC(r.Context(), req, progress)
		if res.Removed == nil {
			res.Removed = []string{}
		}
		return res, err
	}))
	s.mux.HandleFunc("POST /v1/verify", s.long(func(r *http.Request, progress func(wire.Progress)) (any, error) {
		return e.Verify(r.Context(), "", progress)
	}))
	s.mux.HandleFunc("POST "+box+"/verify", s.long(func(r *http.Request, progress func(wire.Progress)) (any, error) {
		return e.Verify(r.Context(), r.PathValue("name"), progress)
	}))

	s.get("GET /v1/sandboxes", func(r *http.Request) (any, error) {
		list, err := e.List(r.Context())
		if list == nil {
			list = []wire.Sandbox{}
		}
		return wire.ListResult{Sandboxes: list}, err
	})
	s.mux.HandleFunc("POST /v1/sandboxes", s.create())
	s.get("GET "+box, func(r *http.Request) (any, error) {
		res, err := e.Status(r.Context(), r.PathValue("name"))
		if res.Enforced == nil {
			res.Enforced = []wire.Enforcement{}
		}
		return res, err
	})
	s.get("DELETE "+box, func(r *http.Request) (any, error) {
		force, err := boolQuery(r, "force")
		if err != nil {
			return nil, err
		}
		names, err := e.Remove(r.Context(), []string{r.PathValue("name")}, force)
		return wire.RemoveResult{Removed: names}, err
	})
	s.get("POST "+box+"/stop", func(r *http.Request) (any, error) { return e.Stop(r.Context(), r.PathValue("name")) })
	s.mux.HandleFunc("POST "+box+"/exec", s.exec)

	s.get("GET "+box+"/head", func(r *http.Request) (any, error) {
		id, err := e.Head(r.Context(), r.PathValue("name"))
		return wire.HeadResult{Head: id}, err
	})
	s.get("GET "+box+"/log", func(r *http.Request) (any, error) { return e.Log(r.Context(), r.PathValue("name")) })
	s.get("GET "+box+"/branches", func(r *http.Request) (any, error) { return e.Branches(r.Context(), r.PathValue("name")) })
	s.get("GET "+box+"/nodes/{ref}", func(r *http.Request) (any, error) {
		res, err := e.Show(r.Context(), r.PathValue("name"), r.PathValue("ref"))
		if res.Changes == nil {
			res.Changes = []wire.Change{}
		}
		return res, err
	})
	s.get("DELETE "+box+"/nodes/{ref}", func(r *http.Request) (any, error) {
		id, err := e.DeleteSnapshot(r.Context(), r.PathValue("name"), r.PathValue("ref"))
		return wire.HeadResult{Head: id}, err
	})
	s.mux.HandleFunc("GET "+box+"/diff", s.diff)

	s.get("POST "+box+"/commit", func(r *http.Request) (any, error) {
		var req wire.CommitRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		return e.Commit(r.Context(), r.PathValue("name"), req.Message)
	})
	s.get("POST "+box+"/checkout", func(r *http.Request) (any, error) {
		var req wire.CheckoutRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		if req.Node == "" {
			return nil, fault.New(fault.Invalid, "checkout without a node").WithHint("give the snapshot to go to as \"node\"")
		}
		return e.Checkout(r.Context(), r.PathValue("name"), req.Node)
	})
	s.get("POST "+box+"/undo", func(r *http.Request) (any, error) {
		var req wire.UndoRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		if req.N < 0 {
			return nil, fault.New(fault.Invalid, "undo of %d snapshots", req.N).WithHint("give a number of 1 or more")
		}
		return e.Undo(r.Context(), r.PathValue("name"), max(1, req.N))
	})
	s.get("POST "+box+"/redo", func(r *http.Request) (any, error) { return e.Redo(r.Context(), r.PathValue("name")) })
	s.mux.HandleFunc("POST "+box+"/fork", s.plain(http.StatusCreated, func(r *http.Request) (any, error) {
		var req wire.ForkRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		if req.N < 0 {
			return nil, fault.New(fault.Invalid, "fork into %d sandboxes", req.N).WithHint("give a number of 1 or more")
		}
		req.N = max(req.N, len(req.Names), 1)
		return e.Fork(r.Context(), r.PathValue("name"), req)
	}))

	s.get("GET "+box+"/tags", func(r *http.Request) (any, error) {
		tags, err := e.Tags(r.Context(), r.PathValue("name"))
		if tags == nil {
			tags = map[string]string{}
		}
		return wire.TagsResult{Tags: tags}, err
	})
	s.get("POST "+box+"/tags", func(r *http.Request) (any, error) {
		var req wire.TagRequest
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		if req.Name == "" {
			return nil, fault.New(fault.Invalid, "tag without a name").WithHint("give the tag as \"name\"")
		}
		return e.SetTag(r.Context(), r.PathValue("name"), req.Name, req.Ref)
	})
	s.mux.HandleFunc("DELETE "+box+"/tags/{tag}", func(w http.ResponseWriter, r *http.Request) {
		if err := e.DeleteTag(r.Context(), r.PathValue("name"), r.PathValue("tag")); err != nil {
			s.fail(w, r, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, fault.New(fault.NotFound, "no operation %s %s", r.Method, r.URL.Path).
			WithHint("client and daemon may be of different versions; run: coppice version"))
	})
}

// plain answers with one JSON document.
func (s *Server) plain(status int, fn reply) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := fn(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		b, err := json.Marshal(v)
		if err != nil {
			s.fail(w, r, fault.Wrap(err, "encode the answer"))
			return
		}
		send(w, status, "application/json", b)
	}
}

func send(w http.ResponseWriter, status int, kind string, b []byte) {
	b = append(b, '\n')
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may be gone; nobody is left to tell
}

// fail answers with a problem document.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := s.problem(r, err)
	b, _ := json.Marshal(p) // strings and a number
	send(w, p.Status, "application/problem+json", b)
}

// problem makes err a problem document, and logs it when it is of no known kind.
func (s *Server) problem(r *http.Request, err error) wire.Problem {
	e := s.wireError(r, err)
	code := status(fault.Kind(e.Kind))
	return wire.Problem{Type: "about:blank", Title: http.StatusText(code), Status: code, Detail: e.Message, Kind: e.Kind, Hint: e.Hint}
}

func (s *Server) wireError(r *http.Request, err error) wire.Error {
	k := fault.KindOf(err)
	hint := fault.HintOf(err)
	if k == fault.Internal {
		s.opt.Log.Error("internal error", "method", r.Method, "path", r.URL.Path, "err", err)
		if hint == "" {
			hint = "this is a bug of coppice; the daemon's log has more"
		}
	}
	return wire.Error{Kind: string(k), Message: err.Error(), Hint: hint}
}

// status is the HTTP status of a kind.
func status(k fault.Kind) int {
	switch k {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Ambiguous, fault.Exists, fault.Conflict:
		return http.StatusConflict
	case fault.Denied:
		return http.StatusForbidden
	case fault.Unsupported:
		return http.StatusNotImplemented
	case fault.NoSpace:
		return http.StatusInsufficientStorage
	case fault.ReadOnly:
		return http.StatusForbidden
	case fault.Unavailable, fault.Cancelled:
		return http.StatusServiceUnavailable
	case fault.Timeout:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// decode reads a JSON request document; an empty body is the zero value.
// Unknown fields are allowed: a newer client may send them.
func decode(r *http.Request, v any) error {
	return decodeFrom(r.Body, v)
}

func decodeFrom(body io.Reader, v any) error {
	b, err := io.ReadAll(io.LimitReader(body, maxJSON+1))
	switch {
	case err != nil:
		return fault.New(fault.Invalid, "read the request").Because(err)
	case len(b) > maxJSON:
		return fault.New(fault.Invalid, "a request of more than %d bytes", maxJSON)
	case len(b) == 0:
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fault.New(fault.Invalid, "the request is not the JSON that is wanted").Because(err)
	}
	return nil
}

func boolQuery(r *http.Request, key string) (bool, error) {
	v := r.URL.Query().Get(key)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fault.New(fault.Invalid, "%s=%q is neither true nor false", key, v)
	}
	return b, nil
}

var errGone = errors.New("the client went away")
