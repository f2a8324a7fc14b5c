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

// mostForks is how many sandboxes one call makes.
const mostForks = 100

type forkIn struct {
	at
	Node  string   `json:"node,omitempty" jsonschema:"the snapshot that they begin as; default: the present, which is kept as a snapshot first"`
	Names []string `json:"names,omitempty" jsonschema:"what they are to be called; those without a name get one"`
	N     int      `json:"n,omitempty" jsonschema:"how many in all, up to 100; default: as many as names, or 1"`
}

type forkOut struct {
	Sandboxes []box    `json:"sandboxes" jsonschema:"the new sandboxes"`
	Head      string   `json:"head" jsonschema:"the snapshot that the first of them is at"`
	Warnings  []string `json:"warnings" jsonschema:"what is weaker in them than was asked for"`
}

type box struct {
	ID    string `json:"id" jsonschema:"its id"`
	Name  string `json:"name" jsonschema:"its name"`
	Head  string `json:"head" jsonschema:"the snapshot that it is at"`
	State string `json:"state" jsonschema:"live when processes may run in it, else idle; an idle one is started when it is needed"`
	Procs int    `json:"procs" jsonschema:"processes that run in it"`
	From  string `json:"from" jsonschema:"what it was made from"`
}

type detail struct {
	User      string   `json:"user" jsonschema:"who commands run as"`
	Net       string   `json:"net" jsonschema:"off, or host: the network of the host"`
	Snapshots int      `json:"snapshots" jsonschema:"how many snapshots there are"`
	Branches  int      `json:"branches" jsonschema:"how many ends the history has"`
	Dirty     bool     `json:"dirty" jsonschema:"something has changed since the last snapshot, as far as is known"`
	Bytes     int64    `json:"bytes" jsonschema:"bytes on disk that are this sandbox's alone"`
	Walls     []string `json:"walls" jsonschema:"what keeps it apart from the host, as it was really put up"`
	Notices   []string `json:"notices" jsonschema:"what a person should know"`
}

type statusOut struct {
	Sandboxes []box   `json:"sandboxes" jsonschema:"the sandbox that was asked for, or all"`
	Detail    *detail `json:"detail,omitempty" jsonschema:"more of it, where it is one"`
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
		wire.ForkRequest{Names: in.Names, N: max(in.N, len(in.Names), 1), At: in.Node})
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
	return box{ID: sb.ID, Name: sb.Name, Head: sb.Head, State: sb.State, Procs: sb.Procs, From: tty.Clean(sb.From)}
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
		return res, "there is no sandbox; a user can create one: coppice create NAME"
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
	text := fmt.Sprintf("%s\nuser %s, network %s\n%s, %s of its own", boxLine(st.Sandbox), d.User, d.Net,
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
