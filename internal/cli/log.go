package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) log() *cobra.Command {
	var most int
	cmd := &cobra.Command{
		Use: "log NAME [flags]", Short: "Show the history as a tree", GroupID: groupHistory,
		Long: `Show the history of a sandbox as a tree, newest first: the snapshot's id, what
made it, where HEAD and the tags are, and how much it changed.`,
		Example:           "  coppice log box -n 20",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Log(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if most > 0 && len(res.Nodes) > most {
				res.Nodes = res.Nodes[:most]
			}
			return a.print(res, func(w io.Writer) error { return a.tree(w, res) })
		},
	}
	cmd.Flags().IntVarP(&most, "max-count", "n", 0, "show the newest `N` only")
	return cmd
}

// tree writes the drawn history, and then the nodes that are not drawn. It stops at a node that
// is not in res.Nodes.
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
		t.Row("the branches of older snapshots are too many to be drawn:")
		for _, n := range res.Nodes[len(res.Nodes)-left:] {
			a.line(&t, "* ", n)
		}
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

func (a *app) branches() *cobra.Command {
	return &cobra.Command{
		Use: "branches NAME", Short: "List the ends of the history", GroupID: groupHistory,
		Long:              "List the snapshots that no other one descends from, newest first.",
		Example:           "  coppice snapshot branches box",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Branches(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				var t tty.Table
				for _, n := range res.Nodes {
					a.line(&t, "", n)
				}
				return t.Write(w)
			})
		},
	}
}

func (a *app) head() *cobra.Command {
	return &cobra.Command{
		Use: "head NAME", Short: "Print the snapshot that a sandbox is at", GroupID: groupHistory,
		Example:           "  good=$(coppice snapshot head box)",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Head(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, tty.Clean(res.Head))
				return err
			})
		},
	}
}
