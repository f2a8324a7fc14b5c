// Package coppice_test holds the rules for the whole repository as tests.
package coppice_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/coppice-dev/coppice"

// packages maps each package to the packages of this module that its files other than tests import. A package may
// import only these, and must import all of them. Packages that only serve tests are not listed.
var packages = map[string][]string{
	"cmd/coppice": {"internal/cli"},
	"cmd/coppice-init": {
		"internal/box/guest", "internal/box/initlink", "internal/box/keeper", "internal/box/oci", "internal/box/probe",
		"internal/box/protocol", "internal/box/relay", "internal/plan",
	},
	"cmd/coppice-gate":   {"internal/gate/process"},
	"cmd/coppice-sentry": {"internal/box/gvisor"},
	"cmd/coppice-broker": {"internal/secret/broker"},

	"internal/cli": {
		"client", "client/wire", "internal/daemon", "internal/fault", "internal/filter", "internal/grant",
		"internal/hook", "internal/inside", "internal/label", "internal/ledger/format", "internal/mcpapi",
		"internal/policy", "internal/program", "internal/proposal", "internal/registry", "internal/removal",
		"internal/secret/client", "internal/tty",
	},
	"internal/daemon": {
		"client", "client/wire", "internal/admission", "internal/audit", "internal/auth",
		"internal/box", "internal/box/cgroup", "internal/box/probe", "internal/boxfs", "internal/command",
		"internal/dirfd", "internal/diskuse", "internal/egress", "internal/engine", "internal/events", "internal/fault",
		"internal/gitwork", "internal/grants", "internal/history", "internal/httpapi", "internal/layer", "internal/ledger", "internal/lifetime",
		"internal/lineapi", "internal/mcpapi",
		"internal/memory", "internal/meta", "internal/plan", "internal/policies", "internal/policy",
		"internal/ports", "internal/program", "internal/redact", "internal/repo", "internal/restore", "internal/rootfs",
		"internal/rootspec", "internal/secret/client", "internal/thread", "internal/tournament", "internal/travel", "internal/undo",
		"internal/unixsock", "internal/upkeep", "internal/vfs", "internal/visible",
	},
	"internal/httpapi": {"client/wire", "internal/admission", "internal/auth", "internal/fault", "internal/filter"},
	"internal/auth":    {"client/wire", "internal/fault", "internal/visible"},

	"internal/admission":     {"internal/fault"},
	"internal/mcpapi":        {"client", "client/wire", "internal/fault", "internal/tty", "internal/visible"},
	"internal/ports":         {"client/wire", "internal/fault"},
	"internal/ports/sockets": {},

	"internal/inside":  {"client/wire", "internal/fault"},
	"internal/lineapi": {"client/wire", "internal/admission", "internal/fault", "internal/secretbox", "internal/timeline"},

	"client":      {"client/wire"},
	"client/wire": {},

	"internal/archive": {"internal/fault"},
	"internal/decoy":   {"internal/fault"},
	"internal/boxfs":   {"client/wire", "internal/archive", "internal/dirfd", "internal/fault"},
	"internal/engine": {
		"client", "client/wire", "internal/audit", "internal/bases", "internal/boxfs", "internal/command",
		"internal/egress", "internal/events", "internal/fault", "internal/gitrefs", "internal/gitwork",
		"internal/grants", "internal/history", "internal/ignored", "internal/images", "internal/journal", "internal/label",
		"internal/layer",
		"internal/ledger", "internal/ledger/format", "internal/lifetime", "internal/livefiles",
		"internal/masks", "internal/memory", "internal/message", "internal/meta", "internal/plan",
		"internal/policies", "internal/policy", "internal/repo", "internal/restore", "internal/rootfs", "internal/rootspec",
		"internal/sandbox", "internal/stacks", "internal/timeline", "internal/tournament", "internal/travel",
		"internal/upkeep", "internal/vfs", "internal/visible", "internal/worktree",
	},
	"internal/layer": {
		"internal/archive", "internal/dirfd", "internal/fault", "internal/layer/format",
		"internal/quota", "internal/removal", "internal/rootspec", "internal/timeline",
		"internal/undo", "internal/vfs",
	},
	"internal/layer/format": {"internal/fault"},
	"internal/memory":       {"internal/dirfd", "internal/fault", "internal/undo", "internal/vfs"},
	"internal/meta":         {"client/wire", "internal/fault", "internal/secretbox", "internal/timeline", "internal/vfs"},
	"internal/rootfs": {
		"internal/dirfd", "internal/fault", "internal/mounttable", "internal/quota",
		"internal/removal", "internal/rootspec", "internal/undo",
	},
	"internal/removal":  {"internal/dirfd", "internal/fault"},
	"internal/rootspec": {"internal/dirfd", "internal/fault"},
	"internal/sandbox":  {"internal/fault", "internal/timeline"},
	"internal/quota":    {"internal/fault", "internal/mounttable", "internal/thread", "internal/visible"},

	"internal/box": {
		"client/wire", "internal/box/cgroup", "internal/box/initlink", "internal/box/procs",
		"internal/box/protocol", "internal/fault", "internal/plan", "internal/program",
		"internal/secretbox", "internal/undo", "internal/unixsock",
	},
	"internal/box/keeper": {
		"client/wire", "internal/box/cgroup", "internal/box/initlink", "internal/box/procs",
		"internal/box/protocol", "internal/box/refusals", "internal/dirfd", "internal/fault",
		"internal/gate/control", "internal/gate/entrance/ask", "internal/gate/link", "internal/javastore",
		"internal/journal", "internal/landlock", "internal/mounttable", "internal/plan", "internal/program",
		"internal/rootspec", "internal/secret/line", "internal/secretbox", "internal/thread", "internal/undo",
		"internal/unixsock",
	},
	"internal/box/protocol": {"client/wire", "internal/box/initlink", "internal/fault", "internal/plan"},
	"internal/box/cgroup": {
		"client/wire", "internal/box/procs", "internal/fault", "internal/mounttable", "internal/plan",
	},
	"internal/plan": {"internal/fault", "internal/rootspec"},
	"internal/box/guest": {
		"client/wire", "internal/box/execs", "internal/box/initlink", "internal/box/mounts",
		"internal/box/notify", "internal/box/procs", "internal/box/refusals", "internal/box/seccomp",
		"internal/dirfd", "internal/fault", "internal/gate/link", "internal/landlock", "internal/plan", "internal/rootspec",
		"internal/thread",
	},
	"internal/box/initlink": {"client/wire", "internal/fault", "internal/plan", "internal/rootspec"},
	"internal/box/procs": {
		"internal/box/initlink", "internal/fault", "internal/mounttable", "internal/ports/sockets",
	},
	"internal/box/execs": {
		"client/wire", "internal/box/initlink", "internal/box/notify", "internal/box/procs",
		"internal/fault",
	},
	"internal/box/refusals": {"internal/box/initlink", "internal/box/procs", "internal/fault"},
	"internal/box/mounts":   {"internal/dirfd", "internal/fault"},
	"internal/box/relay": {
		"internal/box/guest", "internal/box/initlink", "internal/thread", "internal/unixsock",
	},

	"internal/box/oci": {
		"internal/box/guest", "internal/box/initlink", "internal/box/mounts", "internal/box/seccomp",
		"internal/fault", "internal/limit", "internal/plan",
	},
	"internal/box/gvisor": {
		"client/wire", "internal/box/execs", "internal/box/initlink", "internal/box/mounts",
		"internal/box/procs", "internal/box/refusals", "internal/box/relay", "internal/box/seccomp",
		"internal/fault", "internal/gate/link", "internal/plan", "internal/rootspec",
	},
	"internal/box/probe": {
		"client/wire", "internal/fault", "internal/gate/link", "internal/mounttable",
		"internal/program", "internal/quota",
	},
	"internal/box/seccomp": {},
	"internal/box/notify": {
		"internal/box/seccomp", "internal/dirfd", "internal/fault", "internal/gate/entrance/ask",
		"internal/mounttable", "internal/rootspec", "internal/thread",
	},

	// The monitor imports link and control, so these never import the gate itself and its network stack.
	"internal/gate": {
		"internal/decoy", "internal/fault", "internal/gate/inspect", "internal/gate/link",
		"internal/gate/pipe", "internal/gate/scrub", "internal/gate/sigv4", "internal/gate/sshgate",
		"internal/gate/wallet", "internal/grant", "internal/policy",
	},
	"internal/gate/scrub":   {},
	"internal/gate/sigv4":   {},
	"internal/gate/sshgate": {"internal/fault", "internal/grant"},
	"internal/gate/inject":  {"internal/grant"},
	"internal/gate/wallet": {
		"internal/fault", "internal/gate/inject", "internal/gate/scrub", "internal/gate/sigv4", "internal/grant",
		"internal/policy", "internal/secret/line",
	},
	"internal/gate/pipe": {"internal/fault"},
	"internal/gate/entrance": {
		"internal/fault", "internal/gate/entrance/ask", "internal/gate/link", "internal/gate/pipe",
	},
	"internal/gate/entrance/ask": {"internal/fault"},
	"internal/gate/inspect":      {"internal/fault", "internal/policy"},
	"internal/gate/link":         {"internal/fault", "internal/thread"},
	"internal/gate/control": {
		"client/wire", "internal/fault", "internal/landlock", "internal/plan", "internal/program",
		"internal/thread",
	},
	"internal/gate/process": {
		"client/wire", "internal/decoy", "internal/fault", "internal/gate", "internal/gate/control",
		"internal/gate/entrance", "internal/gate/link", "internal/gate/wallet", "internal/grant",
		"internal/journal", "internal/plan", "internal/policy", "internal/secret/line",
	},

	"internal/program": {"internal/fault", "internal/visible"},

	"internal/ledger":        {"internal/dirfd", "internal/fault", "internal/ledger/format", "internal/vfs"},
	"internal/ledger/format": {"internal/fault"},

	"internal/timeline":  {"internal/fault", "internal/visible"},
	"internal/policy":    {"internal/fault", "internal/redact", "internal/visible"},
	"internal/grant":     {"internal/fault", "internal/policy"},
	"internal/hook":      {"internal/fault"},
	"internal/journal":   {"client/wire", "internal/fault", "internal/secretbox", "internal/vfs"},
	"internal/redact":    {"internal/fault"},
	"internal/javastore": {},
	"internal/label":     {"internal/fault", "internal/visible"},
	"internal/filter":    {"client/wire", "internal/fault", "internal/label", "internal/timeline"},
	"internal/message":   {"client/wire", "internal/layer", "internal/visible"},
	"internal/gitrefs":   {"internal/fault", "internal/meta", "internal/repo", "internal/timeline"},
	"internal/gitwork": {
		"client", "client/wire", "internal/audit", "internal/dirfd", "internal/fault", "internal/gitrefs",
		"internal/layer", "internal/ledger", "internal/ledger/format", "internal/message", "internal/meta", "internal/policy",
		"internal/proposal", "internal/repo", "internal/tail", "internal/timeline", "internal/undo", "internal/visible",
	},
	"internal/diskuse": {"client/wire", "internal/dirfd", "internal/fault", "internal/meta", "internal/timeline"},
	"internal/history": {
		"client/wire", "internal/audit", "internal/boxfs", "internal/events", "internal/fault", "internal/images",
		"internal/layer", "internal/masks", "internal/meta", "internal/rootspec", "internal/timeline",
	},
	"internal/images": {
		"client/wire", "internal/fault", "internal/memory", "internal/meta", "internal/policy",
		"internal/timeline",
	},
	"internal/command": {
		"client/wire", "internal/audit", "internal/events", "internal/fault", "internal/images", "internal/layer",
		"internal/ledger", "internal/ledger/format", "internal/message", "internal/meta", "internal/policies", "internal/sandbox",
		"internal/timeline",
	},
	"internal/egress": {
		"client/wire", "internal/audit", "internal/decoy", "internal/events", "internal/fault",
		"internal/journal", "internal/ledger", "internal/ledger/format", "internal/message",
		"internal/meta", "internal/policies", "internal/policy", "internal/rootfs", "internal/rootspec",
		"internal/sandbox", "internal/timeline", "internal/vfs",
	},
	"internal/grants": {
		"client/wire", "internal/audit", "internal/fault", "internal/grant", "internal/journal", "internal/ledger",
		"internal/ledger/format", "internal/meta", "internal/plan", "internal/policies", "internal/policy",
		"internal/secret/client", "internal/timeline", "internal/visible",
	},
	"internal/events": {"client/wire", "internal/meta", "internal/timeline"},
	"internal/policies": {
		"client/wire", "internal/fault", "internal/grant", "internal/meta", "internal/policy", "internal/rootfs",
		"internal/rootspec",
	},
	"internal/bases": {
		"client/wire", "internal/fault", "internal/layer", "internal/meta", "internal/policy",
		"internal/rootspec", "internal/timeline", "internal/vfs",
	},
	"internal/livefiles": {
		"client/wire", "internal/boxfs", "internal/fault", "internal/message", "internal/meta", "internal/sandbox",
		"internal/timeline",
	},
	"internal/ignored": {"internal/fault", "internal/layer", "internal/rootspec", "internal/vfs", "internal/visible"},
	"internal/masks": {
		"internal/fault", "internal/meta", "internal/policies", "internal/rootfs", "internal/rootspec",
		"internal/sandbox", "internal/stacks", "internal/timeline", "internal/vfs",
	},
	"internal/stacks": {"internal/fault", "internal/timeline"},
	"internal/tail":   {"client/wire"},
	"internal/tournament": {
		"client/wire", "internal/audit", "internal/events", "internal/fault", "internal/ledger/format",
		"internal/meta", "internal/tail", "internal/timeline", "internal/undo",
	},
	"internal/travel": {
		"client/wire", "internal/audit", "internal/fault", "internal/gitwork", "internal/layer",
		"internal/ledger/format", "internal/meta", "internal/policy", "internal/proposal", "internal/repo",
		"internal/rootspec", "internal/timeline",
	},
	"internal/worktree": {
		"client/wire", "internal/bases", "internal/fault", "internal/gitrefs", "internal/gitwork", "internal/layer",
		"internal/meta", "internal/policy", "internal/repo", "internal/rootfs", "internal/rootspec", "internal/timeline",
	},
	"internal/lifetime": {
		"client/wire", "internal/fault", "internal/label", "internal/meta", "internal/timeline", "internal/upkeep",
	},
	"internal/upkeep": {
		"client/wire", "internal/bases", "internal/events", "internal/fault", "internal/layer",
		"internal/meta", "internal/timeline",
	},
	// Of the programs, only the broker imports it.
	"internal/secret/store": {"internal/fault", "internal/vfs"},
	"internal/secret/broker": {
		"internal/fault", "internal/grant", "internal/policy", "internal/secret/client", "internal/secret/line",
		"internal/secret/sshkey", "internal/secret/store", "internal/thread", "internal/unixsock", "internal/vfs",
	},
	"internal/secret/sshkey": {"internal/fault"},
	"internal/secret/client": {"internal/fault", "internal/grant", "internal/program", "internal/unixsock"},
	"internal/secret/line":   {"internal/fault", "internal/unixsock"},
	"internal/secretbox":     {"internal/fault", "internal/vfs"},
	"internal/repo":          {"internal/dirfd", "internal/fault", "internal/undo", "internal/vfs", "internal/visible"},
	"internal/registry":      {"internal/fault", "internal/tty"},
	"internal/restore": {
		"client/wire", "internal/audit", "internal/events", "internal/fault", "internal/images", "internal/ledger",
		"internal/ledger/format", "internal/meta", "internal/tail", "internal/sandbox", "internal/timeline",
	},
	"internal/proposal": {"internal/fault", "internal/timeline", "internal/visible"},
	"internal/audit": {
		"client/wire", "internal/fault", "internal/journal", "internal/label", "internal/ledger",
		"internal/ledger/format", "internal/meta", "internal/policy", "internal/redact", "internal/timeline",
		"internal/vfs", "internal/visible",
	},
	"internal/fault":      {},
	"internal/limit":      {},
	"internal/undo":       {},
	"internal/vfs":        {},
	"internal/dirfd":      {},
	"internal/landlock":   {},
	"internal/thread":     {},
	"internal/mounttable": {},
	"internal/tty":        {"internal/visible"},
	"internal/unixsock":   {},
	"internal/visible":    {},

	// Programs for developers, in a separate module (bench/go.mod).
	"bench": {
		"client", "client/wire", "internal/box", "internal/memory", "internal/plan", "internal/policy",
		"internal/program", "internal/rootspec",
	},
	"bench/alone": {},

	// Programs of scripts.
	"scripts/cast": {"examples/claude-code/model"},
	"scripts/pack": {},
	// A separate module (scripts/vault/go.mod): a server for tests.
	"scripts/vault": {},

	// Examples import only the public packages.
	"examples/claude-code":       {"examples/claude-code/model"},
	"examples/claude-code/model": {},
	"examples/explore/go":        {"client", "client/wire"},
}

// limits is the table of limits. It imports nothing of this module, and every package may import it.
const limits = "internal/limit"

// servesTests reports whether a package only serves tests: its name, or that of a parent, ends in "test". It may
// import what it tests, and only tests may import it.
func servesTests(pkg string) bool {
	return slices.ContainsFunc(strings.Split(pkg, "/"), func(name string) bool { return strings.HasSuffix(name, "test") })
}

// source is one file, with its imports from this module.
type source struct {
	file    string
	pkg     string
	test    bool
	imports []string
	others  []string // imports from elsewhere
	doc     string   // the package comment, if the file has one
}

// sources parses every file of the module. It reads the files of all operating systems from disk itself: the test
// cache would not notice a change that only the go command saw.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." &&
			(strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if os.IsNotExist(err) {
			return nil // an editor may have moved the file
		}
		if err != nil {
			return err
		}
		s := source{file: name, pkg: path.Dir(filepath.ToSlash(name)), test: strings.HasSuffix(name, "_test.go"),
			doc: packageComment(f)}
		for _, im := range f.Imports {
			if p := strings.Trim(im.Path.Value, `"`); p == module || strings.HasPrefix(p, module+"/") {
				s.imports = append(s.imports, strings.TrimPrefix(strings.TrimPrefix(p, module), "/"))
			} else {
				s.others = append(s.others, p)
			}
		}
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// packageComment returns the package comment of f, or "".
func packageComment(f *ast.File) string {
	text := f.Doc.Text()
	if strings.HasPrefix(text, "Package "+f.Name.Name+" ") || f.Name.Name == "main" &&
		strings.HasPrefix(text, "Command ") {
		return text
	}
	return ""
}

// TestInit_ImportsFewModules checks that the program that is PID 1 of every sandbox contains no code of the gate,
// the store or gVisor, and of other modules only those listed here. It is small enough for an auditor to read
// completely.
func TestInit_ImportsFewModules(t *testing.T) {
	t.Parallel()
	modules := []string{"github.com/moby/sys/mountinfo", "golang.org/x/sys/"}
	reached := map[string]bool{}
	var reach func(pkg string)
	reach = func(pkg string) {
		if !reached[pkg] {
			reached[pkg] = true
			for _, im := range packages[pkg] {
				reach(im)
			}
		}
	}
	reach("cmd/coppice-init")
	for _, pkg := range []string{"internal/engine", "internal/gate", "internal/layer", "internal/meta", "internal/policy",
		"internal/box/gvisor"} {
		if reached[pkg] {
			t.Errorf("cmd/coppice-init imports %s", pkg)
		}
	}
	for _, s := range sources(t) {
		for _, im := range s.others {
			first, _, _ := strings.Cut(im, "/")
			if !reached[s.pkg] || s.test || !strings.Contains(first, ".") {
				continue
			}
			if !slices.ContainsFunc(modules, func(m string) bool { return strings.HasPrefix(im, m) }) {
				t.Errorf("%s, which is part of coppice-init, imports %s", s.file, im)
			}
		}
	}
}

func TestImports_AreInPackageTable(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.pkg == "." || servesTests(s.pkg) {
			continue
		}
		may, known := packages[s.pkg]
		if !known && !testOnly(s) {
			t.Errorf("%s: %s is not in the table of packages; add it to arch_test.go", s.file, s.pkg)
			continue
		}
		if s.test {
			continue
		}
		for _, im := range s.imports {
			switch {
			case slices.Contains(may, im) || im == limits:
			case servesTests(im):
				t.Errorf("%s imports %s, which is for tests", s.file, im)
			default:
				t.Errorf("%s imports %s, which %s may not", s.file, im, s.pkg)
			}
		}
	}
}

// TestPackageTable_AllowsOnlyExistingImports fails for an entry that no import needs, so that
// each new import is a change of the table.
func TestPackageTable_AllowsOnlyExistingImports(t *testing.T) {
	t.Parallel()
	imported := map[string][]string{}
	for _, s := range sources(t) {
		if !s.test {
			imported[s.pkg] = append(imported[s.pkg], s.imports...)
		}
	}
	for pkg, may := range packages {
		if _, ok := imported[pkg]; !ok {
			t.Errorf("unknown package %s", pkg)
		}
		for _, im := range may {
			if !slices.Contains(imported[pkg], im) {
				t.Errorf("%s may import %s, but does not; remove it from arch_test.go", pkg, im)
			}
		}
	}
}

// TestUmask_IsSetOnlyAtProcessStart checks that no other code sets the umask. The umask belongs to the process,
// not to a thread: a file that another thread creates meanwhile would get fewer permissions than requested.
func TestUmask_IsSetOnlyAtProcessStart(t *testing.T) {
	t.Parallel()
	begins := []string{"internal/daemon/serve_linux.go", "internal/box/guest/launcher.go"}
	for _, s := range sources(t) {
		b, err := os.ReadFile(s.file)
		if err != nil {
			t.Fatal(err)
		}
		if !s.test && strings.Contains(string(b), ".Umask(") && !slices.Contains(begins, filepath.ToSlash(s.file)) {
			t.Errorf("%s sets the umask", s.file)
		}
	}
}

// testOnly reports whether s is a test below internal, where a directory may contain only tests.
func testOnly(s source) bool { return s.test && strings.HasPrefix(s.pkg, "internal/") }

func TestPackages_HaveOneDocComment(t *testing.T) {
	t.Parallel()
	docs := map[string]int{}
	for _, s := range sources(t) {
		if s.test || s.pkg == "." {
			continue
		}
		docs[s.pkg] += 0
		if s.doc != "" {
			docs[s.pkg]++
		}
	}
	for pkg, n := range docs {
		switch {
		case n == 0:
			t.Errorf("%s has no package comment", pkg)
		case n > 1:
			t.Errorf("%s has %d package comments; one is enough", pkg, n)
		}
	}
}

func TestPackageTable_IsAcyclicAndComplete(t *testing.T) {
	t.Parallel()
	const on, done = 1, 2
	state := map[string]int{}
	var visit func(pkg string, way []string)
	visit = func(pkg string, way []string) {
		switch state[pkg] {
		case on:
			t.Errorf("a cycle: %s", strings.Join(append(way, pkg), " -> "))
			return
		case done:
			return
		}
		state[pkg] = on
		for _, to := range packages[pkg] {
			if _, ok := packages[to]; !ok {
				t.Errorf("%s may import %s, which is not in the table", pkg, to)
				continue
			}
			visit(to, append(way, pkg))
		}
		state[pkg] = done
	}
	for pkg := range packages {
		visit(pkg, nil)
	}
}

// TestArchitectureTable checks the table of packages in docs/design/packages.md, which is generated from their
// comments.
func TestArchitectureTable(t *testing.T) {
	t.Parallel()
	const (
		page  = "docs/design/packages.md"
		begin = "<!-- generated: go test . -run TestArchitectureTable -update -->\n"
		end   = "<!-- end of what is generated -->\n"
	)
	now := read(t, page)
	before, rest, begun := strings.Cut(now, begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		t.Fatalf("%s does not have %q and %q", page, begin, end)
	}
	want := before + begin + packageTable(sources(t)) + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if now != want {
		t.Errorf("the packages in %s are not those of arch_test.go and of the package comments: go test . -run "+
			"TestArchitectureTable -update", page)
	}
}

// packageTable returns the packages as a table in Markdown, sorted by path: the first sentence of the comment,
// and the allowed imports.
func packageTable(all []source) string {
	what := map[string]string{}
	for _, s := range all {
		if s.doc != "" && !s.test {
			what[s.pkg] = s.doc
		}
	}
	var b strings.Builder
	b.WriteString("| package | what it is | imports |\n|---|---|---|\n")
	for _, pkg := range slices.Sorted(maps.Keys(what)) {
		is := strings.SplitN(new(doc.Package).Synopsis(what[pkg]), " ", 3)[2] // after "Package NAME "
		is = strings.TrimSuffix(strings.TrimPrefix(is, "is "), ".")
		imports := "(serves tests)"
		if !servesTests(pkg) {
			imports = strings.ReplaceAll(strings.Join(packages[pkg], ", "), "internal/", "")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", pkg, strings.ReplaceAll(is, "|", `\|`), imports)
	}
	return b.String()
}
