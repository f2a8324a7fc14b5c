package mcpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

const (
	manyNodes   = 50   // default number of snapshots in an answer
	manyChanges = 200  // default number of changes in an answer
	mostAtOnce  = 1000 // maximum number of either
)

type noIn struct{ at }

type nodeIn struct {
	at
	Node string `json:"node" jsonschema:"a snapshot: its id, a prefix of it, a tag, HEAD, HEAD~2, or @{5m}"`
}

type pageIn struct {
	at
	Limit int `json:"limit,omitempty" jsonschema:"maximum number of snapshots, up to 1000; default: 50"`
	Skip  int `json:"skip,omitempty" jsonschema:"number of newest snapshots to skip"`
}

type showIn struct {
	nodeIn
	Limit int `json:"limit,omitempty" jsonschema:"maximum number of changes, up to 1000; default: 200"`
	Skip  int `json:"skip,omitempty" jsonschema:"number of changes to skip"`
}

type diffIn struct {
	at
	A     string   `json:"a" jsonschema:"the old snapshot: an id, a prefix of it, a tag, HEAD, HEAD~2, or @{5m}"`
	B     string   `json:"b,omitempty" jsonschema:"the new snapshot; default: the current state"`
	Other string   `json:"other,omitempty" jsonschema:"the sandbox that b is a state of; default: the same sandbox"`
	Paths []string `json:"paths,omitempty" jsonschema:"only these paths and those below them"`
	Limit int      `json:"limit,omitempty" jsonschema:"maximum number of changes, up to 1000; default: 200"`
	Skip  int      `json:"skip,omitempty" jsonschema:"number of changes to skip"`
}

type headOut struct {
	Head string `json:"head" jsonschema:"the snapshot that the sandbox is at"`
}

type node struct {
	ID      string   `json:"id" jsonschema:"the snapshot's id"`
	Parent  string   `json:"parent" jsonschema:"its parent; empty for the first"`
	Message string   `json:"message" jsonschema:"the command line or the message"`
	Head    bool     `json:"head" jsonschema:"it is HEAD"`
	Leaf    bool     `json:"leaf" jsonschema:"it has no children"`
	Cause   string   `json:"cause" jsonschema:"import, exec, auto, manual, mark, fork or checkout"`
	Created string   `json:"created" jsonschema:"time, as RFC 3339"`
	Exit    *int     `json:"exit,omitempty" jsonschema:"exit code, if it was taken after a command"`
	Paths   int      `json:"paths" jsonschema:"how many paths it changed"`
	Bytes   int64    `json:"bytes" jsonschema:"bytes in the files that it added and changed"`
	Tags    []string `json:"tags" jsonschema:"its tags"`
}

type nodesOut struct {
	Nodes []node `json:"nodes" jsonschema:"snapshots, newest first"`
	Head  string `json:"head" jsonschema:"the snapshot that the sandbox is at"`
	Total int    `json:"total" jsonschema:"total number"`
}

type change struct {
	Kind string `json:"kind" jsonschema:"+ added, - removed, M modified"`
	Path string `json:"path" jsonschema:"relative to the root, with no leading slash"`
}

type showOut struct {
	node
	Changes []change `json:"changes" jsonschema:"changes against its parent, by path"`
	Total   int      `json:"total" jsonschema:"total number of changes"`
	More    bool     `json:"more" jsonschema:"there are more changes than total; use diff with paths"`
}

type diffOut struct {
	A         string   `json:"a" jsonschema:"the snapshot that a refers to"`
	B         string   `json:"b" jsonschema:"the snapshot that b refers to; empty for the current state"`
	Changes   []change `json:"changes" jsonschema:"from a to b, by path"`
	Total     int      `json:"total" jsonschema:"total number of changes"`
	More      bool     `json:"more" jsonschema:"there are more changes than total; use paths"`
	Patch     string   `json:"patch" jsonschema:"unified diffs, at most 64 KiB; control bytes and what is not UTF-8 are escaped"`
	Truncated bool     `json:"truncated" jsonschema:"the patch is cut"`
}

func (s *server) addHistory(m *mcp.Server) {
	add(s, m, tool{name: "head", title: "HEAD of the sandbox", reads: true,
		about: "Show the snapshot that the sandbox is at."}, head)
	add(s, m, tool{name: "log", title: "History", reads: true,
		about: "List the snapshots of the sandbox, newest first: the command, the time and how much it changed."}, log)
	add(s, m, tool{name: "branches", title: "Branches", reads: true,
		about: "List the branches of the history: the snapshots without children."}, branches)
	add(s, m, tool{name: "show", title: "One snapshot", reads: true,
		about: "Show one snapshot and the paths that it changed against its parent."}, show)
}

func (s *server) addDiff(m *mcp.Server) {
	add(s, m, tool{name: "diff", title: "Compare snapshots", reads: true,
		about: "Compare two snapshots, of one sandbox or of two: the changed paths, and their contents as a unified " +
			"patch."}, diff)
}

func head(ctx context.Context, c *call, _ noIn) (headOut, string, error) {
	res, err := c.history.Head(ctx)
	return headOut(res), "HEAD is " + res.Head, err
}

func log(ctx context.Context, c *call, in pageIn) (nodesOut, string, error) {
	res, err := c.history.Log(ctx)
	if err != nil {
		return nodesOut{}, "", err
	}
	return nodes(res.Nodes, res.Head, "snapshot", in)
}

func branches(ctx context.Context, c *call, in pageIn) (nodesOut, string, error) {
	res, err := c.history.Branches(ctx)
	if err != nil {
		return nodesOut{}, "", err
	}
	return nodes(res.Nodes, res.Head, "end", in)
}

func nodes(all []wire.Snapshot, head, what string, in pageIn) (nodesOut, string, error) {
	some, rest, err := page(all, in.Limit, in.Skip, manyNodes)
	if err != nil {
		return nodesOut{}, "", err
	}
	res := nodesOut{Nodes: []node{}, Head: head, Total: len(all)}
	text := fmt.Sprintf("%s, newest first; HEAD is %s", tty.Count(len(all), what), head)
	for _, n := range some {
		res.Nodes = append(res.Nodes, newNode(n))
		text += "\n" + nodeLine(n)
	}
	return res, text + rest, nil
}

// page returns a part of a list, and a note about the rest.
func page[T any](all []T, limit, skip, usual int) (some []T, rest string, _ error) {
	if limit < 0 || skip < 0 || limit > mostAtOnce {
		return nil, "", fault.New(fault.Invalid, "invalid limit %d or skip %d", limit, skip).
			WithHint("limit must be between 1 and %d, and skip must not be negative", mostAtOnce)
	}
	if limit == 0 {
		limit = usual
	}
	skip = min(skip, len(all))
	end := min(skip+limit, len(all))
	if n := len(all) - end; n > 0 {
		rest = fmt.Sprintf("\n[%d more; to see them, call again with skip=%d]", n, end)
	}
	return all[skip:end], rest, nil
}

func newNode(n wire.Snapshot) node {
	tags := []string{}
	for _, t := range n.Tags {
		tags = append(tags, tty.Clean(t))
	}
	return node{ID: n.ID, Parent: n.Parent, Message: shorten(n.Message, 4<<10), Head: n.Head, Leaf: n.Leaf, Cause: n.Cause,
		Created: n.Created.UTC().Format("2006-01-02T15:04:05Z"), Exit: n.Exit, Paths: n.Paths, Bytes: n.Bytes, Tags: tags}
}

// nodeLine formats a snapshot as one line.
func nodeLine(n wire.Snapshot) string {
	text := n.ID
	if n.Parent != "" {
		text += " <- " + n.Parent
	}
	text += "  " + line(n.Message)
	var notes []string
	if n.Head {
		notes = append(notes, "HEAD")
	}
	for _, t := range n.Tags {
		notes = append(notes, "tag "+line(t))
	}
	notes = append(notes, n.Cause)
	if n.Exit != nil {
		notes = append(notes, fmt.Sprintf("exit %d", *n.Exit))
	}
	notes = append(notes, tty.Count(n.Paths, "path"), n.Created.UTC().Format("2006-01-02 15:04:05Z"))
	return text + "  (" + strings.Join(notes, ", ") + ")"
}

func show(ctx context.Context, c *call, in showIn) (showOut, string, error) {
	if in.Node == "" {
		return showOut{}, "", missingInput("show", "node")
	}
	res, err := c.history.Show(ctx, in.Node)
	if err != nil {
		return showOut{}, "", err
	}
	some, rest, err := page(res.Changes, in.Limit, in.Skip, manyChanges)
	if err != nil {
		return showOut{}, "", err
	}
	return showOut{node: newNode(res.Snapshot), Changes: changes(some), Total: len(res.Changes), More: res.Truncated},
		nodeLine(res.Snapshot) + changeLines(some) + rest + beyond(res.Truncated), nil
}

// beyond returns a note if the daemon's answer was truncated.
func beyond(truncated bool) string {
	if !truncated {
		return ""
	}
	return "\n[more changes exceed the limit of one response; use diff with paths]"
}

func changes(list []wire.Change) []change {
	out := []change{}
	for _, c := range list {
		out = append(out, change{c.Kind, tty.Clean(c.Name())})
	}
	return out
}

func changeLines(list []wire.Change) string {
	var b strings.Builder
	for _, c := range list {
		b.WriteString("\n" + c.Kind + " " + tty.Quote(c.Name()))
		if c.Type == "dir" {
			b.WriteByte('/')
		}
	}
	return b.String()
}

func diff(ctx context.Context, c *call, in diffIn) (diffOut, string, error) {
	if in.A == "" {
		return diffOut{}, "", missingInput("diff", "a")
	}
	if in.Other != "" && c.alone {
		return diffOut{}, "", fault.New(fault.Denied, "cannot compare with sandbox %.100q: only one sandbox is accessible",
			in.Other).WithHint("omit \"other\"")
	}
	req := wire.DiffRequest{A: in.A, B: in.B, Other: in.Other, Paths: in.Paths}
	res, err := c.history.Diff(ctx, req)
	if err != nil {
		return diffOut{}, "", err
	}
	some, rest, err := page(res.Changes, in.Limit, in.Skip, manyChanges)
	if err != nil {
		return diffOut{}, "", err
	}
	out := diffOut{A: res.A, B: res.B, Changes: changes(some), Total: len(res.Changes), More: res.Truncated}
	if len(some) == 0 {
		return out, "no changes" + rest, nil
	}
	if p, ok := c.history.(patcher); ok {
		if out.Patch, out.Truncated, err = patch(ctx, p, req, maxText); err != nil {
			return diffOut{}, "", err
		}
	}
	text := fmt.Sprintf("%s from %s to %s", tty.Count(len(res.Changes), "change"), res.A, or(res.B, "the current state"))
	text += changeLines(some) + rest + beyond(res.Truncated)
	if out.Patch != "" {
		text += "\n\n" + out.Patch
	}
	if out.Truncated {
		text += "\n[the patch is cut; to see the rest, name fewer files as \"paths\"]"
	}
	return out, text, nil
}

// errEnough is the error of an atMost that is full.
var errEnough = errors.New("enough")

// patch returns unified diffs, sanitized and limited to limit bytes. It stops reading at the limit.
func patch(
	ctx context.Context, p patcher, req wire.DiffRequest, limit int,
) (text string, more bool, _ error) {
	w := &atMost{limit: limit}
	err := p.Patch(ctx, req, w)
	more = errors.Is(err, errEnough)
	if err != nil && !more {
		return "", false, err
	}
	text, n := firstVisible(w.String(), limit)
	more = more || n < w.Len()
	return text, more, nil
}

// atMost accepts limit bytes, and then fails with errEnough.
type atMost struct {
	bytes.Buffer
	limit int
}

func (w *atMost) Write(p []byte) (int, error) {
	if n := w.limit - w.Len(); len(p) > n {
		w.Buffer.Write(p[:n])
		return n, errEnough
	}
	return w.Buffer.Write(p)
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// missingInput returns the error for a missing input.
func missingInput(tool, input string) error {
	return fault.New(fault.Invalid, "%s requires %q", tool, input).
		WithHint("send the snapshot as %q; log lists them", input)
}
