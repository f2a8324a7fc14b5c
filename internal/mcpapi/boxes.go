package mcpapi

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// mostForks is the maximum number of sandboxes that one call creates.
const mostForks = 100

type forkIn struct {
	at
	Node  string   `json:"node,omitempty" jsonschema:"the snapshot to start from; default: the current state, which is captured first"`
	Names []string `json:"names,omitempty" jsonschema:"names of the forks; the others are named automatically"`
	Same  bool     `json:"same_identity,omitempty" jsonschema:"keep the machine ID and the SSH host keys of the sandbox"`
	N     int      `json:"n,omitempty" jsonschema:"number of forks, up to 100; default: the number of names, or 1"`
}

type forkOut struct {
	Sandboxes []box    `json:"sandboxes" jsonschema:"the new sandboxes"`
	Head      string   `json:"head" jsonschema:"the snapshot that the first of them is at"`
	Warnings  []string `json:"warnings" jsonschema:"what is weaker than requested"`
}

type box struct {
	ID    string `json:"id" jsonschema:"its id"`
	Name  string `json:"name" jsonschema:"its name"`
	Head  string `json:"head" jsonschema:"the snapshot that it is at"`
	State string `json:"state" jsonschema:"live if its processes may be running, otherwise idle; an idle sandbox is started when needed"`
	Procs int    `json:"procs" jsonschema:"number of running processes"`
	From  string `json:"from" jsonschema:"its source"`

	Labels map[string]string `json:"labels,omitempty" jsonschema:"its labels"`
}

type detail struct {
	User      string   `json:"user" jsonschema:"user of commands"`
	Net       string   `json:"net" jsonschema:"network: off, rules or host"`
	Snapshots int      `json:"snapshots" jsonschema:"number of snapshots"`
	Branches  int      `json:"branches" jsonschema:"number of branches"`
	Dirty     bool     `json:"dirty" jsonschema:"something has changed since the last snapshot; a hint only"`
	Bytes     int64    `json:"bytes" jsonschema:"bytes on disk that only this sandbox uses"`
	Walls     []string `json:"walls" jsonschema:"its protections, as enforced"`
	Notices   []string `json:"notices" jsonschema:"notices for the user"`
}

type statusOut struct {
	Sandboxes []box   `json:"sandboxes" jsonschema:"the requested sandbox, or all"`
	Detail    *detail `json:"detail,omitempty" jsonschema:"details, if it is one sandbox"`
}

func (s *server) addBoxes(m *mcp.Server) {
	add(s, m, tool{name: "fork", title: "Fork the sandbox",
		about: "Create new sandboxes from a snapshot of this one. They share its data, so a fork is cheap, " +
			"regardless of the size of the sandbox."}, fork)
	about := "Show the state of the sandbox: whether processes are running, the size of its history, and what isolates " +
		"it " +
		"from the host."
	if s.opt.Sandbox == "" {
		about += " Without a sandbox, list all sandboxes."
	}
	add(s, m, tool{name: "status", title: "State of the sandbox", reads: true, anywhere: true, about: about}, status)
}

func fork(ctx context.Context, c *call, in forkIn) (forkOut, string, error) {
	if in.N < 0 || max(in.N, len(in.Names)) > mostForks || in.N > 0 && len(in.Names) > in.N {
		return forkOut{}, "", fault.New(fault.Invalid, "invalid n %d with %d names", in.N, len(in.Names)).
			WithHint("n must be at most %d and at least the number of names", mostForks)
	}
	res, err := c.client.Fork(ctx, c.sandbox,
		wire.ForkRequest{Names: in.Names, N: max(in.N, len(in.Names), 1), At: in.Node, SameIdentity: in.Same})
	if err != nil {
		return forkOut{}, "", err
	}
	out := forkOut{Sandboxes: []box{}, Warnings: []string{}}
	text := "made " + tty.Count(len(res.Sandboxes), "sandbox")
	for i, sb := range res.Sandboxes {
		if i == 0 {
			out.Head = sb.Head
		}
		out.Sandboxes = append(out.Sandboxes, newBox(sb))
		out.Warnings = append(out.Warnings, clean(sb.Warnings)...)
		text += "\n" + sb.Name + " at " + sb.Head
	}
	for _, w := range out.Warnings {
		text += "\nwarning: " + w
	}
	return out, text, nil
}

func newBox(sb wire.Sandbox) box {
	return box{ID: sb.ID, Name: sb.Name, Head: sb.Head, State: sb.State, Procs: sb.Procs, From: tty.Clean(sb.From),
		Labels: cleanLabels(sb.Labels)}
}

// cleanLabels sanitizes labels for an answer. Coppice's daemon checks labels, but the client may be connected to
// another version.
func cleanLabels(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	out := make(map[string]string, len(labels))
	for k, v := range labels {
		out[tty.Clean(k)] = shorten(tty.Clean(v), 1<<10)
	}
	return out
}

func clean(list []string) []string {
	out := []string{}
	for _, s := range list {
		out = append(out, shorten(tty.Clean(s), 1<<10))
	}
	return out
}

func status(ctx context.Context, c *call, _ noIn) (statusOut, string, error) {
	if c.sandbox == "" {
		list, err := c.client.List(ctx)
		if err != nil {
			return statusOut{}, "", err
		}
		if len(list) != 1 {
			res, text := overview(list)
			return res, text, nil
		}
		c.sandbox = list[0].Name
	}
	st, err := c.client.Status(ctx, c.sandbox)
	if err != nil {
		return statusOut{}, "", err
	}
	res, text := state(st)
	return res, text, nil
}

func overview(list []wire.Sandbox) (statusOut, string) {
	res := statusOut{Sandboxes: []box{}}
	if len(list) == 0 {
		return res, "no sandbox exists; a user can create one: coppice create NAME"
	}
	text := tty.Count(len(list), "sandbox")
	for i, sb := range list {
		if i == mostAtOnce {
			text += fmt.Sprintf("\n[%d more]", len(list)-i)
			break
		}
		res.Sandboxes = append(res.Sandboxes, newBox(sb))
		text += "\n" + boxLine(sb)
	}
	return res, text
}

func boxLine(sb wire.Sandbox) string {
	return fmt.Sprintf("%s  %s, %s, at %s, created from %s", sb.Name, sb.State, tty.Count(sb.Procs, "process"),
		sb.Head, line(sb.From))
}

func state(st wire.StatusResult) (statusOut, string) {
	d := &detail{User: tty.Clean(st.Sandbox.User), Net: st.Sandbox.Net, Snapshots: st.Snapshots, Branches: st.Branches,
		Dirty: st.Dirty,
		Bytes: st.Disk.Own + st.Disk.Live, Walls: []string{}, Notices: clean(st.Notices)}
	for _, w := range st.Enforced {
		text := w.Name + ": " + w.State
		if w.Detail != "" {
			text += " (" + line(w.Detail) + ")"
		}
		d.Walls = append(d.Walls, text)
	}
	text := fmt.Sprintf("%s\nuser %s, network %s\n%s, %s used by it", boxLine(st.Sandbox), d.User, d.Net,
		tty.Count(d.Snapshots, "snapshot"), size(d.Bytes))
	if d.Dirty {
		text += "; something has changed since the last one"
	}
	if len(d.Walls) > 0 {
		text += "\nprotections: " + strings.Join(d.Walls, ", ")
	}
	for _, n := range d.Notices {
		text += "\nnotice: " + n
	}
	return statusOut{Sandboxes: []box{newBox(st.Sandbox)}, Detail: d}, text
}
