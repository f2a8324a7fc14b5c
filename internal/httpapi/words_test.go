package httpapi_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// TestOpenAPIWords checks that words.json has the comments of client/wire.
func TestOpenAPIWords(t *testing.T) {
	t.Parallel()
	said := comments(t, filepath.Join("..", "..", "client", "wire"))
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "\t")
	if err := e.Encode(said); err != nil {
		t.Fatal(err)
	}
	const file = "words.json"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, b.Bytes()) {
		t.Errorf("%s differs from the comments of client/wire (%v); run twice to embed it: go test "+
			"./internal/httpapi -run OpenAPI -update", file, err)
	}
}

// comments returns the comments of a package's types, and, by Type.field, of their fields that are sent.
func comments(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]*ast.StructType{}
	said := map[string]string{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok {
					if st, ok := ts.Type.(*ast.StructType); ok {
						types[ts.Name.Name], said[ts.Name.Name] = st, oneLine(g.Doc)
					}
				}
			}
		}
	}
	var fields func(name string, st *ast.StructType)
	fields = func(name string, st *ast.StructType) {
		for _, f := range st.Fields.List {
			if len(f.Names) == 0 { // an embedded struct: its fields belong to the outer one
				if id, ok := f.Type.(*ast.Ident); ok {
					fields(name, types[id.Name])
				}
				continue
			}
			if f.Tag == nil {
				continue
			}
			tag, err := strconv.Unquote(f.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			field, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			if text := strings.TrimSpace(oneLine(f.Doc) + " " + oneLine(f.Comment)); field != "" && field != "-" && text != "" {
				said[name+"."+field] = text
			}
		}
	}
	for name, st := range types {
		fields(name, st)
	}
	return said
}

func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
