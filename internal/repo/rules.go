package repo

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
)

// Kind is the reason for marking a path. Kinds are only ever added.
type Kind string

// The kinds of marks.
const (
	KindGit        Kind = "git"        // git reads it when it works on the tree
	KindAgent      Kind = "agent"      // instructs agents, or grants them rights
	KindEditor     Kind = "editor"     // an editor reads it when the directory is opened
	KindShell      Kind = "shell"      // read by a shell, or by a tool that watches directories
	KindCI         Kind = "ci"         // runs in the forge's CI, with its secrets
	KindHook       Kind = "hook"       // runs on commit, merge or push
	KindBuild      Kind = "build"      // runs when the project is built, installed or tested
	KindContainer  Kind = "container"  // defines containers or machines
	KindPolicy     Kind = "policy"     // defines what sandboxes may do
	KindExecutable Kind = "executable" // can be run by its name
	KindLink       Kind = "link"       // a link that leaves the tree, or leads to git's directory
	KindSubmodule  Kind = "submodule"  // a commit of another repository
	KindRepository Kind = "repository" // looks like a nested repository
)

// rule marks paths by their folded names.
type rule struct {
	kind  Kind
	why   string
	names []string // patterns of names; a pattern that ends with / matches a directory, and marks everything below it
}

// rules are the paths that the host would later run or trust. Patterns are those of path.Match, in lower case; a
// pattern matches any element of a path, and one with slashes as many consecutive elements.
var rules = []rule{
	{KindGit, "git uses it to check out, compare or fetch files", []string{
		".gitattributes", ".gitmodules", ".gitconfig", ".lfsconfig", ".gitinclude"}},
	{KindHook, "runs on commit, merge or push", []string{
		".pre-commit-config.y*ml", ".pre-commit-hooks.y*ml", ".husky/", ".githooks/", "githooks/", "hooks/", "lefthook.*",
		".lefthook.*", "lefthook-local.*",
		".lintstagedrc*", "lint-staged.config.*", ".overcommit.yml", ".simple-git-hooks.*"}},
	{KindAgent, "configures agents: their instructions, tools or permissions", []string{
		"claude.md", "claude.local.md", ".claude/", ".claude.json", "agents.md", "agents.override.md", "agent.md", ".agents/",
		".codex/", "gemini.md", ".gemini/", "qwen.md", ".qwen/",
		".cursor/", ".cursorrules", ".windsurf/", ".windsurfrules", ".clinerules", ".clinerules/", ".roo/", ".roorules*",
		".roomodes", ".kilocode/", ".aider*", ".mcp.json", "mcp.json",
		"opencode.json", "opencode.jsonc", ".opencode/", ".continue/", ".continuerules", ".amazonq/", ".kiro/", ".junie/",
		".goosehints", ".goose/", "crush.json", ".crush.json", ".crush/",
		".augment/", ".augment-guidelines", ".trae/", ".factory/", "warp.md", "skill.md", "copilot-instructions.md",
		".github/instructions/", ".github/prompts/", ".github/chatmodes/", ".github/agents/"}},
	{KindEditor, "an editor runs or reads it when the directory is opened", []string{
		".vscode/", ".idea/", ".devcontainer/", ".devcontainer.json", ".zed/", ".fleet/", ".vs/", ".theia/", ".nova/",
		".helix/", "*.code-workspace", "*.sublime-project",
		".exrc", ".vimrc", ".lvimrc", ".nvimrc", ".nvim.lua", ".dir-locals*.el", ".projectile", ".clangd",
		".ycm_extra_conf.py", ".gdbinit", ".lldbinit"}},
	{KindShell, "a shell, or a tool that hooks it, runs it in the directory", []string{
		".envrc", ".env", ".env.*", ".mise.toml", "mise.toml", ".mise/", ".tool-versions", ".autoenv", ".autoenv.zsh",
		"flake.nix", "shell.nix", "default.nix", "devenv.nix", "devbox.json",
		".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".zprofile", ".tmux.conf", ".inputrc"}},
	{KindCI, "runs in CI, with its secrets, or sets who must review", []string{
		".github/workflows/", ".github/actions/", "action.yml", "action.yaml", "codeowners", ".gitlab-ci*.y*ml", ".gitlab/",
		".gitea/", ".forgejo/", ".circleci/", ".buildkite/", ".woodpecker*", ".drone.y*ml", ".travis.y*ml",
		"jenkinsfile*", "azure-pipelines*.y*ml", ".azure-pipelines/", "bitbucket-pipelines.y*ml", "appveyor.y*ml",
		".appveyor.y*ml", "cloudbuild*.y*ml", "buildspec*.y*ml", ".cirrus.*", ".semaphore/", ".teamcity/", "renovate.json*",
		"dependabot.y*ml"}},
	{KindBuild, "runs when the project is built, installed or tested", []string{
		"makefile", "makefile.*", "gnumakefile", "bsdmakefile", "*.mk", "*.mak", "cmakelists.txt", "*.cmake",
		"cmakepresets.json", "cmakeuserpresets.json", "justfile", ".justfile", "*.just", "taskfile*.y*ml", "meson.build",
		"build.ninja", "configure", "configure.ac", "autogen.sh", "bootstrap", "bootstrap.sh", "wscript",
		"sconstruct", "sconscript",
		"build", "build.bazel", "workspace", "workspace.bazel", "module.bazel", "*.bzl", ".bazelrc", "buck", ".buckconfig",
		"*.gyp", "*.gypi", "build.zig", "build.sh", "build.xml", "build.sbt", "*.sbt",
		"*.gradle", "*.gradle.kts", "gradlew*", "gradle/wrapper/", "gradle.properties", "pom.xml", ".mvn/", "mvnw*",
		"build.rs", ".cargo/", "rust-toolchain*",
		"setup.py", "setup.cfg", "conftest.py", "tox.ini", "pytest.ini", "noxfile.py", "tasks.py", "fabfile.py", "dodo.py",
		"sitecustomize.py", "usercustomize.py", "*.pth", "pip.conf", ".pypirc",
		"rakefile*", "*.rake", "gemfile*", "*.gemspec", ".bundle/", ".npmrc", ".yarnrc*", ".yarn/", ".pnpmfile.*",
		"bunfig.toml", "deno.json*", "gulpfile*", "gruntfile*", "*.config.js", "*.config.cjs", "*.config.mjs", "*.config.ts",
		"*.config.cts", "*.config.mts", ".eslintrc*", ".babelrc*", ".mocharc*", ".swcrc", ".prettierrc*",
		"mix.exs", "rebar.config", "package.swift", "podfile", "fastfile", "*.podspec", "*.csproj", "*.vcxproj", "*.fsproj",
		"*.targets", "*.props", "nuget.config", "snakefile", "dune", "dune-project", "*.cabal", "setup.hs", "stack.yaml",
		"composer.json", "magefile.go", "magefiles/", "go.work", "*.tf", "ansible.cfg"}},
	{KindContainer, "defines containers or machines, which may mount directories of the host", []string{
		"dockerfile*", "*.dockerfile", "containerfile*", "docker-compose*.y*ml", "compose*.y*ml", "docker-bake.*",
		"vagrantfile", "procfile*", "tiltfile", "earthfile", "skaffold.y*ml", "dagger.json"}},
	{KindPolicy, "sets what sandboxes may do or run", []string{"coppice.y*ml", ".coppice/", "candidates.y*ml"}},
	{KindRepository, "git would treat a directory that contains it as a repository",
		[]string{"commondir", "gitdir", "packed-refs"}},
}

// byName returns the rules that match elements of a path. Most patterns are plain names, which are looked up, but
// an 8.3 short name may stand for any of them.
func byName(p string) []rule {
	parts := names(p)
	if len(parts) == 0 {
		return nil
	}
	var hit [64]bool
	plain := plainNames()
	for i, part := range parts {
		if strings.IndexByte(part, '~') >= 0 {
			plain = nameIndex{odd: everyPattern()}
		}
		for _, r := range plain.above[part] {
			hit[r] = true
		}
		if i == len(parts)-1 {
			for _, r := range plain.last[part] {
				hit[r] = true
			}
		}
	}
	for _, o := range plain.odd {
		hit[o.rule] = hit[o.rule] || fits(parts, o.pattern)
	}
	var fit []rule
	for i, r := range rules {
		if hit[i] {
			fit = append(fit, r)
		}
	}
	return fit
}

// nameIndex holds the patterns of the rules by lookup method. Rules are indices into rules.
type nameIndex struct {
	last, above map[string][]int // plain names: matching the last element, any element
	odd         []ruled          // all others
}

type ruled struct {
	pattern string
	rule    int
}

var everyPattern = sync.OnceValue(func() (all []ruled) {
	for i, r := range rules {
		for _, n := range r.names {
			all = append(all, ruled{n, i})
		}
	}
	return all
})

var plainNames = sync.OnceValue(func() nameIndex {
	x := nameIndex{last: map[string][]int{}, above: map[string][]int{}}
	for _, p := range everyPattern() {
		switch name, above := strings.CutSuffix(p.pattern, "/"); {
		case strings.ContainsAny(name, "*/"):
			x.odd = append(x.odd, p)
		case above:
			x.above[name] = append(x.above[name], p.rule)
		default:
			x.last[name] = append(x.last[name], p.rule)
		}
	}
	return x
})

// fits reports whether a path matches a pattern: at the end of the path, or anywhere if the pattern ends with a
// slash. The path of the directory itself, which may be a link or a file in its place, also matches.
func fits(parts []string, pattern string) bool {
	pattern, above := strings.CutSuffix(pattern, "/")
	many := 1 + strings.Count(pattern, "/")
	first := len(parts) - many
	if above {
		first = 0
	}
	for i := max(first, 0); i+many <= len(parts); i++ {
		if match(parts[i:], pattern) {
			return true
		}
	}
	return false
}

// match reports whether the first names match a pattern.
func match(parts []string, pattern string) bool {
	for i, more := 0, true; more; i++ {
		var want string
		want, pattern, more = strings.Cut(pattern, "/")
		if parts[i] == want || isShort(parts[i], want) {
			continue
		}
		// A star matches any bytes, so only the parts before the first and after the last are fixed.
		first, last := strings.IndexByte(want, '*'), strings.LastIndexByte(want, '*')
		if first < 0 || !strings.HasPrefix(parts[i], want[:first]) || !strings.HasSuffix(parts[i], want[last+1:]) {
			return false
		}
		if ok, err := path.Match(want, parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// Table returns the rules, and the marks that depend on contents, as Markdown.
func Table() string {
	var b strings.Builder
	b.WriteString("| kind | what is marked | why |\n|---|---|---|\n")
	for _, r := range rules {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", r.kind, strings.Join(r.names, "`, `"), r.why)
	}
	for _, name := range slices.Sorted(maps.Keys(manifests)) {
		fmt.Fprintf(&b, "| `%s` | `%s`, by parts | %s |\n", KindBuild, name, manifests[name].why)
	}
	for _, r := range []rule{
		{KindRepository, "git would treat a directory that contains it as a repository",
			[]string{"`HEAD` and `config`, if their contents are those of a repository's"}},
		{KindExecutable, "becomes executable",
			[]string{"a new or changed file that becomes executable"}},
		{KindLink, "following it leaves the tree, or reaches git's own files",
			[]string{"a symbolic link to an absolute path, above the top, through `..` after a name, or into `.git`"}},
		{KindSubmodule, "git would fetch and check out files that are not in the diff", []string{"a submodule's commit"}},
	} {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.kind, r.names[0], r.why)
	}
	return b.String()
}
