package httpapi

import (
	_ "embed"
	"encoding/json"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/internal/auth"
)

// words holds the comments of package client/wire about its types and their fields, by their names in the
// document. A test keeps them in sync.
//
//go:embed words.json
var words []byte

// describe adds words and limits to the document. It may run while requests are validated: it sets only fields that
// huma does not read then.
func describe(doc *huma.OpenAPI) error {
	d := describer{said: map[string]string{}, held: limits(), of: aboutOperations()}
	if err := json.Unmarshal(words, &d.said); err != nil {
		return err
	}
	// The only types that are not in client/wire.
	d.said["Health"] = "Health reports that the daemon is alive."
	d.said["Readiness"] = "Readiness reports that the daemon is ready for requests."
	for name, s := range doc.Components.Schemas.Map() {
		if s.Description == "" {
			s.Description = d.said[name]
		}
		for field, f := range s.Properties {
			key := name + "." + field
			if text := d.said[key]; text != "" {
				f.Description = text
			}
			f.Extensions = d.held[key].schema()
		}
	}
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				d.operation(op)
			}
		}
	}
	return nil
}

// describer holds the descriptions, limits and operations that describe adds.
type describer struct {
	said map[string]string
	held map[string]limit
	of   map[string]about
}

func (d describer) operation(op *huma.Operation) {
	about := d.of[op.OperationID]
	text := about.text
	if scope, ok := op.Metadata[metaScope].(auth.Scope); ok {
		text = strings.TrimSpace(text + " Requires the scope " + scope.String() + ".")
	}
	op.Description = text
	for _, p := range op.Parameters {
		d.parameter(op, p)
	}
	if b := op.RequestBody; b != nil {
		for kind, m := range b.Content {
			if b.Description == "" && m.Schema.Ref != "" {
				b.Description = d.said[m.Schema.Ref[strings.LastIndexByte(m.Schema.Ref, '/')+1:]]
			}
			if kind == asJSON && about.example != nil {
				m.Example = about.example
			}
		}
	}
}

// parameter documents a parameter. It has an example only if it is required: a page that tries an operation would
// always send it.
func (d describer) parameter(op *huma.Operation, p *huma.Param) {
	l := d.held[p.Name]
	files := p.Name == "path" && p.In == "query" && op.OperationID != "diff"
	p.Required = p.Required || files
	if p.Name == "path" && !files {
		return // the path parameter of diff is a list
	}
	if p.Required {
		p.Example = l.example
	}
	l.example = nil
	p.Schema.Extensions = l.schema()
}
