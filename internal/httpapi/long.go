package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// progressEvery is the minimum time between two progress lines of one phase.
const progressEvery = 100 * time.Millisecond

const errorTail = "Coppice-Error" // trailer: an error after the first byte of the body, as JSON

// stream writes the lines of a long operation. It sends nothing before the first line, so that an early error is
// a problem document.
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
	if s.ended || p.Note == "" && p.Branch == nil && p.Phase == s.phase && now.Sub(s.when) < progressEvery {
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
		b, _ = json.Marshal(
			wire.Event{Error: &wire.Error{Kind: string(fault.Internal), Message: "encode the response: " + err.Error()}})
	}
	_, _ = s.w.Write(append(b, '\n')) // the client may be gone; the request's context then ends
	_ = http.NewResponseController(s.w).Flush()
}

// long registers an operation that answers with a stream of events if the client accepts one, else with only the
// result.
func long[I, O any](
	s *Server, api huma.API, op huma.Operation,
	fn func(ctx context.Context, in *I, progress func(wire.Progress)) (O, error),
) {
	answers(&op, op.DefaultStatus, asJSON, "the result", schemaOf[O](api))
	answers(&op, http.StatusOK, ndjson,
		"one Event per line, if the client accepts them: progress, then the result or an error", schemaOf[wire.Event](api))
	raw(s, api, op, func(in *I, w http.ResponseWriter, r *http.Request) {
		answerLong(s, op.DefaultStatus, w, r,
			func(progress func(wire.Progress)) (O, error) { return fn(r.Context(), in, progress) })
	})
}

func answerLong[O any](
	s *Server, code int, w http.ResponseWriter, r *http.Request, fn func(progress func(wire.Progress)) (O, error),
) {
	if !strings.Contains(r.Header.Get("Accept"), ndjson) {
		v, err := fn(func(wire.Progress) {})
		s.sendJSON(w, r, code, &v, err)
		return
	}
	st := &stream{w: w}
	// The client may still send the body while progress lines are written.
	_ = http.NewResponseController(w).EnableFullDuplex()
	v, err := fn(st.progress)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
	switch {
	case err != nil && !st.begun:
		s.fail(w, r, err)
	case err != nil:
		spoilt(w)
		e := s.wireError(r.Method+" "+r.URL.Path, err)
		st.line(wire.Event{Error: &e})
	default:
		listsNotNull(&v)
		st.line(wire.Event{Result: v})
	}
}

// sendJSON answers with one JSON document, or with err.
func (s *Server) sendJSON(w http.ResponseWriter, r *http.Request, code int, v any, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	listsNotNull(v)
	b, err := json.Marshal(v)
	if err != nil {
		s.fail(w, r, fault.Wrap(err, "encode the response"))
		return
	}
	send(w, code, asJSON, b)
}

// bounded returns a context that also ends when the daemon stops. The caller must call cancel.
func (s *Server) bounded(ctx context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	unhook := s.untilTheEnd(end)
	return ctx, func() {
		unhook()
		end(nil)
	}
}
