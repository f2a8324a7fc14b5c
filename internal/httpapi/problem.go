package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

var errGone = errors.New("the client disconnected")

// problemDocument is an error in the form that huma writes.
type problemDocument struct{ wire.Problem }

// Error implements error.
func (p *problemDocument) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *problemDocument) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *problemDocument) ContentType(string) string { return asProblem }

// statusError wraps err so that huma answers with it unchanged.
func (s *Server) statusError(what string, err error) error {
	return &problemDocument{s.problem(what, err)}
}

// asProblemDocument converts a validation error of huma to a problem document.
func asProblemDocument(ctx huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := problemOf(invalid(m))
	if m.Status == http.StatusInternalServerError && len(m.Errors) == 0 {
		p = problemOf(fault.New(fault.Internal, "%s", m.Detail))
	}
	if x, ok := ctx.(*exchange); ok {
		x.status = p.Status
	}
	return p, nil
}

// maxFaults is the maximum number of reported validation errors.
const maxFaults = 5

// invalid returns the error for an invalid request: what is wrong, where, and how to fix it.
func invalid(m *huma.ErrorModel) *fault.Error {
	var all []string
	hint := ""
	for _, e := range m.Errors {
		where, what, mend := mend(e)
		if hint == "" {
			hint = mend
		}
		if len(all) < maxFaults {
			all = append(all, where+": "+what)
		}
	}
	if len(all) == 0 {
		return fault.New(fault.Invalid, "%s", m.Detail).
			WithHint("send a JSON document of at most %d bytes; see GET /openapi.json", maxJSON)
	}
	return fault.New(fault.Invalid, "%s", strings.Join(all, "; ")).WithHint("%s", hint)
}

// mend returns where something is wrong, what it is, and how to fix it.
func mend(e *huma.ErrorDetail) (where, what, how string) {
	where, what = e.Location, e.Message
	const before, after = "expected required property ", " to be present"
	switch {
	case strings.HasPrefix(what, before) && strings.HasSuffix(what, after):
		name := strings.TrimSuffix(strings.TrimPrefix(what, before), after)
		return where + "." + name, "missing", fmt.Sprintf("add %q to the request's document", name)
	case strings.HasPrefix(what, "required "):
		return where, "missing", "add it to the request"
	case where == "body" && !strings.HasPrefix(what, "expected "):
		return where, "invalid JSON request: " + what,
			"send one JSON document; see GET /openapi.json"
	case e.Value != nil:
		if b, err := json.Marshal(e.Value); err == nil && len(b) <= 100 {
			what += ", got " + string(b)
		}
	}
	return where, what, "see GET /openapi.json for the expected schema"
}

func send(w http.ResponseWriter, status int, kind string, b []byte) {
	b = append(b, '\n')
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may be gone
}

// fail answers with a problem document.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	sendProblem(w, s.problem(r.Method+" "+r.URL.Path, err))
}

func sendProblem(w http.ResponseWriter, p wire.Problem) {
	b, _ := json.Marshal(p) // strings and a number
	send(w, p.Status, asProblem, b)
}

// problem converts err to a problem document, and logs it if its kind is unknown.
func (s *Server) problem(what string, err error) wire.Problem {
	return documentOf(s.wireError(what, err))
}

// problemOf converts an error of a known kind to a problem document.
func problemOf(err *fault.Error) wire.Problem {
	return documentOf(wire.Error{Kind: string(err.Kind), Message: err.Error(), Hint: err.Hint})
}

func documentOf(e wire.Error) wire.Problem {
	code := status(fault.Kind(e.Kind))
	return wire.Problem{Type: "about:blank", Title: http.StatusText(code), Status: code, Detail: e.Message,
		Kind: e.Kind, Hint: e.Hint}
}

// wireError converts err to its wire form. what names the request.
func (s *Server) wireError(what string, err error) wire.Error {
	k := fault.KindOf(err)
	hint := fault.HintOf(err)
	if k == fault.Internal {
		s.opt.Log.Error("internal error", "request", what, "err", err)
		if hint == "" {
			hint = "this is a bug in Coppice; see the daemon's log"
		}
	}
	return wire.Error{Kind: string(k), Message: err.Error(), Hint: hint}
}

// status returns the HTTP status of a kind.
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
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge
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
