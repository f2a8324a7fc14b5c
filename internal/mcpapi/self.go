package mcpapi

import (
	"context"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// History is the history of one sandbox, as the tools use it. Errors carry a fault.Kind, or are of type *client.Error.
// Every method is safe for concurrent use.
type History interface {
	Head(ctx context.Context) (wire.HeadResult, error)
	Log(ctx context.Context) (wire.LogResult, error)
	Branches(ctx context.Context) (wire.BranchesResult, error)
	Show(ctx context.Context, ref string) (wire.ShowResult, error)
	Diff(ctx context.Context, req wire.DiffRequest) (wire.DiffResult, error)
	Commit(ctx context.Context, message string) (wire.CommitResult, error)
	Checkout(ctx context.Context, req wire.CheckoutRequest) (wire.MoveResult, error)
}

// Self is the history of the sandbox that this process runs in. The daemon decides which of the methods the sandbox's
// policy permits; the others fail with fault.Denied.
type Self interface {
	History
	Mark(ctx context.Context, req wire.MarkRequest) (wire.CommitResult, error)
	SetTag(ctx context.Context, req wire.TagRequest) (wire.TagResult, error)
	// Trial runs a command in a temporary fork.
	Trial(ctx context.Context, req wire.TrialRequest) (wire.Trial, error)
}

// patcher is a History that can also show contents. A Self cannot: the daemon reads files that are hidden from the
// sandbox.
type patcher interface {
	// Patch writes unified diffs to w, and stops at the first error of w.
	Patch(ctx context.Context, req wire.DiffRequest, w io.Writer) error
}

// remote is the History of a sandbox that a daemon serves.
type remote struct {
	*client.Client
	sandbox string
}

func (r remote) Head(ctx context.Context) (wire.HeadResult, error) {
	return r.Client.Head(ctx, r.sandbox)
}

func (r remote) Log(ctx context.Context) (wire.LogResult, error) { return r.Client.Log(ctx, r.sandbox) }

func (r remote) Branches(ctx context.Context) (wire.BranchesResult, error) {
	return r.Client.Branches(ctx, r.sandbox)
}

func (r remote) Show(ctx context.Context, ref string) (wire.ShowResult, error) {
	return r.Client.Show(ctx, r.sandbox, ref)
}

func (r remote) Diff(ctx context.Context, req wire.DiffRequest) (wire.DiffResult, error) {
	return r.Client.Diff(ctx, r.sandbox, req)
}

// Patch implements patcher.
func (r remote) Patch(ctx context.Context, req wire.DiffRequest, w io.Writer) error {
	return r.Client.Patch(ctx, r.sandbox, req, w)
}

func (r remote) Commit(ctx context.Context, message string) (wire.CommitResult, error) {
	return r.Client.Commit(ctx, r.sandbox, message)
}

func (r remote) Checkout(ctx context.Context, req wire.CheckoutRequest) (wire.MoveResult, error) {
	return r.Client.Checkout(ctx, r.sandbox, req)
}

const selfInstructions = `You work in a Coppice sandbox: a computer whose file system has a history. Changes
become snapshots automatically, and everything can be undone, except what is in /tmp, /run
and /dev.

- Inspect the history with "log", "show" and "diff".
- Before something risky, take a snapshot with "commit" and a message, or name the
  current one with "tag".
- When something went wrong, rewind with "checkout". It restores the whole file system in
  place, with installed programs; this session and all processes continue. The
  state before is captured first, so that nothing is lost.
- To try a command without changing the files of this sandbox, use "trial": it runs in a
  fork that is removed. What the command does over the network remains.
- A snapshot is named by its id, a prefix of it, a tag, HEAD, HEAD~2, or @{5m}
  (five minutes ago).

When a tool fails, nothing was executed: report that, and do not invent a result.`

type selfDiffIn struct {
	at
	A     string   `json:"a" jsonschema:"the old snapshot: an id, a prefix of it, a tag, HEAD, HEAD~2, or @{5m}"`
	B     string   `json:"b,omitempty" jsonschema:"the new snapshot; default: the current state"`
	Paths []string `json:"paths,omitempty" jsonschema:"only these paths and those below them"`
	Limit int      `json:"limit,omitempty" jsonschema:"maximum number of changes, up to 1000; default: 200"`
	Skip  int      `json:"skip,omitempty" jsonschema:"number of changes to skip"`
}

type selfDiffOut struct {
	A       string   `json:"a" jsonschema:"the old snapshot, as requested"`
	B       string   `json:"b" jsonschema:"the new snapshot, as requested; empty for the current state"`
	Changes []change `json:"changes" jsonschema:"from a to b, by path"`
	Total   int      `json:"total" jsonschema:"total number of changes"`
	More    bool     `json:"more" jsonschema:"there are more changes than total; use paths"`
}

type selfCheckoutIn struct{ nodeIn }

type markIn struct {
	at
	Label string `json:"label" jsonschema:"message of the snapshot: what was done, or with phase begin what is about to be done"`
	Phase string `json:"phase,omitempty" jsonschema:"begin gives automatic snapshots the message until end; default: take one snapshot now"`
}

type tagIn struct {
	at
	Name string `json:"name" jsonschema:"the tag: 1 to 63 of a-z 0-9 _ . -, a letter or digit first"`
	Node string `json:"node,omitempty" jsonschema:"the snapshot; default: HEAD"`
}

type tagOut struct {
	Name string `json:"name" jsonschema:"the tag"`
	Node string `json:"node" jsonschema:"the snapshot that it names"`
}

type trialIn struct {
	at
	Cmd       string `json:"cmd" jsonschema:"a shell command, up to 4096 bytes"`
	Node      string `json:"node,omitempty" jsonschema:"the snapshot to fork; default: the current state, which is captured first"`
	TimeoutMS int64  `json:"timeout_ms,omitempty" jsonschema:"timeout in milliseconds; default and maximum: 600000"`
}

type trialOut struct {
	Exit     int    `json:"exit" jsonschema:"exit code; 124 timeout, 125 if the command could not be run"`
	TimedOut bool   `json:"timed_out" jsonschema:"it timed out"`
	TimeMS   int64  `json:"time_ms" jsonschema:"duration in milliseconds, with the start of the fork"`
	Tail     string `json:"tail" jsonschema:"the end of its output"`
}

// addSelf registers the tools for a process in the sandbox.
func (s *server) addSelf(m *mcp.Server) {
	s.addHistory(m)
	add(s, m, tool{name: "diff", title: "Compare snapshots", reads: true,
		about: "List the paths that differ between two snapshots."}, selfDiff)
	add(s, m, tool{name: "checkout", title: "Rewind to a snapshot", destroys: true, repeats: true,
		about: "Rewind the whole file system of this sandbox to a snapshot, in place: this session and all processes " +
			"continue. The current state is captured first, so that it can be restored."}, selfCheckout)
	s.addCommit(m)
	add(s, m, tool{name: "mark", title: "Give snapshots a message",
		about: "Take a snapshot of the current state with a message, or give the automatic snapshots of a phase one."}, mark)
	add(s, m, tool{name: "tag", title: "Name a snapshot", repeats: true,
		about: "Give a snapshot a name. A tagged snapshot is kept when old automatic snapshots are deleted."}, tag)
	add(s, m, tool{name: "trial", title: "Try a command in a fork", open: true,
		about: "Run a shell command in a fork of this sandbox, which is removed afterwards, and report its exit code and " +
			"the end of its output. The files of this sandbox do not change, and processes of this sandbox do not exist in " +
			"the fork. What the command sends over the network, as far as the rules of this sandbox permit, is not undone."},
		trial)
}

func selfDiff(ctx context.Context, c *call, in selfDiffIn) (selfDiffOut, string, error) {
	out, text, err := diff(ctx, c, diffIn{A: in.A, B: in.B, Paths: in.Paths, Limit: in.Limit, Skip: in.Skip})
	return selfDiffOut{out.A, out.B, out.Changes, out.Total, out.More}, text, err
}

func selfCheckout(ctx context.Context, c *call, in selfCheckoutIn) (checkoutOut, string, error) {
	return checkout(ctx, c, checkoutIn{nodeIn: in.nodeIn, InPlace: true})
}

func mark(ctx context.Context, c *call, in markIn) (commitOut, string, error) {
	res, err := c.self.Mark(ctx, wire.MarkRequest{Phase: in.Phase, Label: in.Label})
	if err != nil {
		return commitOut{}, "", err
	}
	out, text := committed(res)
	return out, text, nil
}

func tag(ctx context.Context, c *call, in tagIn) (tagOut, string, error) {
	if in.Name == "" {
		return tagOut{}, "", fault.New(fault.Invalid, "tag requires %q", "name").WithHint("send the tag as \"name\"")
	}
	res, err := c.self.SetTag(ctx, wire.TagRequest{Name: in.Name, Ref: or(in.Node, "HEAD")})
	return tagOut(res), fmt.Sprintf("tag %s names snapshot %s", line(res.Name), res.Node), err
}

func trial(ctx context.Context, c *call, in trialIn) (trialOut, string, error) {
	if in.Cmd == "" {
		return trialOut{}, "", fault.New(fault.Invalid, "trial requires %q", "cmd").
			WithHint("send a shell command as \"cmd\"")
	}
	res, err := c.self.Trial(ctx, wire.TrialRequest{Cmd: in.Cmd, At: in.Node, TimeoutMS: in.TimeoutMS})
	if err != nil {
		return trialOut{}, "", err
	}
	out := trialOut{Exit: res.Exit, TimedOut: res.TimedOut, TimeMS: res.TimeMS}
	out.Tail, _ = lastVisible(res.Tail, maxTail)
	text := fmt.Sprintf("exit %d after %.1f s, in a fork that was removed", res.Exit, float64(res.TimeMS)/1000)
	if res.TimedOut {
		text += "\nthe command timed out"
	}
	if out.Tail != "" {
		text += "\n--- end of its output\n" + out.Tail + "\n---"
	}
	return out, text, nil
}
