package mcpapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// maxNamed is the maximum number of sandboxes that an error lists.
const maxNamed = 20

// tool describes a tool for clients, in addition to its schemas.
type tool struct {
	name, title, about string
	reads              bool // it changes nothing
	destroys           bool // it may delete something
	repeats            bool // calling it again has no further effect
	open               bool // its commands may reach beyond the sandbox
	anywhere           bool // it does not require a sandbox
}

// at is the input of every tool of a server that is not bound to a sandbox.
type at struct {
	Sandbox string `json:"sandbox,omitempty" jsonschema:"name or id of the sandbox; optional if there is only one"`
}

func (a at) where() string { return a.Sandbox }

// located is an input that names a sandbox.
type located interface{ where() string }

// call is one call of a tool.
type call struct {
	history History
	self    Self           // nil outside a sandbox
	client  *client.Client // nil inside a sandbox
	sandbox string         // "" only for tool.anywhere
	alone   bool           // it is the only accessible sandbox
	beat    *beat
}

// add registers a tool. fn returns the structured result and the text for a model.
func add[In located, Out any](
	s *server, m *mcp.Server, t tool, fn func(context.Context, *call, In) (Out, string, error),
) {
	no := false
	in, out := schema[In](), schema[Out]()
	if s.bound() {
		for _, names := range []string{"sandbox", "other"} {
			delete(in.Properties, names)
			in.PropertyOrder = slices.DeleteFunc(in.PropertyOrder, func(p string) bool { return p == names })
		}
	}
	hints := &mcp.ToolAnnotations{Title: t.title, ReadOnlyHint: t.reads, IdempotentHint: t.reads || t.repeats,
		DestructiveHint: &t.destroys, OpenWorldHint: &no}
	if t.open {
		hints.OpenWorldHint = &t.open
	}
	mcp.AddTool(m,
		&mcp.Tool{Name: t.name, Title: t.title, Description: t.about, InputSchema: in, OutputSchema: out, Annotations: hints},
		func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
			var none Out
			c, err := s.call(ctx, in.where(), t.anywhere)
			if err != nil {
				return nil, none, err
			}
			c.beat = startBeat(ctx, t.name, req)
			res, text, err := fn(ctx, c, in)
			c.beat.end()
			if err != nil {
				return nil, none, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, res, nil
		})
}

// bound reports whether all tools use one sandbox.
func (s *server) bound() bool { return s.opt.Sandbox != "" || s.opt.Self != nil }

// call returns a call of a tool on the named sandbox.
func (s *server) call(ctx context.Context, name string, anywhere bool) (*call, error) {
	if s.opt.Self != nil {
		return &call{history: s.opt.Self, self: s.opt.Self, alone: true}, nil
	}
	name, err := s.find(ctx, name, anywhere)
	if err != nil {
		return nil, err
	}
	return &call{history: remote{s.opt.Client, name}, client: s.opt.Client, sandbox: name, alone: s.bound()}, nil
}

// schema returns the schema of T. Lists are never null: an absent optional field is omitted.
func schema[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) //nolint:forbidigo // a type of ours that JSON cannot say: impossible, and every test would see it
	}
	noNull(s)
	return s
}

func noNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	noNull(s.Items)
	for _, p := range s.Properties {
		noNull(p)
	}
}

// find returns the sandbox of a call.
func (s *server) find(ctx context.Context, name string, anywhere bool) (string, error) {
	switch {
	case s.opt.Sandbox != "":
		return s.opt.Sandbox, nil
	case name != "" || anywhere:
		return name, nil
	}
	list, err := s.opt.Client.List(ctx)
	if err != nil {
		return "", err
	}
	return only(list)
}

// only returns the name of the only sandbox.
func only(list []wire.Sandbox) (string, error) {
	switch len(list) {
	case 0:
		return "", fault.New(fault.NotFound, "no sandbox exists").
			WithHint("a user can create one: coppice create NAME")
	case 1:
		return list[0].Name, nil
	}
	var names []string
	for _, sb := range list[:min(len(list), maxNamed)] {
		names = append(names, sb.Name)
	}
	more := ""
	if n := len(list) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return "", fault.New(fault.Invalid, "a sandbox name is required: there are %d sandboxes", len(list)).
		WithHint(`send one as "sandbox": %s%s`, strings.Join(names, ", "), more)
}

// refusal begins the text of every failed call: without it, models tend to invent a result.
const refusal = "THIS TOOL DID NOT EXECUTE, AND NO RESULT OF IT MAY BE INVENTED."

// errorKey is the key of the structured error of a failed call, in _meta.
const errorKey = "coppice/error"

// explainFailures adds the text to every failed call, including one whose inputs the schema refuses.
func explainFailures(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if r, ok := res.(*mcp.CallToolResult); ok && err == nil && r.IsError {
			e := wireError(r.GetError())
			r.Content = []mcp.Content{&mcp.TextContent{Text: failure(e)}}
			r.Meta = mcp.Meta{errorKey: e}
		}
		return res, err
	}
}

// failure returns the text of a failed call for a model.
func failure(e wire.Error) string {
	text := refusal + "\nerror (" + e.Kind + "): " + e.Message
	if e.Hint != "" {
		text += "\nhint: " + e.Hint
	}
	return text
}

// maxError is the maximum size of an error's message and hint, in bytes.
const maxError = 4 << 10

// wireError converts an error, and sanitizes parts that come from a sandbox.
func wireError(err error) wire.Error {
	var (
		ce *client.Error
		fe *fault.Error
		e  wire.Error
	)
	switch {
	case err == nil:
		e = wire.Error{Kind: string(fault.Internal), Message: "it failed (no cause reported)"}
	case errors.As(err, &ce):
		e = wire.Error{Kind: ce.Kind, Message: err.Error(), Hint: ce.Hint}
	case errors.As(err, &fe):
		e = wire.Error{Kind: string(fe.Kind), Message: err.Error(), Hint: fault.HintOf(err)}
	case fault.KindOf(err) != fault.Internal:
		e = wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error()}
	default: // an error of the schema
		e = wire.Error{Kind: string(fault.Invalid), Message: err.Error(), Hint: "see the input schema of the tool"}
	}
	e.Message, e.Hint = shorten(e.Message, maxError), shorten(e.Hint, maxError)
	return e
}
