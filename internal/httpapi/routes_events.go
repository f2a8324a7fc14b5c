package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Since is the start of a stream of events.
type Since struct {
	After string `query:"after" doc:"the seq of the last known event; 0: all stored events; default: new events only"`
	Last  string `header:"Last-Event-ID" doc:"the same, for Server-Sent Events; takes precedence over after"`
}

// addEvents adds the streams of events.
func (s *Server) addEvents(api huma.API) {
	describe := func(op huma.Operation) huma.Operation {
		answers(&op, http.StatusOK, ndjson,
			"one SandboxEvent per line, as they happen; as Server-Sent Events if the client accepts text/event-stream, "+
				"with the seq as id", schemaOf[wire.SandboxEvent](api))
		answers(&op, http.StatusOK, asEvents, "", schemaOf[wire.SandboxEvent](api))
		return streams(op)
	}
	raw(s, api, describe(
		each(operation("GET", "/v1/events", "events", "Follow the events of all sandboxes, or of "+
			"one", tagEvents, auth.Read))),
		func(in *struct {
			Since
			Sandbox string `query:"sandbox" doc:"name or id of one sandbox"`
		}, w http.ResponseWriter, r *http.Request) {
			name := in.Sandbox
			if name != "" {
				var err error
				if name, err = s.reach(r.Context(), auth.Read, name); err != nil {
					s.fail(w, r, err)
					return
				}
			}
			s.events(name, in.Since, w, r)
		})
	raw(s, api, describe(
		operation("GET", box+"/events", "sandboxEvents", "Follow the events of a sandbox until it is removed",
			tagEvents, auth.Read)),
		func(in *struct {
			Named
			Since
		}, w http.ResponseWriter, r *http.Request) {
			s.events(in.Name, in.Since, w, r)
		})
}

// number returns the event number after which a stream starts.
func (s Since) number() (uint64, error) {
	what, v := lastEventID, s.Last
	if v == "" {
		what, v = "after", s.After
	}
	if v == "" {
		return wire.EventsNow, nil
	}
	n, err := parseID(v)
	if err != nil {
		return 0, fault.New(fault.Invalid, "invalid %s %q: must be the seq of an event", what, shorten(v)).
			WithHint("send the \"seq\" of the last event received")
	}
	return n, nil
}

// events streams the events of a sandbox, or of all, until the client disconnects, the daemon stops, or the sandbox
// is removed. The header is sent once no later event can be missed.
func (s *Server) events(name string, from Since, w http.ResponseWriter, r *http.Request) {
	after, err := from.number()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	p := auth.From(r.Context())
	s.stream(w, r, func(ctx context.Context, begin func() error, tell func(kind, id string, v any) error) error {
		return s.opt.Feed.Events(ctx, name, after, func(ev wire.SandboxEvent) error {
			if err := begin(); err != nil {
				return err
			}
			if ev.Kind == "" || ev.ID != "" && !sees(p, ev.ID) {
				return nil
			}
			return tell(ev.Kind, strconv.FormatUint(ev.Seq, 10), ev)
		})
	})
}

// stream answers with events, in the form that the client accepts, until fn returns. fn calls begin once no later
// event can be missed, which sends the header; an earlier error is a problem document.
func (s *Server) stream(
	w http.ResponseWriter, r *http.Request,
	fn func(ctx context.Context, begin func() error, tell func(kind, id string, v any) error) error,
) {
	defer s.metrics.streaming()()
	ctx, cancel := s.bounded(r.Context())
	defer cancel()
	var out eventWriter = &eventLines{w: w}
	if strings.Contains(r.Header.Get("Accept"), asEvents) {
		st := &sse{w: w}
		stop := st.beat(ctx)
		defer stop()
		out = st
	}
	begun := false
	err := fn(ctx, func() error {
		if begun {
			return nil
		}
		begun = true
		return out.begin()
	}, out.event)
	if err != nil && !begun {
		s.fail(w, r, err) // later errors end the stream, which the client can detect
	}
}

// eventWriter is one of the two forms of a stream of events.
type eventWriter interface {
	begin() error
	// event sends one event. A form without kinds or IDs omits them.
	event(kind, id string, v any) error
}

// eventLines sends events as JSON, one per line.
type eventLines struct{ w http.ResponseWriter }

func (e *eventLines) begin() error {
	e.w.Header().Set("Content-Type", ndjson)
	e.w.WriteHeader(http.StatusOK)
	return http.NewResponseController(e.w).Flush()
}

func (e *eventLines) event(_, _ string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fault.Wrap(err, "encode an event")
	}
	if _, err := e.w.Write(append(b, '\n')); err != nil {
		return errGone
	}
	return http.NewResponseController(e.w).Flush()
}
