package coppice_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/limit"
)

var update = flag.Bool("update", false, "rewrite docs/LIMITS.md and the tables of docs/design")

// documents are the Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/guides/*.md", "docs/design/*.md", "examples/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	if len(all) < 5 {
		t.Fatalf("only %q", all)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	links     = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
	testNames = regexp.MustCompile("^`?((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`?$")
)

// A link leads to a file that is there; one that is called by a test's name, to
// the file that has the test.
func TestLinksOfTheDocumentsAreReal(t *testing.T) {
	t.Parallel()
	for _, doc := range documents(t) {
		for _, m := range links.FindAllStringSubmatch(read(t, doc), -1) {
			text, to := m[1], m[2]
			if strings.Contains(to, "://") || strings.HasPrefix(to, "#") {
				continue
			}
			path, _, _ := strings.Cut(filepath.Join(filepath.Dir(doc), to), "#")
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", doc, err)
				continue
			}
			if name := testNames.FindStringSubmatch(text); name != nil && !strings.Contains(read(t, path), "func "+name[1]+"(") {
				t.Errorf("%s: %s has no %s", doc, path, name[1])
			}
		}
	}
}

// Each bound has a test that reaches it, and docs/LIMITS.md is what the table says.
func TestLimitsAreDocumentedAndReached(t *testing.T) {
	t.Parallel()
	const doc = "docs/LIMITS.md"
	for _, b := range limit.Table() {
		file, name := b.Where()
		if name == "" || !strings.Contains(read(t, file), "func "+name+"(") {
			t.Errorf("limit %q: no test %q; name a file and a function of it", b.Name, b.Test)
		}
		if b.Value <= 0 || b.Unit == "" || b.Name == "" || b.Reached == "" {
			t.Errorf("limit %q is incomplete: %+v", b.Name, b)
		}
	}
	want := limit.Markdown()
	if *update {
		if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, doc) != want {
		t.Errorf("%s is not what internal/limit generates: go test . -run TestLimits -update", doc)
	}
}

// Each module that we import, in the main module and in that of bench, has a line that says why.
func TestEveryDependencyIsExplained(t *testing.T) {
	t.Parallel()
	why := read(t, "docs/dependencies.md")
	for line := range strings.Lines(read(t, "go.mod") + read(t, "bench/go.mod")) {
		f := strings.Fields(line)
		if len(f) == 2 && strings.Contains(f[0], ".") && f[0] != module && !strings.Contains(why, "| `"+f[0]+"` |") {
			t.Errorf("docs/dependencies.md does not say why %s is needed", f[0])
		}
	}
}
