//go:build linux

package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// published is the part of docs/openapi.json that describes requests.
type published struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	OperationID string
	Parameters  []struct {
		Name, In string
		Schema   schema
	}
	RequestBody struct {
		Content map[string]struct {
			Schema  schema
			Example map[string]any
		}
	}
}

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Items                *schema
	Properties           map[string]schema
	Enum                 []any
	Pattern              string
	Minimum, Maximum     *int64
	MinLength, MaxLength int
	MinItems, MaxItems   int
}

// beyond returns values that are just outside of a schema's limits.
func (s schema) beyond() (out []any) {
	if s.Minimum != nil {
		out = append(out, *s.Minimum-1)
	}
	if s.Maximum != nil {
		out = append(out, *s.Maximum+1)
	}
	if s.Enum != nil {
		out = append(out, "none of them")
	}
	if s.Pattern != "" {
		out = append(out, "no / match")
	}
	if s.MinLength > 0 {
		out = append(out, "")
	}
	if s.MaxLength > 0 {
		out = append(out, strings.Repeat("a", s.MaxLength+1))
	}
	if s.MinItems > 0 {
		out = append(out, []any{})
	}
	if s.MaxItems > 0 {
		many := make([]any, s.MaxItems+1)
		for i := range many {
			many[i] = fmt.Sprintf("a%d", i)
			if s.Items.Ref != "" {
				many[i] = map[string]any{"cmd": fmt.Sprint("exit ", i)}
			}
		}
		out = append(out, many)
	}
	return out
}

// TestOpenAPI_ExamplesAndLimitsHold sends the examples of the document to a real daemon, and values beyond the stated
// limits, which must be refused with a hint.
func TestOpenAPI_ExamplesAndLimitsHold(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	b, err := os.ReadFile("../../docs/openapi.json")
	var doc published
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "rootfs")
	if err := makeRootfs(base); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for path, ops := range doc.Paths {
		for method, op := range ops {
			tried += w.tryOperation(&doc, base, strings.ToUpper(method), path, op)
		}
	}
	if tried < 80 {
		t.Errorf("only %d values were tried", tried)
	}
}

// tryOperation returns the number of invalid values that it sent.
func (w *web) tryOperation(doc *published, base, method, path string, op operation) (tried int) {
	body, takes := op.RequestBody.Content["application/json"]
	values := map[string][]any{}
	for _, p := range op.Parameters {
		if all := p.Schema.beyond(); len(all) > 0 {
			values[p.Name] = all
		}
	}
	if !takes && len(values) == 0 {
		return 0
	}
	known := w.scene(base, strings.ToLower(op.OperationID))
	if takes && body.Example == nil {
		w.t.Errorf("%s has no example", op.OperationID)
		return 0
	}
	at := func(change map[string]any) (string, []string) { return place(path, op, known, change) }
	for _, p := range op.Parameters {
		for _, v := range values[p.Name] {
			where, header := at(map[string]any{p.Name: v})
			w.refused(method, where, body.Example, fmt.Sprintf("%s=%.20v", p.Name, v), header)
			tried++
		}
	}
	if !takes {
		return tried
	}
	where, header := at(nil)
	for name, s := range variants(doc, doc.Components.Schemas[strings.TrimPrefix(body.Schema.Ref, refs)], body.Example) {
		w.refused(method, where, s, name, header)
		tried++
	}
	if op.OperationID == "moveFile" { // its example names files of the reader
		w.json(http.MethodPut, "/v1/sandboxes/"+known["name"]+"/files?path=/src/old.go", "", http.StatusOK, nil)
	}
	b, err := json.Marshal(body.Example)
	if err != nil {
		w.t.Fatal(err)
	}
	res := w.do(method, where, string(b), append(header, "Content-Type", "application/json")...) //nolint:bodyclose // do sees to it
	got, err := io.ReadAll(res.Body)
	// The scene has nothing to redo, no TCP, a checkpoint of another log, no repository, no broker, and another digest.
	expected := map[string]int{"sending": http.StatusNotFound, "packLayer": http.StatusNotFound,
		"sent": http.StatusNotFound, "receive": http.StatusNotFound, "showProposal": http.StatusNotFound,
		"diffProposal":  http.StatusNotFound,
		"patchProposal": http.StatusNotFound, "applyProposal": http.StatusNotFound, "propose": http.StatusBadRequest,
		"rebase": http.StatusBadRequest, "redo": http.StatusNotFound, "previewPort": http.StatusNotImplemented,
		"witnessLedger": http.StatusBadRequest, "gitApply": http.StatusBadRequest, "consent": http.StatusBadRequest,
		"giveGrant": http.StatusServiceUnavailable}[op.OperationID]
	if err != nil || res.StatusCode >= 300 && res.StatusCode != expected {
		w.t.Errorf("the example of %s: %d %s, %v", op.OperationID, res.StatusCode, got, err)
	}
	return tried
}

const refs = "#/components/schemas/"

// scene creates a sandbox with an object for every kind of parameter, and returns their values.
func (w *web) scene(base, name string) map[string]string {
	w.t.Helper()
	ctx := w.t.Context()
	req := wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceDir, Path: base}}
	if slices.Contains([]string{"netallow", "netapprove", "netdeny"}, name) {
		req.Net = "rules" // other modes have no rules to change
	}
	if _, err := w.client.Create(ctx, req, nil); err != nil {
		w.t.Fatal(err)
	}
	var session wire.Session
	w.json(http.MethodPost, "/v1/sandboxes/"+name+"/exec?pty=true", `{"cmd":["sleep","1000"]}`,
		http.StatusCreated, &session)
	w.json(http.MethodPut, "/v1/sandboxes/"+name+"/files?path=/root/changed", "so there is a snapshot to undo",
		http.StatusOK, nil)
	var all wire.ExecsResult
	w.json(http.MethodGet, "/v1/sandboxes/"+name+"/execs", "", http.StatusOK, &all)
	if len(all.Execs) != 1 {
		w.t.Fatal(all)
	}
	return map[string]string{"name": name, "exec": session.Exec, "id": session.ID, "pid": fmt.Sprint(all.Execs[0].PID),
		"port": "3000", "ref": "HEAD", "tag": "good", "path": "/tmp/x", "grant": "github"}
}

// place returns the URL of an operation with its parameters, known or changed, and the headers for parameters in
// headers.
func place(path string, op operation, known map[string]string, change map[string]any) (where string, header []string) {
	query := url.Values{}
	for _, p := range op.Parameters {
		v, ok := known[p.Name]
		if c, is := change[p.Name]; is {
			v, ok = fmt.Sprint(c), true
		}
		switch {
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(v))
		case p.In == "header" && change[p.Name] != nil:
			header = append(header, p.Name, v)
		case p.In == "query" && ok:
			query.Set(p.Name, v)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path, header
}

// variants returns copies of an example in which one field is beyond its limits, by a description of the field.
func variants(doc *published, s schema, example map[string]any) map[string]map[string]any {
	out := map[string]map[string]any{}
	with := func(field string, v any) map[string]any {
		changed := maps.Clone(example)
		if changed == nil {
			changed = map[string]any{}
		}
		changed[field] = v
		return changed
	}
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		f := s.Properties[field]
		for _, v := range f.beyond() {
			out[fmt.Sprintf("%s=%.20v", field, v)] = with(field, v)
		}
		inner := f
		if f.Items != nil {
			inner = *f.Items
		}
		if inner.Ref == "" || inner.Ref == refs+"RunRequest" {
			continue
		}
		from, _ := example[field].(map[string]any)
		for name, v := range variants(doc, doc.Components.Schemas[strings.TrimPrefix(inner.Ref, refs)], from) {
			if f.Items != nil {
				out[field+"[0]."+name] = with(field, []any{v})
			} else {
				out[field+"."+name] = with(field, v)
			}
		}
	}
	return out
}

// refused sends a request that must be refused as invalid.
func (w *web) refused(method, where string, body map[string]any, what string, header []string) {
	w.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	res := w.do(method, where, string(b), append(header, "Content-Type", "application/json")...) //nolint:bodyclose // do sees to it
	var p wire.Problem
	if err := json.NewDecoder(res.Body).
		Decode(&p); err != nil || p.Status != http.StatusBadRequest || p.Kind != "invalid" || p.Detail == "" || p.Hint == "" {
		w.t.Errorf("%s %s with %s: %d %+v, %v", method, where, what, res.StatusCode, p, err)
	}
}
