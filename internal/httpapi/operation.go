package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/coppice-dev/coppice/internal/auth"
)

// maxJSON is the largest request document, in bytes.
const maxJSON = 4 << 20

const (
	asJSON    = "application/json"
	asProblem = "application/problem+json"
	asEvents  = "text/event-stream"
	ndjson    = "application/x-ndjson"
	asBytes   = "application/octet-stream"
)

// Tags of operations.
const (
	tagDaemon    = "daemon"
	tagSandboxes = "sandboxes"
	tagHistory   = "history"
	tagExec      = "exec"
	tagEvents    = "events"
	tagFiles     = "files"
	tagNet       = "network"
	tagGit       = "git"
	tagLedger    = "ledger"
)

// box is the path prefix of the operations of one sandbox.
const box = "/v1/sandboxes/{name}"

// The keys of an operation's metadata.
const (
	metaScope  = "scope"  // auth.Scope: the required scope; absent if the operation is open to all
	metaEach   = "each"   // the operation itself leaves out what a limited principal does not see
	metaReplay = "replay" // the operation accepts an Idempotency-Key
	metaStream = "stream" // the operation runs as long as the client listens
)

// Named is the input of an operation on one sandbox.
type Named struct {
	Name string `path:"name" doc:"name or id of the sandbox"`
}

// operation returns an operation without inputs and answers. Scope 0 makes it open to all.
func operation(method, path, id, summary, tag string, scope auth.Scope) huma.Operation {
	op := huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{tag},
		DefaultStatus: http.StatusOK, MaxBodyBytes: maxJSON + 1, Metadata: map[string]any{},
		Responses: map[string]*huma.Response{},
	}
	if scope != 0 {
		op.Metadata[metaScope] = scope
		op.Security = []map[string][]string{{"token": {scope.String()}}}
	} else {
		op.Security = []map[string][]string{}
	}
	return op
}

// created makes an operation answer with status 201.
func created(op huma.Operation) huma.Operation {
	op.DefaultStatus = http.StatusCreated
	return op
}

// replayable makes an operation accept an Idempotency-Key, so that a client can safely repeat the request.
func replayable(op huma.Operation) huma.Operation {
	op.Metadata[metaReplay] = true
	op.Parameters = append(op.Parameters,
		&huma.Param{Name: idempotencyHeader, In: "header", Schema: &huma.Schema{Type: huma.TypeString},
			Description: "an idempotency key such as a UUID, the same for every retry of one request: it is executed once, " +
				"and for a day " +
				"retries get the response of the first"})
	return op
}

// each marks an operation that leaves out what a limited principal does not see.
func each(op huma.Operation) huma.Operation {
	op.Metadata[metaEach] = true
	return op
}

// streams marks an operation that runs as long as the client listens.
func streams(op huma.Operation) huma.Operation {
	op.Metadata[metaStream] = true
	return op
}

// answers describes one of the forms of an operation's answer; schema may be nil.
func answers(op *huma.Operation, status int, kind, text string, schema *huma.Schema) {
	key := strconv.Itoa(status)
	r := op.Responses[key]
	if r == nil {
		r = &huma.Response{Description: text, Content: map[string]*huma.MediaType{}}
		op.Responses[key] = r
	}
	if kind != "" {
		r.Content[kind] = &huma.MediaType{Schema: schema}
	}
}

// schemaOf returns a reference to the schema of a type.
func schemaOf[T any](api huma.API) *huma.Schema {
	return api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
}

// binary is the schema of arbitrary bytes.
func binary() *huma.Schema { return &huma.Schema{Type: huma.TypeString, Format: "binary"} }

// text is the schema of text that is not JSON.
func text() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }

// problems declares the errors that every operation may answer with, and those of op.
func problems(api huma.API, op *huma.Operation) {
	codes := []int{http.StatusInternalServerError, http.StatusServiceUnavailable}
	if op.Metadata[metaScope] != nil {
		codes = append(codes, http.StatusUnauthorized, http.StatusForbidden)
	}
	if len(op.Parameters) > 0 || op.Method != http.MethodGet || strings.Contains(op.Path, "{") {
		codes = append(codes, http.StatusBadRequest)
	}
	if strings.Contains(op.Path, "{") {
		codes = append(codes, http.StatusNotFound)
	}
	if op.Method != http.MethodGet {
		codes = append(codes, http.StatusConflict)
	}
	if op.Metadata[metaReplay] != nil {
		codes = append(codes, http.StatusUnprocessableEntity)
	}
	for _, c := range codes {
		answers(op, c, asProblem, http.StatusText(c), schemaOf[problemDocument](api))
	}
}

// answer is the output of a plain operation.
type answer[O any] struct{ Body O }

// plain registers an operation that answers with one JSON document.
func plain[I, O any](s *Server, api huma.API, op huma.Operation, fn func(ctx context.Context, in *I) (O, error)) {
	problems(api, &op)
	s.route(&op)
	huma.Register(api, op, func(ctx context.Context, in *I) (*answer[O], error) {
		v, err := fn(ctx, in)
		if err != nil {
			return nil, s.statusError(op.Method+" "+op.Path, err)
		}
		listsNotNull(&v)
		return &answer[O]{v}, nil
	})
}

// silent registers an operation that answers with status 204 and no body.
func silent[I any](s *Server, api huma.API, op huma.Operation, fn func(ctx context.Context, in *I) error) {
	op.DefaultStatus = http.StatusNoContent
	problems(api, &op)
	answers(&op, http.StatusNoContent, "", "done", nil)
	s.route(&op)
	huma.Register(api, op, func(ctx context.Context, in *I) (*struct{}, error) {
		if err := fn(ctx, in); err != nil {
			return nil, s.statusError(op.Method+" "+op.Path, err)
		}
		return nil, nil
	})
}

// raw registers an operation whose answer fn writes, in one of the forms that op describes. If the input has no
// field Body, fn reads the request's body.
func raw[I any](s *Server, api huma.API, op huma.Operation, fn func(in *I, w http.ResponseWriter, r *http.Request)) {
	problems(api, &op)
	s.route(&op)
	huma.Register(api, op, func(_ context.Context, in *I) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			r, w := humago.Unwrap(ctx)
			fn(in, w, r)
		}}, nil
	})
}

// takes describes the request body of an operation that reads it itself. It is called after the registration:
// huma would read a body that it knows of.
func takes(api huma.API, op huma.Operation, text string, body map[string]*huma.MediaType) {
	path := api.OpenAPI().Paths[op.Path]
	for _, o := range []*huma.Operation{path.Post, path.Put} {
		if o != nil && o.OperationID == op.OperationID {
			o.RequestBody = &huma.RequestBody{Description: text, Content: body}
		}
	}
}

// listsNotNull replaces nil lists and maps of an answer with empty ones.
func listsNotNull(v any) {
	s := reflect.ValueOf(v).Elem()
	if s.Kind() != reflect.Struct {
		return
	}
	for i := range s.NumField() {
		f, t := s.Field(i), s.Type().Field(i)
		if strings.Contains(t.Tag.Get("json"), ",omit") || !f.CanSet() {
			continue
		}
		switch {
		case f.Kind() == reflect.Slice && f.IsNil():
			f.Set(reflect.MakeSlice(f.Type(), 0, 0))
		case f.Kind() == reflect.Map && f.IsNil():
			f.Set(reflect.MakeMap(f.Type()))
		case f.Kind() == reflect.Struct && t.Anonymous:
			listsNotNull(f.Addr().Interface())
		}
	}
}

// newAPI returns the API in which operations are registered.
func (s *Server) newAPI() huma.API {
	config := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Coppice", Version: "1", Description: "Sandboxes with history for AI agents. " +
				"A {name} is the name or the id of a sandbox; a reference to a snapshot is an id, the beginning of one, a tag, " +
				"or HEAD. " +
				"Errors are problem documents (RFC 9457) with a kind to branch on and a hint how to fix the error."},
			Tags: []*huma.Tag{
				{Name: tagSandboxes, Description: "create, show, start, stop, fork and remove sandboxes"},
				{Name: tagExec, Description: "commands, terminals, processes and ports"},
				{Name: tagFiles, Description: "read and write files from outside"},
				{Name: tagHistory, Description: "snapshots: show, compare, rewind"},
				{Name: tagGit, Description: "the repository of a sandbox: compare, propose, apply"},
				{Name: tagNet, Description: "the network of a sandbox: log, explain, change rules"},
				{Name: tagLedger, Description: "the audit log: read, verify, export"},
				{Name: tagEvents, Description: "events of sandboxes"},
				{Name: tagDaemon, Description: "the daemon and its tokens"},
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer",
					Description: "A token made by coppice token create, with the scope that an operation names (read, operate, " +
						"admin: " +
						"each includes those before it). The daemon's unix socket requires none."}},
			},
		},
		Formats: map[string]huma.Format{asJSON: {Marshal: writeJSON, Unmarshal: json.Unmarshal},
			"json": {Marshal: writeJSON, Unmarshal: json.Unmarshal}},
		DefaultFormat: asJSON,
		Transformers:  []huma.Transformer{asProblemDocument},
	}
	config.AllowAdditionalPropertiesByDefault = true // a newer client may send more
	api := humago.New(s.mux, config)
	api.UseMiddleware(s.guard, s.hold, s.replay)
	return api
}

// schemaName is huma's name of a type, except for problemDocument.
func schemaName(t reflect.Type, hint string) string {
	if t == reflect.TypeFor[problemDocument]() {
		return "Problem"
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// writeJSON writes one JSON document and a newline.
func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// tidy removes from the document what huma added but nothing refers to, and what is the default. It marks lists
// as never null.
func tidy(doc *huma.OpenAPI) {
	all := doc.Components.Schemas.Map()
	delete(all, "ErrorModel")
	delete(all, "ErrorDetail")
	for _, s := range all {
		if s.AdditionalProperties == true { // true is the default
			s.AdditionalProperties = nil
		}
		neverNull(s)
	}
}

func neverNull(s *huma.Schema) {
	if s == nil {
		return
	}
	if s.Type == huma.TypeArray {
		s.Nullable = false
		neverNull(s.Items)
	}
	for _, p := range s.Properties {
		neverNull(p)
	}
}

// humaContext is embedded in exchange: the name of its field must differ from the method Context.
type humaContext huma.Context

// exchange is huma's view of one request, with changes to headers, status and deadlines.
type exchange struct {
	humaContext
	status int // of a problem that huma found; 0: none
}

// Unwrap returns the context of humago.
func (x *exchange) Unwrap() huma.Context { return x.humaContext }

// Header hides headers for content negotiation: all documents are JSON, whatever the client accepts.
func (x *exchange) Header(name string) string {
	switch http.CanonicalHeaderKey(name) {
	case "Content-Type":
		return asJSON
	case "Accept":
		return ""
	}
	return x.humaContext.Header(name)
}

// SetStatus sends the status of the problem instead of code, if there is a problem.
func (x *exchange) SetStatus(code int) {
	if x.status != 0 {
		code = x.status
	}
	x.humaContext.SetStatus(code)
}

// SetReadDeadline does nothing: the listener sets the deadlines. A deadline for the body would later end the
// context of the answer.
func (x *exchange) SetReadDeadline(time.Time) error { return nil }
