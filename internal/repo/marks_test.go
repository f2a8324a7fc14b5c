package repo

import (
	"flag"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the table of marks into the documents")

// kinds returns the kinds of a change's marks, sorted.
func kinds(c Change, before, after string) string {
	b, a := []byte(before), []byte(after)
	if c.OldMode == 0 {
		b = nil
	}
	if c.Mode == 0 {
		a = nil
	}
	var ks []string
	for _, m := range marks(c, b, a) {
		ks = append(ks, string(m.Kind))
	}
	slices.Sort(ks)
	return strings.Join(slices.Compact(ks), " ")
}

func TestMarksOfPaths(t *testing.T) {
	t.Parallel()
	for p, want := range map[string]string{
		"main.go": "", "README.md": "", "docs/makefiles.md": "", "src/build.go": "", "a/.gitignore": "", "hooks.go": "",
		"src/environment.ts": "", "x/claude.txt": "", "vscode/x": "", "index.js": "", "a/headline": "",
		".gitattributes": "git", "a/.gitattributes": "git", ".GITMODULES": "git", "GITATT~1": "git", ".lfsconfig": "git",
		".g\u200citattributes": "git",
		"CLAUDE.md":            "agent", "a/b/claude.MD": "agent", "AGENTS.md ": "agent", "GEMINI.md": "agent",
		".claude/settings.json": "agent", ".CLAUDE/x/y": "agent", "CLAUDE~1": "agent", ".codex/config.toml": "agent",
		".gemini": "agent", ".cursor/rules/x.mdc": "agent", ".cursorrules": "agent", ".mcp.json": "agent",
		"opencode.json": "agent", ".github/copilot-instructions.md": "agent",
		".vscode/tasks.json": "editor", ".idea/x": "editor", ".devcontainer/devcontainer.json": "editor",
		"x.code-workspace": "editor", ".exrc": "editor",
		".envrc": "shell", "sub/.envrc": "shell", ".env": "shell", ".env.local": "shell", "flake.nix": "shell",
		".mise.toml":               "shell",
		".github/workflows/ci.yml": "ci", ".GitHub/Workflows/ci.yml": "ci", ".gitlab-ci.yml": "ci", "Jenkinsfile": "ci",
		".circleci/config.yml": "ci", "a/action.yml": "ci", "CODEOWNERS": "ci",
		".pre-commit-config.yaml": "hook", ".husky/pre-commit": "hook", "hooks/pre-commit": "hook",
		"Makefile": "build", "GNUmakefile": "build", "a/b.mk": "build", "CMakeLists.txt": "build", "justfile": "build",
		"setup.py": "build", "build.rs": "build", "a/conftest.py": "build", "tox.ini": "build", ".npmrc": "build",
		"Rakefile": "build", "build.gradle": "build", "pom.xml": "build", ".cargo/config.toml": "build",
		"vite.config.ts": "build", "x.csproj": "build", "Makefile:ads": "build", `a\Makefile`: "build",
		"Dockerfile": "container", "Dockerfile.dev": "container", "docker-compose.yml": "container",
		"compose.yaml": "container",
		"coppice.yaml": "policy", "x/commondir": "repository", "x/packed-refs": "repository",
	} {
		if got := kinds(Change{Status: 'M', Path: p, OldMode: ModeFile, Mode: ModeFile}, "a", "b"); got != want {
			t.Errorf("%q is marked %q, want %q", p, got, want)
		}
	}
}

// TestMarks_ShortNamesWithHash covers the short names that NTFS makes with a hash, from which the long name
// cannot be derived.
func TestMarks_ShortNamesWithHash(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"gi7d29~1", "GI7EBA~1", "claf00~2.md"} {
		if kinds(Change{Status: 'A', Path: p, Mode: ModeFile}, "", "b") == "" {
			t.Errorf("%q is not marked", p)
		}
	}
}

func TestMarksOfContents(t *testing.T) {
	t.Parallel()
	change := Change{Status: 'M', OldMode: ModeFile, Mode: ModeFile}
	added := Change{Status: 'A', Mode: ModeFile}
	for _, c := range []struct {
		c                   Change
		path, before, after string
		want                string
	}{
		{change, "package.json", `{"scripts":{"a":"b"},"version":"1"}`, `{"version":"2","scripts":{"a":"b"}}`, ""},
		{change, "package.json", `{"scripts":{"a":"b"}}`, `{"scripts":{"a":"c"}}`, "build"},
		{change, "x/Package.JSON", `{}`, `{"scripts":{"postinstall":"x"}}`, "build"},
		{change, "package.json", `{}`, `{"scripts":{},"scripts":{"postinstall":"x"}}`, "build"},
		{change, "package.json", `{}`, `{"a":1} {"scripts":{}}`, "build"},
		{change, "package.json", `{}`, "\ufeff{}", "build"},
		{change, "package.json", `{}`, `{"dependencies":{"x":"1"}}`, ""},
		{added, "package.json", ``, `{"name":"x"}`, ""},
		{added, "package.json", ``, `{"scripts":{"test":"x"}}`, "build"},
		{Change{Status: 'D', OldMode: ModeFile}, "package.json", `{"scripts":{"test":"x"}}`, ``, ""},
		{change, "pyproject.toml", "[project]\nversion = 1\n[build-system]\nrequires = []\n",
			"[project]\nversion = 2\n\n[build-system]\nrequires = []\n", ""},
		{change, "pyproject.toml", "[project]\n", "[project]\n[build-system]\nbuild-backend = 'x'\n", "build"},
		{change, "pyproject.toml", "[project]\n", "build-system.build-backend = 'x'\n[project]\n", "build"},
		{change, "pyproject.toml", "[project]\n", "[project]\n [\"build-system\"] # ]\nx = 1\n", "build"},
		{change, "pyproject.toml", "[project]\nx = 1\n", "[project]\nx = '''\n[project]\n'''\n", "build"},
		{change, "Cargo.toml", "[package]\nname='x'\n[dependencies]\n",
			"[package]\nname='x'\n[dependencies]\nserde='1'\n", ""},
		{change, "Cargo.toml", "[package]\nname='x'\n", "[package]\nname='x'\nbuild='x.rs'\n", "build"},
		{added, "x/HEAD", "", "ref: refs/heads/main\n", "repository"},
		{added, "x/head", "", strings.Repeat("ab", 20) + "\n", "repository"},
		{added, "x/HEAD", "", "a headline\n", ""},
		{added, "x/config", "", "[core]\n\tbare = true\n", "repository"},
		{added, "x/config", "", "key = value\n", ""},
		{Change{Status: 'A', Mode: ModeExecutable}, "run", "", "x", "executable"},
		{Change{Status: 'M', OldMode: ModeFile, Mode: ModeExecutable}, "run", "x", "x", "executable"},
		{Change{Status: 'M', OldMode: ModeExecutable, Mode: ModeExecutable}, "run", "x", "y", ""},
		{Change{Status: 'A', Mode: ModeSubmodule}, "sub", "", "", "submodule"},
		{Change{Status: 'T', OldMode: ModeFile, Mode: ModeLink}, "Makefile", "", "x", "build"},
	} {
		c.c.Path = c.path
		if got := kinds(c.c, c.before, c.after); got != c.want {
			t.Errorf("%q of %q to %q is marked %q, want %q", c.path, c.before, c.after, got, c.want)
		}
	}
}

func TestMarksOfLinks(t *testing.T) {
	t.Parallel()
	for target, marked := range map[string]bool{
		"x": false, "dir/x": false, "../x": false, "./x": false, "../../x": true, "..": false, "../..": true,
		"/etc/passwd": true, "x/../../y": true, "x/..": true, "../.git/config": true, "../.GIT": true, "../git~1/hooks": true,
		"": true, "a\x00b": true, `..\x`: true, "../a/b/c": false, ".//x": false, "../.gitignore": false,
	} {
		if got := kinds(Change{Status: 'A', Path: "dir/link", Mode: ModeLink}, "", target); (got == "link") != marked {
			t.Errorf("a link from dir/ to %q is marked %q", target, got)
		}
	}
	if len(marks(Change{Path: "l", Mode: ModeLink}, nil, nil)) == 0 {
		t.Error("a link with unknown target is not marked")
	}
}

// TestMarks_UnmarkedLinksStayWithinTree checks that links that are not marked stay within the
// tree, in any combination.
func TestMarks_UnmarkedLinksStayWithinTree(t *testing.T) {
	t.Parallel()
	parts := []string{"..", "a", "b", ".", "c"}
	all := []string{""}
	for range 3 {
		var more []string
		for _, a := range all {
			for _, p := range parts {
				more = append(more, strings.TrimPrefix(a+"/"+p, "/"))
			}
		}
		all = append(all, more...)
	}
	targets := map[bool]int{}
	for _, first := range all {
		for _, second := range []string{"a", "a/b", "..", "../b"} {
			links := map[string]string{"a/b": first, "b": second}
			safe := true
			for p, to := range links {
				safe = safe && leaves(p, []byte(to)) == ""
			}
			if !safe {
				continue
			}
			escaped := escapes(links, "a/b") || escapes(links, "b")
			targets[escaped]++
			if escaped {
				t.Errorf("%q leave the tree", links)
			}
		}
	}
	if targets[false] == 0 {
		t.Error("no links were tried")
	}
}

// escapes reports whether a path leads out of the tree if links are followed as the kernel does.
func escapes(links map[string]string, p string) bool {
	at, todo := []string{}, strings.Split(p, "/")
	for n := 0; len(todo) > 0 && n < 200; n++ {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return true
			}
			at = at[:len(at)-1]
			continue
		}
		if to, is := links[path.Join(append(slices.Clone(at), part)...)]; is {
			todo = append(strings.Split(to, "/"), todo...)
			continue
		}
		at = append(at, part)
	}
	return false
}

// TestMarks_IndexMatchesRules checks that the index finds the same rules as a search of all patterns.
func TestMarks_IndexMatchesRules(t *testing.T) {
	t.Parallel()
	if len(rules) > 64 {
		t.Fatal("there are more rules than byName supports")
	}
	var all []string
	for _, p := range everyPattern() {
		all = append(all, strings.NewReplacer("*", "x", "/", "").Replace(p.pattern), "src", "git~1")
	}
	rapid.Check(t, func(t *rapid.T) {
		p := strings.Join(rapid.SliceOfN(rapid.SampledFrom(all), 1, 4).Draw(t, "parts"), "/")
		var want []Kind
		for _, r := range rules {
			if slices.ContainsFunc(r.names, func(n string) bool { return fits(names(p), n) }) {
				want = append(want, r.kind)
			}
		}
		var got []Kind
		for _, r := range byName(p) {
			got = append(got, r.kind)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q is marked %q, want %q", p, got, want)
		}
	})
}

func BenchmarkMarks(b *testing.B) {
	c := Change{Status: 'M', Path: "src/github.com/somebody/something/internal/thing/file.go", OldMode: ModeFile,
		Mode: ModeFile}
	for b.Loop() {
		marks(c, nil, nil)
	}
}

const (
	tableBegin = "<!-- marks: written by `go test ./internal/repo -run Table -update` -->\n"
	tableEnd   = "<!-- /marks -->\n"
)

// TestMarks_TableMatchesRules checks that the table in the documents is generated from the rules.
func TestMarks_TableMatchesRules(t *testing.T) {
	t.Parallel()
	const name = "../../docs/git.md"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no markers for the table", name)
	}
	want := before + tableBegin + Table() + tableEnd + after
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Errorf("%s does not match the rules: go test ./internal/repo -run Table -update", name)
	}
}
