package repo

import (
	"bufio"
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseRef_RefusesInvalid(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "HEAD", "main", "refs", "refs/", "refs/heads", "refs/heads/", "refs/heads//x", "refs/heads/x/", "refs/heads/-x",
		"refs/heads/.x", "refs/heads/x.lock", "refs/heads/x.lock/y",
		"refs/heads/a..b", "refs/heads/a b", "refs/heads/a~b", "refs/heads/a^b", "refs/heads/a:b", "refs/heads/a?b",
		"refs/heads/a*b", "refs/heads/a[b", `refs/heads/a\b`, "refs/heads/a@{b", "refs/heads/@", "refs/heads/a.",
		"refs/heads/a\nb", "refs/heads/a\x00b", "refs/heads/a\x1b[31m", "refs/heads/a\x7f", "refs/heads/\xff",
		"refs/heads/a\u202eb", "refs/heads/a\u200cb", "refs/heads/a\u3164", "refs/heads/\u2800", "refs/heads/a\ufe0fb",
		"refs/../config", "../refs/heads/x", "/refs/heads/x",
		"refs/heads/" + strings.Repeat("x", 200),
	} {
		if _, err := ParseRef(s); err == nil {
			t.Errorf("%q is accepted", s)
		}
	}
	for _, s := range []string{"refs/heads/main", "refs/heads/coppice/fix-auth", "refs/coppice/x/1", "refs/heads/ä",
		"refs/heads/a@b", "refs/heads/a.b"} {
		if _, err := ParseRef(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"HEAD", "refs/heads/x", "", "-x"} {
		if _, err := ParseBranch(s); err == nil {
			t.Errorf("the branch %q is accepted", s)
		}
	}
}

// TestParseRef_AgreesWithGit checks that git accepts every reference that ParseRef accepts.
func TestParseRef_AgreesWithGit(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git: ", err)
	}
	part := rapid.StringOfN(rapid.SampledFrom([]rune("ab.-@{}~ /\\\u00e4\u0301^:?*[lock\n")), 1, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		s := "refs/" + part.Draw(t, "a") + "/" + part.Draw(t, "b")
		if _, err := ParseRef(s); err == nil && exec.Command(git, "check-ref-format", s).Run() != nil {
			t.Fatalf("git refuses %q", s)
		}
	})
}

func TestPrintable_ReplacesInvisible(t *testing.T) {
	t.Parallel()
	if got := printable(" a\x1b[1m\u3164\u202eb\n\u00e4\u2800 "); got != "a?[1m??b \u00e4?" {
		t.Errorf("%q", got)
	}
}

// spellings are names that some file system treats as .git.
var spellings = []string{
	".git", ".GIT", ".Git", ".git ", ".git.", ".git...", ".git . ", "git~1", "GIT~1", "git~2", ".g\u200cit", "\u200d.git",
	".git\ufeff", ".g\u202ei\u206at", ".git:stream", ".git::$INDEX_ALLOCATION",
	`x\.git`, `.git\config`, "a\\.GIT\\b", ".gıt", ".gİt", "git~1 ", ".\u00adgit",
}

func TestBadPath_RefusesDotGitSpellings(t *testing.T) {
	t.Parallel()
	for _, s := range spellings {
		for _, p := range []string{s, "a/" + s, s + "/config", "a/" + s + "/hooks/x"} {
			if badPath(p) == "" {
				t.Errorf("%q is accepted", p)
			}
		}
	}
	for _, p := range []string{"git", ".gitignore", ".github/x", "a.git", ".git-x", "gitx~1", ".gitt", "x/.gitattributes",
		"git~", "~1", "git~x", "ġit"} {
		if why := badPath(p); why != "" {
			t.Errorf("%q is refused: %s", p, why)
		}
	}
	for _, p := range []string{"", "/", "/etc/passwd", "..", "../x", "a/../b", "a//b", "a/", "./a", ".", "a/.", "a\x00b",
		strings.Repeat("x", 256), strings.Repeat("a/", 3000) + "x"} {
		if badPath(p) == "" {
			t.Errorf("%q is accepted", clip(p))
		}
	}
}

// TestFolding checks that a name is recognized in any case, with invisible characters inside it, and with a
// suffix that file systems ignore. Folding must be idempotent.
func TestFolding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		word := rapid.SampledFrom([]string{".git", ".gitmodules", "CLAUDE.md", ".vscode", "Makefile"}).Draw(t, "word")
		for _, c := range word {
			for range rapid.IntRange(0, 2).Draw(t, "between") {
				b.WriteRune(rapid.SampledFrom([]rune{0x200c, 0x200d, 0x200e, 0x200f, 0x202a, 0x202e, 0x206a, 0x206f, 0xfeff}).
					Draw(t, "unseen"))
			}
			if rapid.Bool().Draw(t, "upper") {
				b.WriteString(strings.ToUpper(string(c)))
			} else {
				b.WriteRune(c)
			}
		}
		b.WriteString(
			strings.Repeat(rapid.SampledFrom([]string{".", " ", ""}).Draw(t, "tail"), rapid.IntRange(0, 3).Draw(t, "times")))
		b.WriteString(rapid.SampledFrom([]string{"", ":x", "::$DATA"}).Draw(t, "stream"))
		if fold(b.String()) != strings.ToLower(word) {
			t.Fatalf("%q folds to %q", b.String(), fold(b.String()))
		}
		if word == ".git" && badPath("a/"+b.String()) == "" {
			t.Fatalf("%q is accepted", b.String())
		}
		if word != ".git" && len(byName("x/"+b.String()+"/y"))+len(byName("x/"+b.String())) == 0 {
			t.Fatalf("%q is not marked", b.String())
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "name")
		if once := fold(s); fold(once) != once {
			t.Fatalf("%q folds to %q, which folds to %q", s, once, fold(once))
		}
	})
}

func FuzzReadBundle(f *testing.F) {
	id := strings.Repeat("ab", 20)
	f.Add([]byte("# v2 git bundle\n-" + id + " comment\n" + id + " refs/heads/x\n\nPACK\x00\x00\x00\x02\x00\x00\x00\x01"))
	f.Add([]byte("# v3 git bundle\n@object-format=sha256\n" + id + id[:24] + " refs/heads/x\n\n"))
	f.Add([]byte("# v3 git bundle\n@filter=blob:none\n\n"))
	f.Add([]byte("# v2 git bundle\n" + id + " refs/heads/-x\n" + id + " HEAD\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		br := bufio.NewReader(bytes.NewReader(b))
		got, err := readBundle(br)
		if err != nil {
			return
		}
		for ref, id := range got.refs {
			if badRef(string(ref)) != "" || len(id) != got.format.digits() {
				t.Errorf("%q %q", ref, id)
			}
		}
		if n, err := packObjects(br); err == nil && (n < 0 || n >= 1<<32) {
			t.Error(n)
		}
	})
}

func FuzzParsers(f *testing.F) {
	id, none := strings.Repeat("ab", 20), strings.Repeat("0", 40)
	f.Add(":100644 100755 " + id + " " + id + " M\x00a\x00:100644 100644 " + id + " " + id +
		" R090\x00b\x00c\x001\t2\ta\x003\t4\t\x00b\x00c\x00")
	f.Add(":000000 120000 " + none + " " + id + " A\x00.git/x\x00")
	f.Add("1 .M N... 100644 100644 100644 " + id + " " + id + " a b\x002 R. N... 100644 100644 100644 " + id + " " + id +
		" R100 x\x00y\x00? z\x00")
	f.Add(id + "\x00a\x00b\x00")
	f.Add(id + " blob 3\nabc\n" + id + " blob 0\n\n")
	f.Add("worktree /x\x00HEAD " + id + "\x00branch refs/heads/x\x00\x00")
	f.Fuzz(func(t *testing.T, s string) {
		raw := &rawReader{most: 100}
		var err error
		for rec := range strings.SplitSeq(strings.TrimSuffix(s, "\x00"), "\x00") {
			if err = raw.record(rec); err != nil {
				break
			}
		}
		if err == nil && raw.end() == nil {
			for _, c := range raw.changes {
				if badPath(c.Path) != "" || c.OldPath != "" && badPath(c.OldPath) != "" {
					t.Errorf("%+v", c)
				}
			}
		}
		if paths, err := parseStatus(s); err == nil && len(paths) > strings.Count(s, "\x00")+1 {
			t.Error(paths)
		}
		parseWorktrees(s)
		if tree, _, err := parseMerge(s); err == nil && len(tree) < 40 {
			t.Error(tree)
		}
		for out := []byte(s); len(out) > 0; {
			_, content, rest, ok := parseObject(out)
			if !ok {
				break
			}
			if len(content)+len(rest) >= len(out) {
				t.Fatal("the rest does not shrink")
			}
			out = rest
		}
		if text, err := rewrite([]byte(s), OID(id), OID(id), "c <c> 1 +0000"); err == nil &&
			!bytes.HasPrefix(text, []byte("tree "+id+"\nparent "+id+"\nauthor ")) {
			t.Errorf("%q", text)
		}
	})
}

func FuzzMarks(f *testing.F) {
	f.Add("package.json", `{"scripts":{"a":"b"}}`, `{"scripts":{"a":"c"}}`)
	f.Add("pyproject.toml", "[project]\nx=1\n", "[build-system]\n")
	f.Add("HEAD", "", "ref: refs/heads/x")
	f.Add("a/link", "", "../../x")
	f.Fuzz(func(t *testing.T, p, before, after string) {
		for _, m := range []Mode{ModeFile, ModeExecutable, ModeLink, ModeSubmodule} {
			c := Change{Status: 'M', Path: p, OldMode: ModeFile, Mode: m}
			looks(c)
			marks(c, []byte(before), []byte(after))
			marks(c, nil, nil)
		}
	})
}
