package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// spoken matches a command in backquotes in the text of a document.
var spoken = regexp.MustCompile("`coppice ([^`#\n]+)")

// headers matches words that follow "coppice" in files and keys of Coppice, and are not commands.
var headers = regexp.MustCompile(`^(home|layer|checked|seal|ledger key|witness key) `)

// documents returns the Markdown files for users and contributors, except the changelog, which is also about other
// versions.
func documents(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md", "../../examples/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	return slices.DeleteFunc(all, func(doc string) bool { return filepath.Base(doc) == "CHANGELOG.md" })
}

// TestDocuments_NameCommandsThatExist checks that the commands and flags in backquotes exist.
func TestDocuments_NameCommandsThatExist(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range spoken.FindAllStringSubmatch(string(text), -1) {
			words := strings.Fields(m[1])
			if words[0] == strings.ToUpper(words[0]) || strings.HasPrefix(words[0], "-") || headers.MatchString(m[1]) {
				continue // `coppice VERB`, `coppice --version`
			}
			checked++
			cmd, rest, err := (&app{}).root().Find(words)
			if err == nil && cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") &&
				rest[0] != strings.ToUpper(rest[0]) {
				err = unknown(cmd, rest)
			}
			if err != nil {
				t.Errorf("%s: coppice %s: %v", doc, m[1], err)
				continue
			}
			for _, w := range rest {
				if w == "--" {
					break
				}
				if w == "-" {
					continue // stdin or stdout
				}
				name, _, _ := strings.Cut(strings.TrimLeft(strings.Trim(w, "[]"), "-"), "=")
				if strings.Contains(name, "*") {
					continue // `--keep-*`
				}
				switch dashes := len(w) - len(strings.TrimLeft(w, "-")); {
				case dashes == 2 && cmd.Flag(name) == nil:
					t.Errorf("%s: coppice %s: unknown flag --%s", doc, m[1], name)
				case dashes == 1 && cmd.Flags().ShorthandLookup(name[:1]) == nil:
					t.Errorf("%s: coppice %s: unknown flag -%s", doc, m[1], name)
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d commands were found", checked)
	}
}

// TestDocuments_ShowCommandLinesThatWork checks that the program accepts each command line in an example: the
// command, the flags with their values, and the number of arguments.
func TestDocuments_ShowCommandLinesThatWork(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range typed(string(text)) {
			for _, words := range commandsOf(line) {
				checked++
				if err := taken(words); err != nil {
					t.Errorf("%s: %s: %v", doc, line, err)
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d command lines were found", checked)
	}
}

// taken returns the error of an invalid command line. It runs nothing.
func taken(words []string) error {
	cmd, rest, err := (&app{}).root().Find(words)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// typed returns the lines of a page that a reader types: in blocks of sh all lines, and in blocks of console those
// after "$ ".
func typed(page string) (lines []string) {
	const none = ""
	block, before := none, ""
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if lang, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
			if block != none {
				lang = none
			} else if lang == none {
				lang = "text"
			}
			block = lang
			continue
		}
		if before == "" && block == "console" {
			var prompt bool
			if line, prompt = strings.CutPrefix(line, "$ "); !prompt {
				continue
			}
		}
		if block != "sh" && block != "console" {
			continue
		}
		if head, more := strings.CutSuffix(before+line, `\`); more {
			before = head
			continue
		}
		lines, before = append(lines, before+line), ""
	}
	return lines
}

// commandsOf returns the words after "coppice" for each command in a line of shell.
func commandsOf(line string) (all [][]string) {
	var words []string
	var word strings.Builder
	quote, started := rune(0), false
	end := func() {
		if started {
			words, started = append(words, word.String()), false
			word.Reset()
		}
	}
	next := func() {
		end()
		for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
			words = words[1:] // a variable assignment for this command
		}
		if len(words) > 1 && words[0] == "coppice" {
			all = append(all, words[1:])
		}
		words = nil
	}
	redirect := false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, started = r, true
		case quote != 0:
			word.WriteRune(r)
		case r == '#' && !started:
			next()
			return all
		case strings.ContainsRune("|&;", r):
			next()
			redirect = false
		case r == '<' || r == '>':
			end()
			redirect = true
		case redirect && r == ' ' && !started:
		case r == ' ':
			if redirect { // the name of a file
				word.Reset()
				started, redirect = false, false
			}
			end()
		default:
			started = true
			word.WriteRune(r)
		}
	}
	if redirect {
		word.Reset()
		started = false
	}
	next()
	return all
}

func TestCommandsOf_ParsesLikeShell(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][][]string{
		`coppice ls`:       {{"ls"}},
		`make test`:        nil,
		`coppice ls # all`: {{"ls"}},
		`coppice exec a -- sh -c 'b | c' >out -x`:  {{"exec", "a", "--", "sh", "-c", "b | c", "-x"}},
		`K=V coppice ls > all`:                     {{"ls"}},
		`tar -c . | coppice cp - a:/; coppice ls`:  {{"cp", "-", "a:/"}, {"ls"}},
		`coppice net allow a "*.example.org:443" `: {{"net", "allow", "a", "*.example.org:443"}},
	} {
		if got := commandsOf(line); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
