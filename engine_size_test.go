package coppice_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The current sizes of the engine. They may only decrease, to 150 methods and 6 locks.
const (
	engineMethods = 92
	engineLocks   = 2
)

// mostOfARole is the maximum number of methods of a role of the HTTP API.
const mostOfARole = 10

// parsed parses the files of a package, except tests.
func parsed(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has no source: %v", dir, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// typesOf returns the declarations of types by name.
func typesOf(files []*ast.File) map[string]ast.Expr {
	all := map[string]ast.Expr{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok {
				all[s.Name.Name] = s.Type
			}
			return true
		})
	}
	return all
}

func TestEngine_OnlyShrinks(t *testing.T) {
	t.Parallel()
	files := parsed(t, "internal/engine")
	methods := 0
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			if star, ok := fn.Recv.List[0].Type.(*ast.StarExpr); ok {
				if of, ok := star.X.(*ast.Ident); ok && of.Name == "Engine" {
					methods++
				}
			}
		}
	}
	if methods != engineMethods {
		t.Errorf("Engine has %d methods; engineMethods says %d: lower it, or move the new methods to a separate part",
			methods, engineMethods)
	}
	engine, ok := typesOf(files)["Engine"].(*ast.StructType)
	if !ok {
		t.Fatal("internal/engine has no struct Engine")
	}
	locks := 0
	for _, field := range engine.Fields.List {
		if x, ok := field.Type.(*ast.SelectorExpr); ok && slices.Contains([]string{"Mutex", "RWMutex"}, x.Sel.Name) {
			locks += len(field.Names)
		}
	}
	if locks != engineLocks {
		t.Errorf("Engine has %d locks; engineLocks says %d: lower it, or move new state to a part", locks, engineLocks)
	}
}

// TestAPIRoles_AreSmall checks that the interface for each group of routes is small, so that something other than
// the engine can implement it.
func TestAPIRoles_AreSmall(t *testing.T) {
	t.Parallel()
	types := typesOf(parsed(t, "internal/httpapi"))
	roles, ok := types["Roles"].(*ast.StructType)
	if !ok {
		t.Fatal("internal/httpapi has no struct Roles")
	}
	seen := map[string]int{}
	for _, field := range roles.Fields.List {
		of, ok := field.Type.(*ast.Ident)
		if !ok {
			t.Errorf("role %v is not an interface of the package", field.Names)
			continue
		}
		role, ok := types[of.Name].(*ast.InterfaceType)
		if !ok {
			t.Errorf("role %s is not an interface", of.Name)
			continue
		}
		seen[of.Name] = role.Methods.NumFields()
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if n := seen[name]; n > mostOfARole || n == 0 {
			t.Errorf("role %s has %d methods; at most %d", name, n, mostOfARole)
		}
	}
	if len(seen) == 0 {
		t.Error("Roles has no fields")
	}
}

// TestAPIInterfaces_AreSmallOrEmbedded checks that the interfaces that roles return are as small as roles. An
// interface that embeds others, as io.ReadWriter does, must have no further methods.
func TestAPIInterfaces_AreSmallOrEmbedded(t *testing.T) {
	t.Parallel()
	types := typesOf(parsed(t, "internal/httpapi"))
	for _, name := range slices.Sorted(maps.Keys(types)) {
		of, ok := types[name].(*ast.InterfaceType)
		if !ok {
			continue
		}
		own, roles := 0, 0
		for _, m := range of.Methods.List {
			if embedded, ok := m.Type.(*ast.Ident); ok && types[embedded.Name] != nil {
				roles++
			} else {
				own++
			}
		}
		if roles > 0 && own > 0 {
			t.Errorf("%s embeds interfaces, and has %d methods beside them: give it an interface with those", name, own)
		}
		if own > mostOfARole {
			t.Errorf("interface %s has %d methods; at most %d", name, own, mostOfARole)
		}
	}
}
