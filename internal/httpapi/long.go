package httpapi

import (
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Between two progress lines of one phase lies at least this much time.
const progressEvery = 100 * time.Millisecond

const (
	ndjson    = "application/x-ndjson"
	errorTail = "Coppice-Error" // trailer: an error that came after the body had begun, as JSON
)

// stream writes the lines of a long operation. Nothing is sent before the first
// line, so an early error is a plain problem document.
type stream struct {
	w http.ResponseWriter

	mu    sync.Mutex
	begun bool      // guarded by mu
	ended bool      // guarded by mu
	phase string    // of the last progress line; guarded by mu
	when  time.Time // of the last progress line; guarded by mu
}

func (s *stream) progress(p wire.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.ended || p.Note == "" && p.Phase == s.phase && now.Sub(s.when) < progressEvery {
		return
	}
	s.phase, s.when = p.Phase, now
	s.line(wire.Event{Progress: &p})
}

func (s *stream) line(ev wire.Event) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", ndjson)
		s.w.WriteHeader(http.StatusOK)
	}
	b, err := json.Marshal(ev)
	if err != nil {
		b, _ = json.Marshal(wire.Event{Error: &wire.Error{Kind: string(fault.Internal), Message: "encode the answer: " + err.Error()}})
	}
	_, _ = s.w.Write(append(b, '\n')) // the client may be gone; the request's context tells the engine
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
}

// long answers with a stream of events when the client accepts one, else with
// the result alone.
func (s *Server) long(fn func(*http.Request, func(wire.Progress)) (any, error)) http.HandlerFunc {
	return s.longStatus(http.StatusOK, fn)
}

func (s *Server) longStatus(code int, fn func(*http.Request, func(wire.Progress)) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept"), ndjson) {
			s.plain(code, func(r *http.Request) (any, error) { return fn(r, func(wire.Progress) {}) })(w, r)
			return
		}
		st := &stream{w: w}
		// A body may still be coming while progress lines go out.
		_ = http.NewResponseController(w).EnableFullDuplex()
		v, err := fn(r, st.progress)
		st.mu.Lock()
		defer st.mu.Unlock()
		st.ended = true
		switch {
		case err != nil && !st.begun:
			s.fail(w, r, err)
		case err != nil:
			e := s.wireError(r, err)
			st.line(wire.Event{Error: &e})
		default:
			st.line(wire.Event{Result: v})
		}
	}
}

// create takes JSON alone, or a form with the parts "request" and "tar".
func (s *Server) create() http.HandlerFunc {
	return s.longStatus(http.StatusCreated, func(r *http.Request, progress func(wire.Progress)) (any, error) {
		var req wire.CreateRequest
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if kind != "multipart/form-data" {
			if err := decode(r, &req); err != nil {
				return nil, err
			}
			if req.From.Kind == wire.SourceTar {
				return nil, fault.New(fault.Invalid, "create from an archive without one").
					WithHint("send multipart/form-data with the parts \"request\" (JSON) and \"tar\"")
			}
			return s.opt.Engine.Create(r.Context(), req, progress)
		}
		form, err := r.MultipartReader()
		if err != nil {
			return nil, fault.New(fault.Invalid, "read the form").Because(err)
		}
		for {
			part, err := form.NextPart()
			if err != nil {
				return nil, fault.New(fault.Invalid, "read the form up to its part \"tar\"").Because(err)
			}
			switch part.FormName() {
			case "request":
				if err := decodeFrom(part, &req); err != nil {
					return nil, err
				}
			case "tar":
				if req.From.Kind == "" {
					req.From.Kind = wire.SourceTar
				}
				req.Tar = part
				return s.opt.Engine.Create(r.Context(), req, progress)
			}
		}
	})
}

// diff answers with a DiffResult, or with unified diffs for patch=true. An error
// in the middle of those is told in the trailer Coppice-Error.
func (s *Server) diff(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	stat, err := boolQuery(r, "stat")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	patch, err := boolQuery(r, "patch")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	req := wire.DiffRequest{A: q.Get("a"), B: q.Get("b"), Paths: q["path"], Stat: stat}
	if req.A == "" {
		req.A = "HEAD"
	}
	if !patch {
		s.plain(http.StatusOK, func(r *http.Request) (any, error) {
			res, err := s.opt.Engine.Diff(r.Context(), r.PathValue("name"), req)
			if res.Changes == nil {
				res.Changes = []wire.Change{}
			}
			return res, err
		})(w, r)
		return
	}
	pw := &patchWriter{w: w}
	err = s.opt.Engine.Patch(r.Context(), r.PathValue("name"), req, pw)
	switch {
	case err == nil:
		pw.begin()
	case !pw.begun:
		s.fail(w, r, err)
	default:
		e := s.wireError(r, err)
		b, _ := json.Marshal(e) // strings
		w.Header().Set(errorTail, string(b))
	}
}

// patchWriter sends the header with the first byte.
type patchWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (p *patchWriter) begin() {
	if p.begun {
		return
	}
	p.begun = true
	p.w.Header().Set("Content-Type", "text/x-diff; charset=utf-8")
	p.w.Header().Set("Trailer", errorTail)
	p.w.WriteHeader(http.StatusOK)
}

func (p *patchWriter) Write(b []byte) (int, error) {
	p.begin()
	return p.w.Write(b)
}
