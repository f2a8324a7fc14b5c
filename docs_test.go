package coppice_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/coppice-dev/coppice/internal/limit"
)

var update = flag.Bool("update", false, "rewrite docs/LIMITS.md and the tables of docs/design")

// documents returns the Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	all := append(pages(t), matching(t, "*.md", "examples/*/*.md")...)
	if len(all) < 30 {
		t.Fatalf("only %q", all)
	}
	return all
}

// pages returns the Markdown files of the site (book.toml).
func pages(t *testing.T) []string {
	t.Helper()
	return matching(t, "docs/*.md", "docs/*/*.md")
}

// matching returns the files that match any of the patterns.
func matching(t *testing.T, patterns ...string) (all []string) {
	t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
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
	headings  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	fences    = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inSource  = regexp.MustCompile("`((?:internal|client|cmd|bench|examples|scripts)/[\\w./-]+)`")
)

// TestDocuments_LinksResolve checks links to files and to headings in them. A link whose text
// is the name of a test must lead to the file with that test.
func TestDocuments_LinksResolve(t *testing.T) {
	t.Parallel()
	for _, doc := range documents(t) {
		for _, m := range links.FindAllStringSubmatch(fences.ReplaceAllString(read(t, doc), ""), -1) {
			text, to := m[1], m[2]
			if strings.Contains(to, "://") {
				continue
			}
			file, anchor, anchored := strings.Cut(to, "#")
			path := filepath.Join(filepath.Dir(doc), file)
			if file == "" {
				path = doc
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", doc, err)
				continue
			}
			if anchored && !slices.Contains(anchors(read(t, path)), anchor) {
				t.Errorf("%s: %s has no heading #%s", doc, path, anchor)
			}
			if name := testNames.FindStringSubmatch(text); name != nil && !strings.Contains(read(t, path), "func "+name[1]+"(") {
				t.Errorf("%s: %s has no %s", doc, path, name[1])
			}
		}
	}
}

// anchors returns the identifiers of the headings of a page, as GitHub and mdBook create them: lower-case
// letters, digits, "-" and "_", with "-" for each blank, and a number after a repeated one.
func anchors(page string) (all []string) {
	seen := map[string]int{}
	for _, m := range headings.FindAllStringSubmatch(fences.ReplaceAllString(page, ""), -1) {
		id := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, links.ReplaceAllString(m[1], "$1"))
		if n := seen[id]; n > 0 {
			all = append(all, fmt.Sprintf("%s-%d", id, n))
		} else {
			all = append(all, id)
		}
		seen[id]++
	}
	return all
}

// TestDocuments_NameExistingFiles checks every source path in backquotes in a document.
func TestDocuments_NameExistingFiles(t *testing.T) {
	t.Parallel()
	for _, doc := range documents(t) {
		if doc == "CHANGELOG.md" {
			continue // it also describes other versions
		}
		for _, m := range inSource.FindAllStringSubmatch(read(t, doc), -1) {
			if found := matching(t, strings.TrimSuffix(m[1], "/")); len(found) == 0 {
				t.Errorf("%s: %s does not exist", doc, m[1])
			}
		}
	}
}

// TestSummary_ListsEveryPageOnce checks that the site has every page once, and that each entry of its table of
// contents leads to a page.
func TestSummary_ListsEveryPageOnce(t *testing.T) {
	t.Parallel()
	const summary = "docs/SUMMARY.md"
	listed := map[string]int{summary: 1}
	for _, m := range links.FindAllStringSubmatch(read(t, summary), -1) {
		listed[filepath.Join("docs", m[2])]++
	}
	all := pages(t)
	for _, page := range all {
		if listed[page] != 1 {
			t.Errorf("%s lists %s %d times", summary, page, listed[page])
		}
	}
	for page := range listed {
		if !slices.Contains(all, page) {
			t.Errorf("%s lists %s, which is not a page", summary, page)
		}
	}
	if book := read(t, "book.toml"); !strings.Contains(book, "\nsrc = \"docs\"\n") {
		t.Errorf("book.toml does not have docs as its source")
	}
}

// TestLimits_AreDocumentedAndTested checks that each limit names a test that reaches it, and
// that docs/LIMITS.md is generated from the table of limits.
func TestLimits_AreDocumentedAndTested(t *testing.T) {
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

// TestDependencies_AreDocumented checks that each module that the main module or that of bench requires has a
// line with the reason.
func TestDependencies_AreDocumented(t *testing.T) {
	t.Parallel()
	why := read(t, "docs/dependencies.md")
	for line := range strings.Lines(read(t, "go.mod") + read(t, "bench/go.mod")) {
		f := strings.Fields(line)
		if len(f) == 2 && strings.Contains(f[0], ".") && f[0] != module && !strings.Contains(why, "| `"+f[0]+"` |") {
			t.Errorf("docs/dependencies.md does not say why %s is needed", f[0])
		}
	}
}

// TestReadme_IsPlayed checks that each command in the README's examples is, literally, in the script that tests
// them.
func TestReadme_IsPlayed(t *testing.T) {
	t.Parallel()
	script := read(t, "internal/cli/testdata/script/readme.txtar")
	commands := regexp.MustCompile(`(?m)^\$ (coppice .*?)( +#.*)?$`).FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(commands) < 20 {
		t.Fatalf("found %d commands in README.md", len(commands))
	}
	for _, c := range commands {
		if !strings.Contains(script, c[1]) {
			t.Errorf("the script does not run %s", c[1])
		}
	}
}
