package lineapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// op is one operation.
type op struct {
	name     string // set by find
	least    Level
	snapshot bool // it may take a snapshot
	costly   bool // it may need much of the daemon's memory
	run      func(c *conn, line []byte) (any, error)
}

// ops is the table of the package comment.
var ops = map[string]op{
	"head":       {least: Read, run: request((*conn).head)},
	"log":        {least: Read, run: request((*conn).log)},
	"branches":   {least: Read, run: request((*conn).branches)},
	"show":       {least: Read, costly: true, run: request((*conn).show)},
	"diff":       {least: Read, costly: true, run: request((*conn).diff)},
	"tag":        {least: Read, run: request((*conn).tag)},
	"commit":     {least: Rewind, snapshot: true, run: request((*conn).commit)},
	"checkout":   {least: Rewind, snapshot: true, run: request((*conn).checkout)},
	"fork":       {least: Rewind, snapshot: true, run: request((*conn).checkout)},
	"trial":      {least: Rewind, snapshot: true, run: request((*conn).trial)},
	"exec":       {least: Owner, run: request((*conn).exec)},
	"spawn":      {least: Owner, run: request((*conn).spawn)},
	"ps":         {least: Owner, run: request((*conn).ps)},
	"kill":       {least: Owner, run: request((*conn).kill)},
	"delete":     {least: Owner, run: request((*conn).delete)},
	"mark":       {least: Read, snapshot: true, run: request((*conn).mark)},
	"tournament": {least: Owner, run: request((*conn).tournament)},
	"gc":         {least: Owner, costly: true, run: request((*conn).gc)},
	"retain":     {least: Owner, costly: true, run: request((*conn).retain)},
}

// request parses a line for fn. Unknown fields are allowed: a newer client may send them.
func request[Q any](fn func(c *conn, q Q) (any, error)) func(*conn, []byte) (any, error) {
	return func(c *conn, line []byte) (any, error) {
		var q Q
		if err := json.Unmarshal(line, &q); err != nil {
			return nil, malformed(err)
		}
		return fn(c, q)
	}
}

type none struct{}

// find returns the operation of a line, if this client may use it.
func (c *conn) find(line []byte) (op, error) {
	if len(bytes.TrimSpace(line)) == 0 {
		return op{}, fault.New(fault.Invalid, "empty line").WithHint(example)
	}
	var q struct {
		Op *string `json:"op"`
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return op{}, malformed(err)
	}
	if q.Op == nil {
		return op{}, fault.New(fault.Invalid, "a request requires \"op\"").WithHint(example)
	}
	o, known := ops[*q.Op]
	o.name = *q.Op
	switch {
	case !known && c.opt.Level == Owner:
		return o, fault.New(fault.NotFound, "unknown op %q", cut(*q.Op, 100)).WithHint("the ops are: %s", c.allowed())
	case !known:
		return o, fault.New(fault.NotFound, "unknown op %q inside the sandbox", cut(*q.Op, 100)).
			WithHint("the ops are: %s", c.allowed())
	case o.least > c.opt.Level:
		return o, forbidden(*q.Op, o.least)
	}
	return o, nil
}

const example = `send one JSON object per line, for example: {"op":"log"}`

func malformed(err error) error {
	var at *json.UnmarshalTypeError
	switch {
	case errors.As(err, &at) && at.Field != "":
		return fault.New(fault.Invalid, "invalid %q: cannot be a JSON %s", at.Field, at.Value)
	case errors.As(err, &at):
		return fault.New(fault.Invalid, "expected a JSON object, got %s", at.Value).WithHint(example)
	}
	return fault.New(fault.Invalid, "expected a JSON object").Because(err).WithHint(example)
}

// forbidden returns the error for an operation that the client's level does not allow, with a hint about how to
// allow it.
func forbidden(what string, least Level) error {
	f := fault.New(fault.Denied, "%s is not allowed from inside the sandbox", what)
	if least == Rewind {
		return f.WithHint("it is allowed in a sandbox created with: coppice create --self rewind")
	}
	return f.WithHint("it is only possible from outside the sandbox")
}

// allowed lists the operations that this client may use.
func (c *conn) allowed() string {
	var names []string
	for name, o := range ops {
		if o.least <= c.opt.Level {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// text refuses a text of an untrusted client that is too long to be stored.
func (c *conn) text(what, s string) error {
	if c.opt.Guard != nil && len(s) > limit.LineText {
		return fault.New(fault.Invalid, "the %s is too large: %d bytes; the limit inside the sandbox is %d", what, len(s),
			limit.LineText)
	}
	return nil
}

// missingField returns the error for a missing field.
func missingField(op, field, what string) error {
	return fault.New(fault.Invalid, "%s requires %q", op, field).WithHint("send %s as %q", what, field)
}

type headAnswer struct {
	Head string `json:"head"`
}

func (c *conn) head(none) (any, error) {
	id, err := c.opt.Engine.Head(c.ctx, c.opt.Sandbox)
	return headAnswer{id}, err
}

type nodesAnswer struct {
	Nodes     []wire.Snapshot `json:"nodes"`
	Head      string          `json:"head"`
	Truncated bool            `json:"truncated,omitempty"` // older ones are omitted
}

func (c *conn) log(none) (any, error) {
	res, err := c.opt.Engine.Snapshots(c.ctx, c.opt.Sandbox)
	return c.nodes(res.Nodes, res.Head), err
}

func (c *conn) branches(none) (any, error) {
	res, err := c.opt.Engine.Branches(c.ctx, c.opt.Sandbox)
	return c.nodes(res.Nodes, res.Head), err
}

// nodes lists snapshots, newest first. For an untrusted client their number is limited.
func (c *conn) nodes(list []wire.Snapshot, head string) nodesAnswer {
	most := len(list)
	if c.opt.Guard != nil {
		most = min(most, limit.LineNodes)
	}
	out := notNil(slices.Clone(list[:most]))
	for i := range out {
		out[i] = c.visible(out[i])
	}
	return nodesAnswer{Nodes: out, Head: head, Truncated: most < len(list)}
}

// visible returns a snapshot as this client may see it: the facts of a memory image describe the host.
func (c *conn) visible(n wire.Snapshot) wire.Snapshot {
	if c.opt.Guard != nil && n.Memory != nil {
		m := *n.Memory
		m.Facts = nil
		n.Memory = &m
	}
	return n
}

// changes returns the maximum number of changes in an answer; 0 means the default for clients outside.
func (c *conn) changes() int {
	if c.opt.Guard != nil {
		return limit.LineChanges
	}
	return 0
}

type nodeRequest struct {
	Node string `json:"node"`
}

// showAnswer has the snapshot's id twice: clients of the first version read "node".
type showAnswer struct {
	Node string `json:"node"`
	wire.ShowResult
}

func (c *conn) show(q nodeRequest) (any, error) {
	if q.Node == "" {
		return nil, missingField("show", "node", "the snapshot")
	}
	ctx, stop := c.whileThere()
	defer stop()
	res, err := c.opt.Engine.ShowSome(ctx, c.opt.Sandbox, q.Node, c.changes())
	res.Snapshot, res.Changes = c.visible(res.Snapshot), notNil(res.Changes)
	return showAnswer{res.ID, res}, err
}

type diffAnswer struct {
	Changes   []wire.Change `json:"changes"`
	Truncated bool          `json:"truncated,omitempty"` // more changes are omitted
}

func (c *conn) diff(q struct {
	A string `json:"a"`
	B string `json:"b"` // "": the live state

	Paths []string `json:"paths"`
}) (any, error) {
	if q.A == "" {
		return nil, missingField("diff", "a", "the first snapshot")
	}
	if c.opt.Guard != nil && len(q.Paths) > limit.LinePaths {
		return nil, fault.New(fault.TooLarge, "too many paths: %d; the limit inside the sandbox is %d", len(q.Paths),
			limit.LinePaths).
			WithHint(`name a directory that contains them, for example: {"op":"diff","a":"HEAD","paths":["src"]}`)
	}
	ctx, stop := c.whileThere()
	defer stop()
	res, err := c.opt.Engine.Diff(ctx, c.opt.Sandbox, wire.DiffRequest{A: q.A, B: q.B, Paths: q.Paths, Limit: c.changes()})
	return diffAnswer{notNil(res.Changes), res.Truncated}, err
}

func (c *conn) commit(q wire.CommitRequest) (any, error) {
	if err := c.text("message", q.Message); err != nil {
		return nil, err
	}
	return c.opt.Engine.Commit(c.ctx, c.opt.Sandbox, q.Message)
}

func (c *conn) checkout(q struct {
	Node    string `json:"node"`
	InPlace bool   `json:"in_place"`
}) (any, error) {
	if q.Node == "" {
		return nil, missingField("checkout", "node", "the snapshot to rewind to")
	}
	return c.opt.Engine.Checkout(c.ctx, c.opt.Sandbox, q.Node, q.InPlace || c.opt.Level < Owner)
}

func (c *conn) delete(q nodeRequest) (any, error) {
	if q.Node == "" {
		return nil, missingField("delete", "node", "the snapshot")
	}
	head, err := c.opt.Engine.DeleteSnapshot(c.ctx, c.opt.Sandbox, q.Node)
	return headAnswer{head}, err
}

func (c *conn) tag(q wire.TagRequest) (any, error) {
	switch {
	case q.Name == "" && q.Ref != "":
		return nil, missingField("tag", "name", "the tag")
	case q.Ref != "" && c.opt.Level < Rewind:
		return nil, forbidden("setting a tag", Rewind)
	case q.Ref != "":
		res, err := c.opt.Engine.SetTag(c.ctx, c.opt.Sandbox, q.Name, q.Ref)
		return wire.TagResult{Name: res.Name, Node: res.Node}, err
	}
	tags, err := c.opt.Engine.Tags(c.ctx, c.opt.Sandbox)
	if err != nil {
		return nil, err
	}
	if q.Name == "" {
		if tags == nil {
			tags = map[string]string{}
		}
		return wire.TagsResult{Tags: tags}, nil
	}
	node, ok := tags[q.Name]
	if !ok {
		f := fault.New(fault.NotFound, "tag %q not found", cut(q.Name, timeline.MaxName))
		if near := fault.Nearest(q.Name, keys(tags)); near != "" {
			return nil, f.WithHint("did you mean %s?", near)
		}
		return nil, f.WithHint(`list them: {"op":"tag"}`)
	}
	return wire.TagResult{Name: q.Name, Node: node}, nil
}

type gcAnswer struct {
	Removed []string `json:"removed"`
}

func (c *conn) gc(none) (any, error) {
	res, err := c.opt.Engine.GC(c.ctx, wire.GCRequest{}, func(wire.Progress) {})
	return gcAnswer{notNil(res.Removed)}, err
}

// keepDefault is the default number of snapshots that retain keeps.
const keepDefault = 30

type retainAnswer struct {
	Dropped []string `json:"dropped"`
}

func (c *conn) retain(q struct {
	Keep *int `json:"keep"`
}) (any, error) {
	keep := keepDefault
	if q.Keep != nil {
		keep = *q.Keep
	}
	if keep < 1 {
		return nil, fault.New(fault.Invalid,
			"invalid number of snapshots to keep %d: must be positive", keep).WithHint(`send a number of 1 or more as "keep"`)
	}
	res, err := c.opt.Engine.GC(c.ctx, wire.GCRequest{Keep: wire.Keep{Last: keep}, Sandboxes: []string{c.opt.Sandbox}},
		func(wire.Progress) {})
	dropped := []string{}
	for _, n := range res.Dropped {
		dropped = append(dropped, n.ID)
	}
	return retainAnswer{dropped}, err
}

// notNil replaces a nil list with an empty one, which is encoded as [] and not null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// cut shortens text for error messages.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}
