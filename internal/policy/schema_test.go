package policy

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// validator returns a function that checks a file by the schema alone.
func validator(t *testing.T) func(text []byte) error {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(text []byte) error {
		var v any
		if err := yaml.Unmarshal(text, &v); err != nil {
			return err
		}
		return resolved.Validate(v)
	}
}

// TestSchema_MatchesPublished checks that the published schema is that of the parser.
func TestSchema_MatchesPublished(t *testing.T) {
	t.Parallel()
	got, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join("..", "..", "docs", "policy.schema.json")
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the schema differs from %s, %v; to change it, run this test with -update", name, err)
	}
}

// TestSchema_AgreesWithParser checks that the schema refuses structural errors, and accepts valid files.
func TestSchema_AgreesWithParser(t *testing.T) {
	t.Parallel()
	valid := validator(t)
	a, err := txtar.ParseFile(filepath.Join("testdata", "bad.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := 0; i+1 < len(a.Files); i += 2 {
		if f := a.Files[i]; strings.HasPrefix(f.Name, "structure-") {
			refused++
			if valid(f.Data) == nil {
				t.Errorf("the schema accepts %s", f.Name)
			}
		}
	}
	if refused < 20 {
		t.Errorf("only %d files", refused)
	}
	whole, err := os.ReadFile(filepath.Join("testdata", "whole.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := valid(whole); err != nil {
		t.Error(err)
	}
}

// TestSchema_AcceptsWhatParserAccepts checks that the schema accepts printed documents, and that the parser refuses all
// damaged documents that the schema refuses.
func TestSchema_AcceptsWhatParserAccepts(t *testing.T) {
	t.Parallel()
	valid := validator(t)
	rapid.Check(t, func(t *rapid.T) {
		text, err := documents().Draw(t, "document").MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(text); err != nil {
			t.Fatalf("the schema refuses %s: %v", text, err)
		}
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		spoil(t, v)
		if text, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
		if valid(text) != nil {
			if _, err := Parse("x.yaml", text); err == nil {
				t.Fatalf("the schema refuses %s, but the parser does not", text)
			}
		}
	})
}

// spoil changes a part of v.
func spoil(t *rapid.T, v any) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 || rapid.IntRange(0, 3).Draw(t, "here") == 0 {
			v[rapid.SampledFrom([]string{"odd", "tier", "host", "hide", "ports", "memory", "version", "A"}).
				Draw(t, "key")] = rapid.SampledFrom(
				[]any{nil, 1, -1, 1.5, true, "x", "~/x", "4GiB", []any{}, []any{"x"}, map[string]any{}}).Draw(t, "value")
			return
		}
		keys := sortedKeys(v)
		spoil(t, v[rapid.SampledFrom(keys).Draw(t, "below")])
	case []any:
		for _, one := range v {
			spoil(t, one)
		}
	}
}

func sortedKeys(m map[string]any) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func TestSchema_DescribesEveryKey(t *testing.T) {
	t.Parallel()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var walk func(where string, v any)
	walk = func(where string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			return
		}
		if properties, ok := m["properties"].(map[string]any); ok {
			for k, p := range properties {
				if about, ok := p.(map[string]any)["description"].(string); !ok || !strings.HasSuffix(about, ".") {
					t.Errorf("%s.%s is described as %q", where, k, about)
				}
				walk(where+"."+k, p)
			}
		}
		walk(where+"[]", m["items"])
		if any, ok := m["anyOf"].([]any); ok {
			for _, one := range any {
				walk(where, one)
			}
		}
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	walk("", v)
}
