package mcpapi

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	scheme   = "coppice://"
	typeLog  = "application/json"
	typeDiff = "text/x-diff"
	// maxResource is the maximum size of a patch in a resource, in bytes.
	maxResource = 1 << 20
)

func (s *server) addResources(m *mcp.Server) {
	m.AddResourceTemplate(
		&mcp.ResourceTemplate{Name: "log", Title: "History of a sandbox", URITemplate: scheme + "{sandbox}/log",
			MIMEType:    typeLog,
			Description: "The newest 1000 snapshots of a sandbox, newest first, as the tool log lists them."}, s.readLog)
	m.AddResourceTemplate(
		&mcp.ResourceTemplate{Name: "diff", Title: "Difference between two " +
			"snapshots", URITemplate: scheme + "{sandbox}/diff/{a}/{b}",
			MIMEType:    typeDiff,
			Description: "Unified diffs from snapshot a to snapshot b, at most 1 MiB."}, s.readDiff)
	if s.opt.Sandbox != "" {
		m.AddResource(
			&mcp.Resource{Name: "log of " + s.opt.Sandbox, Title: "History",
				URI: scheme + url.PathEscape(s.opt.Sandbox) + "/log", MIMEType: typeLog,
				Description: "The newest 1000 snapshots of the sandbox, newest first."}, s.readLog)
	}
}

// place parses the URI of a resource: the sandbox, the kind, and its arguments.
func (s *server) place(uri string) (sandbox, what string, args []string, _ error) {
	rest, ok := strings.CutPrefix(uri, scheme)
	parts := strings.Split(rest, "/")
	for i, p := range parts {
		var err error
		if parts[i], err = url.PathUnescape(p); err != nil || parts[i] == "" {
			ok = false
		}
	}
	if !ok || len(parts) < 2 || s.opt.Sandbox != "" && parts[0] != s.opt.Sandbox {
		return "", "", nil, mcp.ResourceNotFoundError(uri)
	}
	return parts[0], parts[1], parts[2:], nil
}

func (s *server) readLog(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	sandbox, what, args, err := s.place(uri)
	if err != nil || what != "log" || len(args) != 0 {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	res, err := s.opt.Client.Log(ctx, sandbox)
	if err != nil {
		return nil, unreadable(uri, err)
	}
	out, _, err := nodes(res.Nodes, res.Head, "snapshot", pageIn{Limit: mostAtOnce})
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fault.Wrap(err, "encode the log")
	}
	return contents(uri, typeLog, string(b)), nil
}

func (s *server) readDiff(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	sandbox, what, args, err := s.place(uri)
	if err != nil || what != "diff" || len(args) != 2 {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	text, more, err := patch(ctx, remote{s.opt.Client, sandbox}, wire.DiffRequest{A: args[0], B: args[1]}, maxResource)
	if err != nil {
		return nil, unreadable(uri, err)
	}
	if more {
		text += "\n[the patch is cut; the tool diff shows parts of it]\n"
	}
	return contents(uri, typeDiff, text), nil
}

func contents(uri, kind, text string) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: kind, Text: text}}}
}

// unreadable converts an error: a missing object becomes "resource not found".
func unreadable(uri string, err error) error {
	if client.IsKind(err, client.KindNotFound) {
		return mcp.ResourceNotFoundError(uri)
	}
	e := wireError(err)
	if e.Hint != "" {
		return fault.New(fault.Kind(e.Kind), "%s (%s)", e.Message, e.Hint)
	}
	return fault.New(fault.Kind(e.Kind), "%s", e.Message)
}
