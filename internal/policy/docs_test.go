package policy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPolicyDocument_ExamplesAreValid checks the examples of docs/policy.md, and that it mentions every key and preset.
func TestPolicyDocument_ExamplesAreValid(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	valid := validator(t)
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) < 3 {
		t.Fatalf("only %d examples", len(examples))
	}
	all := ""
	for _, m := range examples {
		all += string(m[1])
		d, err := Parse("/w/p/coppice.yaml", m[1])
		if err != nil {
			t.Errorf("%s%s", m[1], told(err))
			continue
		}
		if len(d.Warnings) > 0 {
			t.Error(d.Warnings)
		}
		if _, err := Merge(Layer{User, d}); err != nil {
			t.Error(err)
		}
		if err := valid(m[1]); err != nil {
			t.Errorf("the schema: %v", err)
		}
	}
	var walk func(s schema)
	walk = func(s schema) {
		if properties, ok := s["properties"].(schema); ok {
			for k, p := range properties {
				if !strings.Contains(string(text), "`"+k+"`") && !strings.Contains(string(text), "."+k+"`") &&
					!strings.Contains(all, k+":") {
					t.Errorf("it does not mention %s", k)
				}
				walk(p.(schema))
			}
		}
		if below, ok := s["items"].(schema); ok {
			walk(below)
		}
		if both, ok := s["anyOf"].([]any); ok {
			for _, one := range both {
				walk(one.(schema))
			}
		}
	}
	walk(documentShape(".").schema)
	for _, p := range PresetNames() {
		if !regexp.MustCompile(`[ \n]` + regexp.QuoteMeta(p) + `[,.]`).Match(text) {
			t.Errorf("it does not mention the preset %s", p)
		}
	}
}
