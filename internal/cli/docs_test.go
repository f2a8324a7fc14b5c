package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// spoken are the commands of a document: lines that a person types, and those that
// the text has in backquotes.
var spoken = regexp.MustCompile("(?m)(?:^\\$ |`)coppice ([^`#\n]+)")

// The commands and flags that the documents speak of are real.
func TestTheDocumentsSpeakOfRealCommands(t *testing.T) {
	t.Parallel()
	var docs []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/guides/*.md", "../../docs/design/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, files...)
	}
	checked := 0
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range spoken.FindAllStringSubmatch(string(text), -1) {
			words := strings.Fields(m[1])
			if words[0] == strings.ToUpper(words[0]) {
				continue // `coppice VERB`, `coppice --version`
			}
			checked++
			cmd, _, err := (&app{}).root().Find(words[:min(2, len(words))]) // "token create"
			if err != nil {
				t.Errorf("%s: coppice %s: %v", doc, m[1], err)
				continue
			}
			for _, w := range words[1:] {
				if w == "--" {
					break
				}
				if w == "-" {
					continue // stdin or stdout
				}
				name, _, _ := strings.Cut(strings.TrimLeft(strings.Trim(w, "[]"), "-"), "=")
				switch dashes := len(w) - len(strings.TrimLeft(w, "-")); {
				case dashes == 2 && cmd.Flag(name) == nil:
					t.Errorf("%s: coppice %s: there is no flag --%s", doc, m[1], name)
				case dashes == 1 && cmd.Flags().ShorthandLookup(name[:1]) == nil:
					t.Errorf("%s: coppice %s: there is no flag -%s", doc, m[1], name)
				}
			}
		}
	}
	if checked < 8 {
		t.Errorf("only %d commands were found in %q", checked, docs)
	}
}
