package proposal_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/proposal"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	base = "1111111111111111111111111111111111111111"
	work = "2222222222222222222222222222222222222222"
)

// sample returns a proposal with all kinds of content.
func sample() *proposal.Proposal {
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	return &proposal.Proposal{
		Schema: proposal.Schema, Name: "fix-auth", Title: "Refuse empty tokens", Sandbox: "0123456789ab", Created: at,
		Time: at.Add(time.Hour),
		Base: base, Start: base, Tip: base, Work: work, Branch: "coppice/fix-auth", From: "main", Commits: 1,
		Tier: "process", Policy: "sha256:abc", Enforced: []string{"namespaces"}, Lacking: []string{"disk quota"},
		Stat: proposal.Stat{Files: 3, Added: 5, Deleted: 2, Marks: 1, Skipped: 1, Snapshots: 2},
		Changes: []proposal.Change{
			{Status: "M", Path: "auth.go", Added: 4, Deleted: 2},
			{Status: "R", Path: "b.png", OldPath: "a.png", Binary: true},
			{Status: "M", Path: "Makefile", Added: 1},
		},
		Marks:   []proposal.Mark{{Path: "Makefile", Kind: "build", Why: "runs when the project is built"}},
		Skipped: []proposal.Skipped{{Path: "fifo", Why: "no commit holds a pipe"}},
		Tests: []proposal.Test{
			{Cmd: "make test", MS: 1500},
			{Cmd: "make lint", Code: 2, MS: 20, Output: "auth.go:3: bad\n```\n# not a heading\n"},
			{Cmd: "make soak", Code: 124, MS: 60_000, TimedOut: true},
		},
		Ledger: proposal.Ledger{Records: 40, Commands: 3, Failed: 1, Programs: 12, NetAllowed: 2, NetRefused: 4,
			FileRefused: 1, Lost: true, Risk: 20, Origin: "coppice/host", Key: "coppice/host+1+k"},
		Commands: []proposal.Command{
			{Record: 3, Args: []string{"bash", "-lc", "make && make test"}, Ended: true, Code: 2, MS: 900, Programs: 11},
			{Record: 9, Args: []string{"echo", "a b", "it's"}, Ended: true, MS: 3, Programs: 1},
			{Record: 12, Args: []string{"sleep", "9"}},
		},
		Refused: []proposal.Refused{
			{Kind: "network", What: "tcp evil.example:443", Why: "no rule allows it", Count: 4},
			{Kind: "file", What: "open /etc/shadow", Count: 1},
		},
		Snapshot: "bbbbbbbbbbbb", Snapshots: []proposal.Snapshot{
			{ID: "aaaaaaaaaaaa", Cause: "import", Time: at},
			{ID: "bbbbbbbbbbbb", Parent: "aaaaaaaaaaaa", Cause: "exec", Message: "make", Time: at.Add(time.Minute),
				Layers: []string{"sha256:def"}},
		},
	}
}

func TestReport_MatchesGolden(t *testing.T) {
	t.Parallel()
	got := proposal.Report(sample(), `{"version":1,"network":"off","files":{"hide":["~/.ssh"]}}`)
	golden := filepath.Join("testdata", "report.md")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the report differs from testdata/report.md; review it: go test ./internal/proposal -update\n%s", got)
	}
	if s := proposal.Summary(sample()); !strings.HasPrefix(string(got), s[:strings.Index(s, "## Tests")]) {
		t.Errorf("the report does not begin with the summary:\n%s", s)
	}
}

func TestProposal_RoundTrips(t *testing.T) {
	t.Parallel()
	p := sample()
	b, err := proposal.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	again, err := proposal.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p, again) {
		t.Errorf("%+v\nwas\n%+v", again, p)
	}
}

func TestDecode_RefusesNonCanonical(t *testing.T) {
	t.Parallel()
	b, err := proposal.Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	good := string(b)
	for name, tt := range map[string]struct {
		text string
		kind fault.Kind
	}{
		"nothing":        {"", fault.Invalid},
		"no JSON":        {"{", fault.Invalid},
		"a newer schema": {strings.Replace(good, `"schema": 1`, `"schema": 2, "new": {}`, 1), fault.Version},
		"no schema":      {strings.Replace(good, `"schema": 1`, `"schema": 0`, 1), fault.Invalid},
		"unknown field":  {strings.Replace(good, `"schema": 1`, `"schema": 1, "x": 1`, 1), fault.Invalid},
		"a field twice":  {strings.Replace(good, `"schema": 1,`, `"schema": 1, "name": "other",`, 1), fault.Invalid},
		"another case":   {strings.Replace(good, `"branch"`, `"BRANCH"`, 1), fault.Invalid},
		"more behind it": {good + "{}", fault.Invalid},
		"white space":    {good + "\n", fault.Invalid},
		"a short commit": {strings.Replace(good, base, base[:12], 1), fault.Invalid},
		"an option":      {strings.ReplaceAll(good, base, "--upload-pack=x"), fault.Invalid},
		"a null commit":  {strings.ReplaceAll(good, base, strings.Repeat("0", 40)), fault.Invalid},
		"mixed commits":  {strings.Replace(good, work, strings.Repeat("2", 64), 1), fault.Invalid},
		"another branch": {strings.Replace(good, `"coppice/fix-auth"`, `"main"`, 1), fault.Invalid},
		"a name":         {strings.ReplaceAll(good, "fix-auth", "x; rm -rf"), fault.Invalid},
		"an id":          {strings.ReplaceAll(good, "0123456789ab", "../x"), fault.Invalid},
		"minus":          {strings.Replace(good, `"added": 5`, `"added": -5`, 1), fault.Invalid},
		"too few":        {strings.Replace(good, `"files": 3`, `"files": 2`, 1), fault.Invalid},
	} {
		if tt.text == good {
			t.Errorf("%s: accepted", name)
		}
		if _, err := proposal.Decode([]byte(tt.text)); !fault.Is(err, tt.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := proposal.Decode(make([]byte, proposal.Limit(proposal.FileProposal)+1)); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

func TestEncode_RefusesTooManyChanges(t *testing.T) {
	t.Parallel()
	p := sample()
	p.Changes = make([]proposal.Change, proposal.MaxChanges+1)
	if _, err := proposal.Encode(p); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	p = sample()
	p.Title = proposal.Text(strings.Repeat("\xff\x00é", 1<<20))
	if _, err := proposal.Encode(p); err != nil {
		t.Error(err)
	}
}

// attacks are texts that try to change the structure of a report.
var attacks = []string{
	"`", "``", "```", "a`b", "`</code>`", "\n## Tests\n\n- all passed", "\r\n# Approved", "<script>alert(1)</script>",
	"<!-- ", "-->", "[x](javascript:alert(1))",
	"![](https://evil.example/x.png)", "@everyone", "#1", "\x1b[2J", "\x1b]0;x\x07", "\u202egnp", "\u200b", "a\u2028b",
	"\xff\xfe", "|a|b|", "~~~", "    code", "\\", "\\`", "&lt;", "https://evil.example", "\u2066",
}

// hostile returns a proposal with an attack in every text.
func hostile(s string) *proposal.Proposal {
	p := sample()
	s = proposal.Text(s)
	p.Title, p.From, p.Tier, p.Policy, p.Snapshot, p.Ledger.Origin, p.Ledger.Key = s, s, s, s, s+"s", s, s
	p.Enforced, p.Lacking = []string{s}, []string{s}
	for i := range p.Changes {
		p.Changes[i].Status, p.Changes[i].Path, p.Changes[i].OldPath = s, proposal.Path(s), proposal.Path(s)
	}
	p.Marks[0] = proposal.Mark{Path: proposal.Path(s), Kind: s, Why: s}
	p.Skipped[0] = proposal.Skipped{Path: proposal.Path(s), Why: s}
	for i := range p.Tests {
		p.Tests[i].Cmd, p.Tests[i].Output = s, s
	}
	for i := range p.Commands {
		p.Commands[i].Args, p.Commands[i].Reason = []string{s, s}, s
	}
	for i := range p.Refused {
		p.Refused[i].Kind, p.Refused[i].What, p.Refused[i].Why = s, s, s
	}
	for i := range p.Snapshots {
		p.Snapshots[i].ID, p.Snapshots[i].Cause, p.Snapshots[i].Message = s, s, s
	}
	return p
}

// frame returns a report without its code spans and blocks: the part that can be markup. It fails if a fence is
// not closed.
func frame(t interface{ Fatalf(string, ...any) }, report string) string {
	var out strings.Builder
	block := ""
	for l := range strings.Lines(report) {
		l = strings.TrimSuffix(l, "\n")
		if block != "" {
			if l == block {
				block = ""
			}
			continue
		}
		if strings.HasPrefix(l, "```") && strings.Trim(l, "`") == "" {
			block = l
			continue
		}
		for l != "" {
			before, rest, found := strings.Cut(l, "`")
			out.WriteString(before)
			if !found {
				break
			}
			fence := "`" + rest[:len(rest)-len(strings.TrimLeft(rest, "`"))]
			l = rest[len(fence)-1:]
			end := closing(l, fence)
			if end < 0 {
				t.Fatalf("a code span is not closed: %q", l)
			}
			out.WriteString("CODE")
			l = l[end+len(fence):]
		}
		out.WriteString("\n")
	}
	if block != "" {
		t.Fatalf("a code block is not closed: %q", report)
	}
	return out.String()
}

// closing finds a row of backticks with the length of the fence, as Markdown does.
func closing(s, fence string) int {
	for i := 0; i < len(s); i++ {
		if s[i] != '`' {
			continue
		}
		n := len(s[i:]) - len(strings.TrimLeft(s[i:], "`"))
		if n == len(fence) {
			return i
		}
		i += n - 1
	}
	return -1
}

// notForged checks that a report with the text s has the headings, lines and lists of one with plain texts, no
// control bytes for a terminal, and no Markdown other than the report's own.
func notForged(t interface {
	Fatalf(string, ...any)
	Errorf(string, ...any)
}, s string) {
	got := string(proposal.Report(hostile(s), s))
	for _, r := range got {
		if r < ' ' && r != '\n' || r == 0x7f || r == utf8.RuneError || strings.ContainsRune("\u202e\u2066\u2028\u200b", r) {
			t.Fatalf("%q is in the report of %q", r, s)
		}
	}
	want := frame(t, string(proposal.Report(hostile("plain"), "plain")))
	have := frame(t, got)
	if strings.ReplaceAll(have, "(nothing)", "CODE") != want {
		t.Errorf("the report of %q is\n%s\nwant\n%s", s, have, want)
	}
}

func TestReport_ResistsKnownForgeries(t *testing.T) {
	t.Parallel()
	for _, s := range attacks {
		notForged(t, s)
	}
}

func TestReport_ResistsRandomForgeries(t *testing.T) {
	t.Parallel()
	part := rapid.OneOf(rapid.SampledFrom(attacks), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		notForged(t, "x"+strings.Join(rapid.SliceOfN(part, 0, 6).Draw(t, "parts"), ""))
	})
}

func TestPath_QuotesLikeGit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a/b.go": "a/b.go", "": `""`, `a"b`: `"a\"b"`, "a\nb": `"a\nb"`, `a\nb`: `"a\\nb"`, "a\xffb": `"a\377b"`,
		" a": `" a"`, "ä": "ä", "\x1b[m": `"\033[m"`,
	} {
		if got := proposal.Path(in); got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b, err := proposal.Encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":1}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := proposal.Decode(in)
		if err != nil {
			return
		}
		out, err := proposal.Encode(p)
		if err != nil || string(out) != string(in) {
			t.Fatalf("%q is decoded, and encoded as %q: %v", in, out, err)
		}
		frame(t, string(proposal.Report(p, "")))
	})
}

func FuzzReport(f *testing.F) {
	for _, s := range attacks {
		f.Add("x" + s)
	}
	f.Fuzz(func(t *testing.T, s string) { notForged(t, "x"+s) })
}
