package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) log() *cobra.Command {
	var (
		follows bool
		w       watching
	)
	cmd := &cobra.Command{
		Use: "log NAME [flags]", Short: "Show the snapshots of a sandbox as a tree, or follow them", GroupID: groupHistory,
		Long: `Show the snapshots of a sandbox as a tree, newest first: ID, cause, HEAD and
tags, message, and size of the change.

With --follow, show snapshots, commands and moves as they happen, one per
line, until the sandbox is removed.
` + watchLong,
		Example: `  coppice log box -n 20
  coppice log --follow box
  coppice log -f box --json | jq -r 'select(.kind == "snapshot").message'`,
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if follows {
				return a.follow(cmd, args[0], w)
			}
			for _, flag := range []string{"since", "from-start"} {
				if cmd.Flags().Changed(flag) {
					return &usageError{msg: "--" + flag + " requires --follow", hint: "as in: coppice log --follow " + args[0]}
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Log(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if w.most > 0 && len(res.Nodes) > w.most {
				res.Nodes = res.Nodes[:w.most]
			}
			return a.print(res, func(w io.Writer) error { return a.tree(w, res) })
		},
	}
	cmd.Flags().IntVarP(&w.most, "max-count", "n", 0, "show the newest `N` only; with --follow, exit after N events")
	cmd.Flags().BoolVarP(&follows, "follow", "f", false, "show what happens from now on")
	w.position(cmd)
	return cmd
}

// tree writes the drawn history, and then the nodes that are not drawn. It stops
// drawing after the last of res.Nodes.
func (a *app) tree(w io.Writer, res wire.LogResult) error {
	nodes := make(map[string]wire.Snapshot, len(res.Nodes))
	for _, n := range res.Nodes {
		nodes[n.ID] = n
	}
	rows := res.Rows
	if rows == nil {
		for _, n := range res.Nodes {
			rows = append(rows, wire.LogRow{Graph: "*", Node: n.ID})
		}
	}
	var t tty.Table
	left := len(nodes)
	for _, r := range rows {
		if left == 0 {
			break
		}
		graph := tty.Clean(strings.TrimRight(r.Graph, " "))
		if r.Node == "" {
			t.Row(graph)
			continue
		}
		n, ok := nodes[r.Node]
		if !ok {
			continue
		}
		left--
		a.line(&t, graph+" ", n)
	}
	if res.Truncated && left > 0 { // nodes and rows have the same order
		t.Row("too many branches of older snapshots to draw:")
		for _, n := range res.Nodes[len(res.Nodes)-left:] {
			a.line(&t, "* ", n)
		}
	}
	return t.Write(w)
}

// list writes snapshots one per line.
func (a *app) list(w io.Writer, nodes []wire.Snapshot) error {
	var t tty.Table
	for _, n := range nodes {
		a.line(&t, "", n)
	}
	return t.Write(w)
}

// line adds one snapshot to a table.
func (a *app) line(t *tty.Table, graph string, n wire.Snapshot) {
	p := a.palette()
	left := graph + p.Yellow(tty.Clean(n.ID)) + "  " + oneLine(n.Message, 60)
	if m := marks(p, n); m != "" {
		left += "  " + m
	}
	right := tty.Ago(n.Created, a.now())
	if n.Memory != nil {
		right = "with memory, " + right
	}
	if h := how(n); h != "" {
		right = h + ", " + right
	}
	t.Row(left, p.Dim(right))
}
