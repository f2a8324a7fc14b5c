package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
)

// TestDescriptions_ApplyToExistingOperations checks that operations, fields and parameters
// with a description exist, and that each example is a document that its operation accepts.
func TestDescriptions_ApplyToExistingOperations(t *testing.T) {
	t.Parallel()
	s := &Server{opt: Options{}, mux: http.NewServeMux(), metrics: newMetrics()}
	api := s.newAPI()
	s.add(api)
	doc := api.OpenAPI()
	of, held := aboutOperations(), limits()
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			for _, p := range op.Parameters {
				delete(held, p.Name)
			}
			if e := of[op.OperationID].example; e != nil {
				checkExample(t, doc, op, e)
			}
			delete(of, op.OperationID)
		}
	}
	for name, s := range doc.Components.Schemas.Map() {
		for field := range s.Properties {
			delete(held, name+"."+field)
		}
	}
	for name := range of {
		t.Errorf("unknown operation %s", name)
	}
	for name := range held {
		t.Errorf("unknown field or parameter %s", name)
	}
}

// TestDescriptions_AreGroupedByTag checks that an operation is described under its tag, and only once.
func TestDescriptions_AreGroupedByTag(t *testing.T) {
	t.Parallel()
	s := &Server{opt: Options{}, mux: http.NewServeMux(), metrics: newMetrics()}
	api := s.newAPI()
	s.add(api)
	tagOf := map[string]string{}
	for _, item := range api.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				tagOf[op.OperationID] = op.Tags[0]
			}
		}
	}
	for tag, part := range aboutByTag() {
		for id := range part {
			if tagOf[id] != tag {
				t.Errorf("%s is described under the tag %s, but has the tag %q", id, tag, tagOf[id])
			}
		}
	}
}

// TestLimitGroups_AreDisjoint checks that no limit is in two groups: only the last one would count.
func TestLimitGroups_AreDisjoint(t *testing.T) {
	t.Parallel()
	n := 0
	for _, part := range limitsByGroup() {
		n += len(part)
	}
	if all := len(limits()); n != all {
		t.Errorf("the groups have %d limits, %d of them distinct", n, all)
	}
}

// checkExample checks an example against its operation, which must have a request body.
func checkExample(t *testing.T, doc *huma.OpenAPI, op *huma.Operation, example any) {
	t.Helper()
	if op.RequestBody == nil || op.RequestBody.Content[asJSON] == nil {
		t.Errorf("%s has no JSON request body", op.OperationID)
		return
	}
	b, err := json.Marshal(example)
	var v any
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	ref := op.RequestBody.Content[asJSON].Schema
	res := &huma.ValidateResult{}
	huma.Validate(doc.Components.Schemas, ref, huma.NewPathBuffer([]byte("body"), 0), huma.ModeWriteToServer, v, res)
	for _, err := range res.Errors {
		t.Errorf("the example of %s: %v", op.OperationID, err)
	}
	known := doc.Components.Schemas.Map()[strings.TrimPrefix(ref.Ref, "#/components/schemas/")].Properties
	for field := range v.(map[string]any) {
		if known[field] == nil {
			t.Errorf("the example of %s has the unknown field %s", op.OperationID, field)
		}
	}
}
