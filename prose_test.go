package coppice_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// dialect lists the patterns under "Avoid" in docs/STYLE.md, and what to write instead.
var dialect = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\b(is|are) wanted\b`), `"is required", "must be", or "expected"`},
	{regexp.MustCompile(`(?i)\bwho(so)?ever\b`), "the client, the caller, or the user"},
	{regexp.MustCompile(`(?i)\b(nobody|somebody)\b`), "no process, no client, a user, another client"},
	{regexp.MustCompile(`(?i)\banew\b`), "again"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were|be|been) told\b`), "is informed of, receives"},
	{regexp.MustCompile(`(?i)\b(stand|stands|standing|stood) still\b`), "is paused"},
	{regexp.MustCompile(`(?i)\b(go|goes|going|went|gone) on\b`), "continue, resume"},
	{regexp.MustCompile(`(?i)\b(come|comes|came) to be\b`), "is created"},
	{regexp.MustCompile(`(?i)\b(come|comes|came) about\b`), "happens"},
	{regexp.MustCompile(`(?i)\bof (its|his|their|your|our) own\b`), `"its own …", or "a separate …"`},
	{regexp.MustCompile(`(?i)\bby (itself|themselves)\b`), "automatically, alone"},
	{regexp.MustCompile(`(?i)\b(is|are) no (?:[a-z]+ )?[a-z]+\b`), `"is not a …", "invalid …"`},
	{regexp.MustCompile(`(?i)\bthere (is|was) no [a-z]+ %`), `"… not found", "unknown …"`},
	{regexp.MustCompile(`\b(he|his|him)\b`), "they, their, them"},
}

// plain matches parts of dialect's matches that are good English.
var plain = regexp.MustCompile(`(?i)\b(is|are) no (longer|more|less|other|such)\b`)

// TestProse rejects the expressions of dialect in the string literals of the program and in Markdown.
func TestProse(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	report := func(at, text string) {
		for _, d := range dialect {
			if m := d.pattern.FindString(text); m != "" && !plain.MatchString(m) {
				if os.Getenv("PROSE_COUNT") == "" {
					t.Errorf("%s: %q: write %s (docs/STYLE.md)", at, m, d.instead)
				}
				count[filepath.Dir(strings.SplitN(at, ":", 2)[0])]++
			}
		}
	}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "bin" || entry.Name() == "node_modules" ||
			strings.HasPrefix(entry.Name(), ".") && path != "."):
			return filepath.SkipDir
		case path == filepath.Join("docs", "STYLE.md"):
		case filepath.Ext(path) == ".md":
			return proseOfMarkdown(path, report)
		case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go"):
			return proseOfGo(path, report)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("PROSE_COUNT") != "" {
		for k, n := range count {
			fmt.Println(n, k)
		}
	}
}

// proseOfMarkdown passes the lines of a document that are not in a code block to report.
func proseOfMarkdown(path string, report func(at, text string)) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	code := false
	for i, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			report(path+":"+strconv.Itoa(i+1), line)
		}
	}
	return nil
}

// proseOfGo passes the string literals of a Go file to report.
func proseOfGo(path string, report func(at, text string)) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				report(fmt.Sprintf("%s:%d", path, files.Position(lit.Pos()).Line), strings.Join(strings.Fields(text), " "))
			}
		}
		return true
	})
	return nil
}
