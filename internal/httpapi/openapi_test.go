package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden returns the path of the published document.
func golden() string { return filepath.Join("..", "..", "docs", "openapi.json") }

// document returns the document as it is served to a principal without any scope.
func document(t testing.TB) []byte {
	t.Helper()
	w := httptest.NewRecorder()
	newServer(auth.Principal{}, httpapi.Options{Roles: roles(&fake{})}).
		ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, w.Body.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestOpenAPI_IsBackwardCompatible fails if something that was published is missing or changed, and if something
// new is not published yet.
func TestOpenAPI_IsBackwardCompatible(t *testing.T) {
	t.Parallel()
	got := document(t)
	if *update {
		if err := os.WriteFile(golden(), got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden())
	if err != nil {
		t.Fatal(err)
	}
	for _, lost := range shrunk(parse(t, want), parse(t, got)) {
		t.Errorf("%s: external clients depend on it", lost)
	}
	if !bytes.Equal(got, want) {
		t.Error("the document has changed; if it has only grown, run: go test ./internal/httpapi -run OpenAPI -update")
	}
}

func parse(t testing.TB, b []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// shrunk lists what is missing or different in a new document: paths, operations, parameters, answers, and fields
// of schemas with their types. It also lists fields of requests that are now required.
func shrunk(old, now map[string]any) (lost []string) {
	say := func(format string, args ...any) { lost = append(lost, fmt.Sprintf(format, args...)) }
	for path, ops := range sorted(at(old, "paths")) {
		for method, op := range sorted(ops) {
			where := strings.ToUpper(method) + " " + path
			n := at(now, "paths", path, method)
			if n == nil {
				say("%s is gone", where)
				continue
			}
			if at(op, "operationId") != at(n, "operationId") {
				say("%s has another operationId", where)
			}
			for _, p := range list(at(op, "parameters")) {
				name := fmt.Sprint(at(p, "in"), " ", at(p, "name"))
				i := slices.IndexFunc(list(at(n, "parameters")),
					func(q any) bool { return fmt.Sprint(at(q, "in"), " ", at(q, "name")) == name })
				if i < 0 {
					say("%s: parameter %s is gone", where, name)
				} else if q := list(at(n, "parameters"))[i]; !reflect.DeepEqual(typeOf(at(p, "schema")), typeOf(at(q, "schema"))) {
					say("%s: parameter %s is something else", where, name)
				}
			}
			for kind, m := range sorted(at(op, "requestBody", "content")) {
				if !reflect.DeepEqual(typeOf(at(m, "schema")), typeOf(at(n, "requestBody", "content", kind, "schema"))) {
					say("%s: the %s that it takes is something else", where, kind)
				}
			}
			for code, r := range sorted(at(op, "responses")) {
				for kind, m := range sorted(at(r, "content")) {
					if !reflect.DeepEqual(typeOf(at(m, "schema")), typeOf(at(n, "responses", code, "content", kind, "schema"))) {
						say("%s: the %s that it answers with %s is something else", where, kind, code)
					}
				}
			}
		}
	}
	for name, s := range sorted(at(old, "components", "schemas")) {
		n := at(now, "components", "schemas", name)
		if n == nil {
			say("schema %s is gone", name)
			continue
		}
		for field, f := range sorted(at(s, "properties")) {
			if g := at(n, "properties", field); g == nil {
				say("%s.%s is gone", name, field)
			} else if !reflect.DeepEqual(typeOf(f), typeOf(g)) {
				say("%s.%s is something else", name, field)
			}
		}
		if strings.HasSuffix(name, "Request") {
			for _, field := range list(at(n, "required")) {
				if !slices.Contains(list(at(s, "required")), field) {
					say("%s.%s must be there, and needed not", name, field)
				}
			}
		}
	}
	slices.Sort(lost)
	return lost
}

// at returns the value under keys in a document; nil if there is none.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		if m == nil {
			return nil
		}
		v = m[k]
	}
	return v
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func sorted(v any) map[string]any {
	m, _ := v.(map[string]any)
	return maps.Clone(m)
}

// typeOf returns what a schema says about the values, without descriptions.
func typeOf(schema any) any {
	m, ok := schema.(map[string]any)
	if !ok {
		return nil
	}
	out := map[string]any{}
	for _, k := range []string{"type", "format", "$ref", "contentEncoding"} {
		if m[k] != nil {
			out[k] = m[k]
		}
	}
	for _, k := range []string{"items", "additionalProperties"} {
		if m[k] != nil {
			out[k] = typeOf(m[k])
		}
	}
	return out
}

func TestOpenAPI_DetectsIncompatibleChanges(t *testing.T) {
	t.Parallel()
	text := document(t)
	for name, change := range map[string]func(d map[string]any){
		"DELETE /v1/sandboxes/{name} is gone": func(d map[string]any) {
			delete(at(d, "paths", "/v1/sandboxes/{name}").(map[string]any), "delete")
		},
		"GET /v1/sandboxes/{name}/diff: parameter query path is gone": func(d map[string]any) {
			op := at(d, "paths", "/v1/sandboxes/{name}/diff", "get").(map[string]any)
			op["parameters"] = slices.DeleteFunc(list(op["parameters"]), func(p any) bool { return at(p, "name") == "path" })
		},
		"GET /v1/sandboxes/{name}/diff: parameter query stat is something else": func(d map[string]any) {
			for _, p := range list(at(d, "paths", "/v1/sandboxes/{name}/diff", "get", "parameters")) {
				if at(p, "name") == "stat" {
					at(p, "schema").(map[string]any)["type"] = "string"
				}
			}
		},
		"Sandbox.head is gone": func(d map[string]any) {
			delete(at(d, "components", "schemas", "Sandbox", "properties").(map[string]any), "head")
		},
		"Sandbox.env is something else": func(d map[string]any) {
			at(d, "components", "schemas", "Sandbox", "properties", "env", "items").(map[string]any)["type"] = "integer"
		},
		"CreateRequest.name must be there, and needed not": func(d map[string]any) {
			at(d, "components", "schemas", "CreateRequest").(map[string]any)["required"] = []any{"name"}
		},
	} {
		old, now := parse(t, text), parse(t, text)
		change(now)
		if got := shrunk(old, now); !slices.Equal(got, []string{name}) {
			t.Errorf("%q, want %q", got, name)
		}
		if got := shrunk(now, old); len(got) > 0 && !strings.HasSuffix(got[0], "something else") {
			t.Errorf("an addition is reported: %q", got)
		}
	}
}

// TestOpenAPIRoutes checks the table of routes in docs/api.md.
func TestOpenAPIRoutes(t *testing.T) {
	t.Parallel()
	const begin, end = "-update -->\n", "<!-- end of routes -->"
	file := filepath.Join("..", "..", "docs", "api.md")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no markers for the routes", file)
	}
	text := head + begin + routes(parse(t, document(t))) + end + tail
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != string(old) {
		t.Errorf("the routes of %s are not those of the document; run: go test ./internal/httpapi -run OpenAPI -update", file)
	}
}

// routes returns a table of the operations of each group of the document.
func routes(doc map[string]any) string {
	var b strings.Builder
	for _, tag := range list(at(doc, "tags")) {
		fmt.Fprintf(&b, "\n### %s: %s\n\n| route | | scope |\n|---|---|---|\n", at(tag, "name"), at(tag, "description"))
		paths := sorted(at(doc, "paths"))
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			for _, method := range []string{"get", "post", "put", "patch", "delete"} {
				op := at(paths[path], method)
				if op == nil || list(at(op, "tags"))[0] != at(tag, "name") {
					continue
				}
				scope := "none"
				if need := list(at(op, "security")); len(need) > 0 {
					scope = fmt.Sprint(list(at(need[0], "token"))[0])
				}
				fmt.Fprintf(&b, "| `%s %s` | %s | %s |\n", strings.ToUpper(method), path, at(op, "summary"), scope)
			}
		}
	}
	return b.String() + "\n"
}

// TestOpenAPI_DescribesEveryOperation checks that every operation has a description, its
// requirements and its errors, that lists are never null, and that additional fields are allowed.
func TestOpenAPI_DescribesEveryOperation(t *testing.T) {
	t.Parallel()
	d := parse(t, document(t))
	if v := at(d, "openapi"); !strings.HasPrefix(fmt.Sprint(v), "3.1") {
		t.Errorf("OpenAPI %v", v)
	}
	ids := map[any]bool{}
	for path, ops := range sorted(at(d, "paths")) {
		for method, op := range sorted(ops) {
			where := method + " " + path
			id := at(op, "operationId")
			if id == nil || ids[id] || at(op, "summary") == nil || len(list(at(op, "tags"))) != 1 {
				t.Errorf("%s: operationId %v, summary %v, tags %v", where, id, at(op, "summary"), at(op, "tags"))
			}
			ids[id] = true
			if at(op, "description") == nil {
				t.Errorf("%s is not described", where)
			}
			for _, p := range list(at(op, "parameters")) {
				if at(p, "description") == nil {
					t.Errorf("%s: parameter %s is not described", where, at(p, "name"))
				}
			}
			if b := at(op, "requestBody"); b != nil && at(b, "description") == nil {
				t.Errorf("%s: its request body is not described", where)
			}
			if _, ok := at(op, "security").([]any); !ok {
				t.Errorf("%s has no security requirement", where)
			}
			if at(op, "responses", "500", "content", "application/problem+json", "schema",
				"$ref") != "#/components/schemas/Problem" {
				t.Errorf("%s has no errors", where)
			}
			if at(op, "responses", "422") != nil && !strings.Contains(fmt.Sprint(at(op, "parameters")), "Idempotency-Key") {
				t.Errorf("%s answers 422", where)
			}
		}
	}
	for name, s := range sorted(at(d, "components", "schemas")) {
		if at(s, "additionalProperties") == false {
			t.Errorf("%s refuses additional fields", name)
		}
		if at(s, "description") == nil {
			t.Errorf("%s is not described", name)
		}
		for field, f := range sorted(at(s, "properties")) {
			if at(f, "description") == nil {
				t.Errorf("%s.%s is not described: add a comment in client/wire", name, field)
			}
			if types := list(at(f, "type")); slices.Contains(types, any("array")) {
				t.Errorf("%s.%s may be null", name, field)
			}
		}
	}
}

// BenchmarkNew measures how long the daemon waits for New when it starts.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		httpapi.New(httpapi.Options{Roles: roles(&fake{})})
	}
}
