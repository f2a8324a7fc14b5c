// Package coppice_test holds the rules of the whole house as tests.
package coppice_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/coppice-dev/coppice"

// anything stands for every room.
const anything = "*"

// rooms says which rooms each room may import. What is not here is no room.
var rooms = map[string][]string{
	"cmd/coppice":      {"internal/cli"},
	"internal/cli":     {"client", "client/wire", "internal/candidates", "internal/fault", "internal/forge", "internal/hook", "internal/ledger/format", "internal/policy", "internal/proposal", "internal/registry", "internal/tty", "internal/daemon", "internal/mcpapi"},
	"internal/daemon":  {anything},
	"internal/httpapi": {"client/wire", "internal/admission", "internal/timeline", "internal/policy", "internal/fault", "internal/auth"},
	"internal/auth":    {"client/wire", "internal/fault", "internal/visible"},

	"internal/admission":     {"internal/fault"},
	"internal/mcpapi":        {"client", "client/wire", "internal/fault", "internal/tty", "internal/visible"},
	"internal/ports":         {"client/wire", "internal/fault"},
	"internal/ports/sockets": {},

	"internal/candidates": {"client/wire", "internal/fault", "internal/nearest"},
	"internal/lineapi":    {"internal/admission", "internal/seal", "client/wire", "internal/timeline", "internal/fault", "internal/nearest"},

	"client":      {"client/wire"},
	"client/wire": {},

	"internal/archive": {"internal/fault"},
	"internal/decoy":   {"internal/fault"},
	"internal/boxfs":   {"internal/archive", "internal/fault", "internal/undo", "client/wire"},
	"internal/budget":  {"client/wire", "internal/ledger/format", "internal/testimony", "internal/timeline"},
	"internal/compare": {"internal/ledger/format", "client/wire"},
	"internal/engine": {"internal/beneath", "internal/boxfs", "internal/budget", "internal/memory", "internal/compare", "internal/decoy", "internal/timeline", "internal/policy", "internal/fault", "internal/undo", "internal/rootspec", "client/wire", "internal/journal", "internal/redact",
		"internal/ledger", "internal/ledger/format", "internal/testimony", "internal/layer", "internal/meta", "internal/programs", "internal/proposal", "internal/repo", "internal/rootfs", "internal/visible"},
	"internal/layer":        {"internal/archive", "internal/layer/format", "internal/removal", "internal/quota", "internal/timeline", "internal/vfs", "internal/fault", "internal/undo", "internal/rootspec"},
	"internal/layer/format": {"internal/timeline", "internal/fault"},
	"internal/memory":       {"internal/vfs", "internal/fault", "internal/undo"},
	"internal/meta":         {"internal/seal", "internal/timeline", "internal/fault", "internal/nearest", "client/wire"},
	"internal/rootfs":       {"internal/layer/format", "internal/removal", "internal/quota", "internal/timeline", "internal/fault", "internal/undo", "internal/rootspec"},
	"internal/removal":      {"internal/fault"},
	"internal/rootspec":     {"internal/fault"},
	"internal/quota":        {"internal/fault", "internal/visible"},

	"internal/box":       {"internal/unixsock", "internal/box/plan", "internal/box/probe", "internal/box/guest", "internal/box/inner", "internal/policy", "internal/journal", "internal/seal", "internal/gate/control", "internal/gate/link", "internal/fault", "internal/undo", "internal/rootspec", "client/wire"},
	"internal/box/plan":  {"internal/policy", "internal/box/probe", "internal/fault", "internal/rootspec"},
	"internal/box/guest": {"internal/box/plan", "internal/box/seccomp", "internal/box/notify", "internal/rootspec", "internal/ports/sockets", "internal/fault", "client/wire"},
	"internal/box/inner": {"internal/box/guest", "internal/box/plan", "internal/box/relay"},
	"internal/box/relay": {"internal/box/guest"},

	// What it imports would be initialised first, and much of gVisor's with it.
	"internal/box/gvisor/spare":   {},
	"internal/box/gvisor/filters": {},

	"internal/box/gvisor":  {"internal/box/gvisor/filters", "internal/box/gvisor/spare", "internal/box/guest", "internal/box/plan", "internal/box/relay", "internal/box/seccomp", "internal/gate/link", "internal/rootspec", "internal/fault", "client/wire"},
	"internal/box/probe":   {"client/wire", "internal/gate/link", "internal/fault", "internal/quota", "internal/rootspec", "internal/box/seccomp"},
	"internal/box/seccomp": {},
	"internal/box/notify":  {"internal/box/seccomp", "internal/fault", "internal/rootspec"},
	"internal/box/escape":  {},

	// The keeper imports link and control, so these never import the gate itself: its
	// network stack is half a millisecond of every start.
	"internal/gate":         {"internal/decoy", "internal/gate/inspect", "internal/gate/link", "internal/policy", "internal/fault"},
	"internal/gate/inspect": {"internal/policy", "internal/fault"},
	"internal/gate/link":    {"internal/ownthread", "internal/fault"},
	"internal/gate/control": {"internal/box/plan", "internal/ownthread", "client/wire", "internal/fault"},
	"internal/gate/process": {"internal/decoy", "internal/gate", "internal/gate/control", "internal/box/plan", "internal/journal", "internal/policy", "client/wire", "internal/fault"},

	"internal/ledger":        {"internal/ledger/format", "internal/vfs", "internal/fault"},
	"internal/ledger/format": {"internal/fault"},

	"internal/testimony": {"client/wire", "internal/ledger/format"},
	"internal/timeline":  {"internal/fault", "internal/nearest", "internal/visible"},
	"internal/policy":    {"internal/fault", "internal/nearest", "internal/redact", "internal/visible"},
	"internal/hook":      {"internal/fault"},
	"internal/journal":   {"internal/seal", "client/wire", "internal/fault"},
	"internal/redact":    {"internal/fault"},
	"internal/programs":  {"client/wire"},
	"internal/seal":      {"internal/fault"},
	"internal/repo":      {"internal/beneath", "internal/fault", "internal/undo", "internal/visible"},
	"internal/registry":  {"internal/fault", "internal/tty"},
	"internal/proposal":  {"internal/fault", "internal/timeline", "internal/visible"},
	"internal/fault":     {},
	"internal/limit":     {},
	"internal/forge":     {},
	"internal/nearest":   {},
	"internal/ownthread": {},
	"internal/undo":      {},
	"internal/vfs":       {},
	"internal/tty":       {"internal/visible"},
	"internal/unixsock":  {},
	"internal/visible":   {},
	"internal/beneath":   {},

	// Programs for developers.
	"internal/bench":       {anything},
	"internal/bench/alone": {},

	// Examples use what anybody can use.
	"examples/claude-code":       {"client", "examples/claude-code/model"},
	"examples/claude-code/model": {},
	"examples/explore/go":        {"client", "client/wire"},
}

// limits is the table of bounds, which every room may import: it imports none of ours.
const limits = "internal/limit"

// A room whose name ends so serves tests alone, and may import what it tests.
const testRoom = "test"

// source is one file's own imports of ours.
type source struct {
	file    string
	room    string
	test    bool
	imports []string
	doc     bool // it has a package comment
}

// sources parses every file of the module, so that a violation is found in what
// lies on disk now, whatever the system it is for.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if os.IsNotExist(err) {
			return nil // a file that an editor has just moved away
		}
		if err != nil {
			return err
		}
		s := source{file: name, room: path.Dir(filepath.ToSlash(name)), test: strings.HasSuffix(name, "_test.go"), doc: comment(f)}
		for _, im := range f.Imports {
			if p := strings.Trim(im.Path.Value, `"`); p == module || strings.HasPrefix(p, module+"/") {
				s.imports = append(s.imports, strings.TrimPrefix(strings.TrimPrefix(p, module), "/"))
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

// comment reports whether f has a comment that says what the package is.
func comment(f *ast.File) bool {
	if f.Doc == nil {
		return false
	}
	text := f.Doc.Text()
	return strings.HasPrefix(text, "Package "+f.Name.Name+" ") || f.Name.Name == "main" && strings.HasPrefix(text, "Command ")
}

func TestEveryImportIsAllowedByTheTableOfRooms(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.room == "." || strings.HasSuffix(s.room, testRoom) {
			continue
		}
		may, known := rooms[s.room]
		if !known && !testOnly(s.room, s.test) {
			t.Errorf("%s: %s is no room; if it is to be one, it needs a line in DESIGN and here", s.file, s.room)
			continue
		}
		if s.test {
			continue
		}
		for _, im := range s.imports {
			switch {
			case slices.Contains(may, anything) || slices.Contains(may, im) || im == limits:
			case strings.HasSuffix(im, testRoom):
				t.Errorf("%s imports %s, which is for tests", s.file, im)
			default:
				t.Errorf("%s imports %s, which %s may not", s.file, im, s.room)
			}
		}
	}
}

// The umask is every thread's: a file that another one makes meanwhile would get
// less than it asks for. It is set where a process begins.
func TestTheUmaskIsSetWhereAProcessBegins(t *testing.T) {
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

// testOnly: a folder below internal that holds tests and no program.
func testOnly(room string, test bool) bool { return test && strings.HasPrefix(room, "internal/") }

func TestEveryRoomSaysWhatItIs(t *testing.T) {
	t.Parallel()
	docs, seen := map[string]int{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.test || s.room == "." {
			continue
		}
		seen[s.room] = true
		if s.doc {
			docs[s.room]++
		}
	}
	for room := range seen {
		switch n := docs[room]; {
		case n == 0:
			t.Errorf("%s has no package comment", room)
		case n > 1:
			t.Errorf("%s has %d package comments; one is enough", room, n)
		}
	}
}

func TestTheTableHasNoCycleAndNoStrangers(t *testing.T) {
	t.Parallel()
	const on, done = 1, 2
	state := map[string]int{}
	var visit func(room string, way []string)
	visit = func(room string, way []string) {
		switch state[room] {
		case on:
			t.Errorf("a cycle: %s", strings.Join(append(way, room), " -> "))
			return
		case done:
			return
		}
		state[room] = on
		for _, to := range rooms[room] {
			if to == anything {
				continue
			}
			if _, ok := rooms[to]; !ok {
				t.Errorf("%s may import %s, which is no room", room, to)
				continue
			}
			visit(to, append(way, room))
		}
		state[room] = done
	}
	for room := range rooms {
		visit(room, nil)
	}
}
