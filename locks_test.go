package coppice_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lockOrder lists the locks of the engine, and what each guards, in the order of acquisition: while one is held,
// only those below it may be acquired. TestLockOrder checks the code, and the list is printed in
// docs/design/locks.md.
var lockOrder = []struct{ name, guards string }{
	{"taking.turn", "what was last taken out of a sandbox's repository (`gitwork`); one caller takes out at a time"},
	{"Upkeep.thinning", "nothing: one caller at a time drops snapshots of a whole history"},
	{"sandbox", "the state of a sandbox: its box, index and commands (`sandbox.Held`)"},
	{"Refs.refs", "references of users' repositories that hold what sandboxes need"},
	{"Refs.naming", "the name of the home in users' repositories"},
	{"BoxPrograms.mu", "programs of a box that are not recorded yet, until the end of a command is recorded"},
	{"reading.mu", "how far a sandbox's journal has become records"},
	{"sandboxBudget.mu", "the budget of a sandbox, while the ledger is read for it"},
	{"Upkeep.merging", "nothing: one caller at a time merges long chains of layers"},
	{"Upkeep.finalizing", "nothing: one caller at a time finalizes layers"},
	{"Engine.shape", "which layers there are, for those who read layers without holding their sandboxes"},
	{"Bases.importing", "the store's bases; one import at a time"},
	{"Images.imaging", "memory images that no snapshot has yet"},
	{"tree.renames", "names in a live root that change while a capture walks it"},
	{"Git.signing", "the settings of signers"},
}

// leafLocks are acquired last: no other lock is acquired while one is held.
var leafLocks = []string{
	"Book.mu", "Budget.mu", "Budgets.mu", "Bus.mu", "Cleaners.mu", "Client.mu", "Engine.mu", "Git.mu", "Images.mu",
	"Journals.mu", "Lifetimes.mu", "Masks.mu", "Opener.mu", "Policies.mu", "Refs.mu", "Register.mu", "Restorer.mu",
	"Runner.mu", "Stacks.mu", "Tournaments.mu", "Upkeep.mu", "attachment.mu", "listener.mu", "mounts.mu", "outlet.mu",
	"presence.mu",
}

// lockPackages are the engine and its parts that have locks. The walk follows calls of the engine into its parts,
// which are fields of it, and back: see adapters.
var lockPackages = []string{
	"internal/audit", "internal/bases", "internal/command", "internal/egress", "internal/engine", "internal/events",
	"internal/gitrefs", "internal/gitwork", "internal/history", "internal/images", "internal/lifetime",
	"internal/livefiles", "internal/masks", "internal/policies", "internal/restore", "internal/stacks", "internal/tail",
	"internal/tournament", "internal/travel", "internal/upkeep", "internal/worktree",
}

// adapters are the types of the engine that implement the interfaces of its parts, and the methods that it passes
// to them as functions.
var adapters = map[string][]string{
	"Ender": {"lifetimeCore"}, "Finder": {"lifetimeCore"}, "API": {"gitAPI", "travelCore"}, "Layers": {"gitLayers"},
	"Work": {"gitRecords"}, "Host": {"basesCore"}, "Operations": {"tournamentCore"}, "Recorder": {"upkeepCore", "Book"},
	"Sandboxes": {
		"upkeepCore", "egressCore", "historyCore", "filesCore", "commandCore", "travelCore", "restoreCore",
	},
	"Held":  {"egressHeld", "filesHeld", "commandHeld", "restoreHeld"},
	"Maker": {"worktreeCore"}, "Sandbox": {"commandSandbox"},
	"Stacks": {"basesCore", "upkeepCore"}, "Sweeps": {"upkeepCore"},
	"Config.Intact": {"imagesCore.intact"}, "Config.Capture": {"imagesCore.capture"}, "Config.Drop": {"Upkeep.Drop"},
	"Config.Finalize": {"Upkeep.Finalize"}, "Config.VerifyRecords": {"Reader.VerifyAll"},
	"Config.VerifyImages": {"Images.Verify"}, "Config.Discard": {"Engine.discard"},
	"Root.Lock": {"filesRoot.lock"}, "Root.Rename": {"filesRoot.rename"},
	"JournalsConfig.Recorded": {"Register.Denied"}, "BookConfig.PolicyNow": {"bookCore.policyNow"},
	"BookConfig.NeverApplied": {"Git.NeverApplied"}, "Commands": {"Register"}, "Memory": {"Images"},
}

// returnHolding maps functions that return with a held lock to the lock, in addition to functions that return a
// *held. It lists all such methods of parts and of their interfaces.
var returnHolding = map[string]string{
	"taking.takes": "taking.turn", "BoxPrograms.End": "BoxPrograms.mu",
	"Held.EndPrograms": "BoxPrograms.mu", "Sandbox.Acquire": "sandbox",
	"Finder.Acquire": "sandbox", "Sandboxes.Acquire": "sandbox", "Sandboxes.TryAcquire": "sandbox",
	"Root.Lock": "sandbox", "filesRoot.lock": "sandbox",
	"Bases.Importing": "Bases.importing",
}

// lent maps fields of parts to the locks of the engine that they refer to.
var lent = map[string]string{
	"Config.Shape": "Engine.shape", "Upkeep.shape": "Engine.shape", "Config.Keep": "Engine.shape",
}

// lockEvent is a step of a function that is relevant for the order of locks.
type lockEvent struct {
	pos  token.Pos
	kind string // "lock", "unlock", "call"
	what string // a lock, or the called function
}

// lockSource is a package as TestLockOrder sees it: without the types of its imports.
type lockSource struct {
	fset   *token.FileSet
	info   *types.Info
	pkg    *types.Package
	owners map[types.Object]string // the struct of each field
	parts  map[types.Object]string // the type of each field that points to a type of another package
	funcs  map[string]*ast.FuncDecl
}

// nothing is an importer of empty packages.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

func readLocks(t *testing.T, dir string) *lockSource {
	t.Helper()
	s := &lockSource{
		fset: token.NewFileSet(), owners: map[types.Object]string{}, parts: map[types.Object]string{},
		funcs: map[string]*ast.FuncDecl{},
		info: &types.Info{
			Selections: map[*ast.SelectorExpr]*types.Selection{}, Uses: map[*ast.Ident]types.Object{},
			Defs: map[*ast.Ident]types.Object{},
		},
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has no source: %v", dir, err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(s.fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}} // the errors concern imported packages
	s.pkg, _ = conf.Check(filepath.Base(dir), s.fset, files, s.info)
	for _, name := range s.pkg.Scope().Names() {
		if of, ok := s.pkg.Scope().Lookup(name).Type().Underlying().(*types.Struct); ok {
			for i := range of.NumFields() {
				s.owners[of.Field(i)] = name
			}
		}
	}
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				s.funcs[nameOf(fn)] = fn
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok {
				if star, ok := f.Type.(*ast.StarExpr); ok {
					if of, ok := star.X.(*ast.SelectorExpr); ok {
						for _, name := range f.Names {
							s.parts[s.info.Defs[name]] = of.Sel.Name
						}
					}
				}
			}
			return true
		})
	}
	return s
}

// mutexes returns the fields that are locks.
func (s *lockSource) mutexes(files []*ast.File) (all []string) {
	for name, x := range typesOf(files) {
		of, ok := x.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range of.Fields.List {
			if t := types.ExprString(f.Type); t == "sync.Mutex" || t == "sync.RWMutex" {
				for _, n := range f.Names {
					all = append(all, name+"."+n.Name)
				}
			}
		}
	}
	return all
}

// isHeld reports whether an expression is the type of a sandbox whose lock is held.
func isHeld(x ast.Expr) bool { return types.ExprString(x) == "*held" }

func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	return strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*") + "." + fn.Name.Name
}

// enters reports whether a function is called with a sandbox's lock held.
func enters(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(p *ast.Field) bool { return isHeld(p.Type) })
}

// keeps returns the lock that a function holds when it returns; "" if there is none.
func keeps(fn *ast.FuncDecl) string {
	if r := fn.Type.Results; r != nil && slices.ContainsFunc(r.List, func(f *ast.Field) bool { return isHeld(f.Type) }) {
		return "sandbox"
	}
	return returnHolding[nameOf(fn)]
}

// steps returns what a node locks, unlocks and calls, in the order of the source. Goroutines are left out, and so
// are deferred calls: a lock that they release is held until the function returns.
func (s *lockSource) steps(n ast.Node) (steps []lockEvent) {
	if n == nil {
		return nil
	}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.DeferStmt:
			return false
		case *ast.UnaryExpr:
			if lock := s.lockOf(n.X); n.Op == token.ARROW && lock == "taking.turn" {
				steps = append(steps, lockEvent{n.Pos(), "lock", lock})
			}
		case *ast.CallExpr:
			if name := types.ExprString(n.Fun); name == "LockShape" || name == "upkeep.LockShape" {
				at := n.Args[1]
				if address, ok := at.(*ast.UnaryExpr); ok {
					at = address.X
				}
				steps = append(steps, lockEvent{n.Pos(), "lock", s.lockOf(at)})
				return false
			}
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				if id, ok := n.Fun.(*ast.Ident); ok {
					switch f := s.info.Uses[id].(type) {
					case *types.Func:
						steps = append(steps, lockEvent{n.Pos(), "call", f.Name()})
					case *types.Var:
						if f.Name() == "done" { // as returned by taking.takes
							steps = append(steps, lockEvent{n.Pos(), "unlock", "taking.turn"})
						}
					}
				}
				return true
			}
			switch name := sel.Sel.Name; name {
			case "Go", "AfterFunc", "await":
				return false
			case "Lock", "RLock", "TryLock":
				if lock := s.lockOf(sel.X); lock != "" {
					steps = append(steps, lockEvent{n.Pos(), "lock", lock})
				}
			case "Unlock", "RUnlock":
				steps = append(steps, lockEvent{n.Pos(), "unlock", s.lockOf(sel.X)})
			default:
				if callee := s.method(sel); callee == "held.unlock" {
					steps = append(steps, lockEvent{n.Pos(), "unlock", "sandbox"})
				} else if callee != "" {
					steps = append(steps, lockEvent{n.Pos(), "call", callee})
				}
			}
		}
		return true
	})
	return steps
}

// lockOf returns the name of a lock that is a field.
func (s *lockSource) lockOf(x ast.Expr) string {
	sel, ok := x.(*ast.SelectorExpr)
	if !ok || s.info.Selections[sel] == nil {
		return ""
	}
	field := s.info.Selections[sel].Obj()
	name := s.owners[field] + "." + field.Name()
	if of, ok := lent[name]; ok {
		return of
	}
	return name
}

// method returns the name of a called method, of the package or of one of its parts.
func (s *lockSource) method(sel *ast.SelectorExpr) string {
	of := s.info.Selections[sel]
	if of == nil {
		if part, ok := sel.X.(*ast.SelectorExpr); ok && s.info.Selections[part] != nil {
			if name, ok := s.parts[s.info.Selections[part].Obj()]; ok {
				return name + "." + sel.Sel.Name
			}
		}
		return ""
	}
	if field, ok := of.Obj().(*types.Var); ok {
		return s.owners[field] + "." + field.Name()
	}
	m, ok := of.Obj().(*types.Func)
	if !ok || m.Pkg() != s.pkg {
		return ""
	}
	recv := m.Signature().Recv().Type()
	if p, ok := recv.(*types.Pointer); ok {
		recv = p.Elem()
	}
	named, ok := recv.(*types.Named)
	if !ok {
		return ""
	}
	return named.Obj().Name() + "." + m.Name()
}

// acquired returns the locks that each function acquires, directly or in the functions that it calls. known has
// the locks that methods of other packages acquire.
func (s *lockSource) acquired(known map[string]map[string]bool) map[string]map[string]bool {
	all, steps := maps.Clone(known), map[string][]lockEvent{}
	for name, fn := range s.funcs {
		steps[name], all[name] = s.steps(fn.Body), map[string]bool{}
		if lock := keeps(fn); lock != "" {
			all[name][lock] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for name := range s.funcs {
			before := len(all[name])
			for _, e := range steps[name] {
				switch e.kind {
				case "lock":
					all[name][e.what] = true
				case "call":
					maps.Copy(all[name], all[e.what])
				}
			}
			changed = changed || len(all[name]) > before
		}
	}
	return all
}

// lockWalk follows one function, and tracks the locks held at each step.
type lockWalk struct {
	s        *lockSource
	acquired map[string]map[string]bool
	take     func(lock string, held map[string]bool, at token.Pos)
}

// step follows a node without branches.
func (w *lockWalk) step(n ast.Node, held map[string]bool) {
	for _, e := range w.s.steps(n) {
		switch e.kind {
		case "lock":
			w.take(e.what, held, e.pos)
			held[e.what] = true
		case "unlock":
			delete(held, e.what)
		case "call":
			for lock := range w.acquired[e.what] {
				w.take(lock, held, e.pos)
			}
			lock := returnHolding[e.what] // a method of a part
			if fn := w.s.funcs[e.what]; fn != nil {
				lock = keeps(fn)
			}
			if lock != "" {
				held[lock] = true
			}
		}
	}
}

// list follows statements, and reports whether execution continues after them.
func (w *lockWalk) list(list []ast.Stmt, held map[string]bool) (goesOn bool) {
	for _, x := range list {
		if !w.stmt(x, held) {
			return false
		}
	}
	return true
}

// branches follows alternatives. Afterwards, all locks are held that any alternative that continues still holds.
func (w *lockWalk) branches(held map[string]bool, lists ...[]ast.Stmt) (goesOn bool) {
	before := maps.Clone(held)
	clear(held)
	for _, list := range lists {
		own := maps.Clone(before)
		if w.list(list, own) {
			maps.Copy(held, own)
			goesOn = true
		}
	}
	return goesOn
}

func (w *lockWalk) stmt(x ast.Stmt, held map[string]bool) (goesOn bool) {
	switch x := x.(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		w.step(x, held)
		return false
	case *ast.BlockStmt:
		return w.list(x.List, held)
	case *ast.LabeledStmt:
		return w.stmt(x.Stmt, held)
	case *ast.IfStmt:
		w.step(x.Init, held)
		w.step(x.Cond, held)
		var other []ast.Stmt
		if x.Else != nil {
			other = []ast.Stmt{x.Else}
		}
		return w.branches(held, x.Body.List, other)
	case *ast.ForStmt:
		w.step(x.Init, held)
		w.step(x.Cond, held)
		return w.branches(held, x.Body.List, nil)
	case *ast.RangeStmt:
		w.step(x.X, held)
		return w.branches(held, x.Body.List, nil)
	case *ast.SwitchStmt:
		w.step(x.Init, held)
		w.step(x.Tag, held)
		return w.branches(held, append(clauses(x.Body), nil)...)
	case *ast.TypeSwitchStmt:
		w.step(x.Init, held)
		return w.branches(held, append(clauses(x.Body), nil)...)
	case *ast.SelectStmt:
		return w.branches(held, append(clauses(x.Body), nil)...)
	}
	w.step(x, held)
	return true
}

// clauses returns the statements of each case of a switch or select, beginning with the communication or the
// comparison.
func clauses(body *ast.BlockStmt) (all [][]ast.Stmt) {
	for _, c := range body.List {
		switch c := c.(type) {
		case *ast.CaseClause:
			var compared []ast.Stmt
			for _, x := range c.List {
				compared = append(compared, &ast.ExprStmt{X: x})
			}
			all = append(all, append(compared, c.Body...))
		case *ast.CommClause:
			if c.Comm == nil {
				all = append(all, c.Body)
			} else {
				all = append(all, append([]ast.Stmt{c.Comm}, c.Body...))
			}
		}
	}
	return all
}

// TestLockOrder follows each function of the engine and of its parts, and checks the locks that it acquires,
// directly or in the functions that it calls, against those that it holds.
func TestLockOrder(t *testing.T) {
	t.Parallel()
	rank := map[string]int{}
	for i, l := range lockOrder {
		rank[l.name] = i + 1
	}
	for _, name := range leafLocks {
		rank[name] = len(lockOrder) + 1
	}
	sources := map[string]*lockSource{}
	for _, dir := range lockPackages {
		sources[dir] = readLocks(t, dir)
	}
	known, seen := acquiredByAll(sources), map[string]bool{}
	for _, dir := range lockPackages {
		followLocks(t, dir, sources[dir], known, rank, seen)
	}
	for name := range rank {
		if !seen[name] {
			t.Errorf("%s is listed, but no function acquires it", name)
		}
	}
}

// acquiredByAll returns the locks that methods of all packages acquire, directly or in the functions that they
// call.
func acquiredByAll(sources map[string]*lockSource) map[string]map[string]bool {
	known := map[string]map[string]bool{}
	learn := func(name string, locks map[string]bool) (more bool) {
		before := len(known[name])
		if known[name] == nil {
			known[name] = map[string]bool{}
		}
		maps.Copy(known[name], locks)
		return len(known[name]) > before
	}
	for changed := true; changed; {
		changed = false
		for _, s := range sources {
			for name, locks := range s.acquired(known) {
				of, method, ok := strings.Cut(name, ".")
				if !ok {
					continue // packages may have functions with the same name
				}
				changed = learn(name, locks) || changed
				for role, by := range adapters {
					if slices.Contains(by, name) {
						changed = learn(role, locks) || changed
					} else if slices.Contains(by, of) {
						changed = learn(role+"."+method, locks) || changed
					}
				}
			}
		}
	}
	return known
}

// followLocks is TestLockOrder for one package. known has the locks that methods of all packages acquire. It adds
// the acquired locks to seen.
func followLocks(
	t *testing.T, dir string, s *lockSource, known map[string]map[string]bool, rank map[string]int,
	seen map[string]bool,
) {
	t.Helper()
	for _, name := range s.mutexes(parsed(t, dir)) {
		if rank[name] == 0 {
			t.Errorf("%s is not listed: add it to lockOrder with what it guards, or to leafLocks", name)
		}
	}
	w := &lockWalk{s: s, acquired: s.acquired(known)}
	for _, name := range slices.Sorted(maps.Keys(s.funcs)) {
		fn := s.funcs[name]
		w.take = func(lock string, held map[string]bool, at token.Pos) {
			seen[lock] = true
			for h := range held {
				if rank[lock] <= rank[h] {
					t.Errorf("%s: %s acquires %s while it holds %s", s.fset.Position(at), name, lock, h)
				}
			}
		}
		held := map[string]bool{}
		if enters(fn) {
			held["sandbox"] = true
		}
		w.list(fn.Body.List, held)
	}
}

func TestLockOrderTable(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- locks: made by go test . -run TestLockOrderTable -update -->\n", "<!-- end of the locks -->"
	var b strings.Builder
	b.WriteString("| Lock | Guards |\n|---|---|\n")
	for _, l := range lockOrder {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, l.guards)
	}
	leaves := slices.Clone(leafLocks)
	slices.SortFunc(leaves, cmp.Compare)
	fmt.Fprintf(&b, "| `%s` | fields of structs; no other lock is taken while one is held |\n",
		strings.Join(leaves, "`, `"))
	const path = "docs/design/locks.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no markers for the locks", path)
	}
	want := head + begin + b.String() + end + tail
	if want == string(page) {
		return
	}
	if !*update {
		t.Fatalf("the locks in %s are not those of locks_test.go: go test . -run TestLockOrderTable -update", path)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
