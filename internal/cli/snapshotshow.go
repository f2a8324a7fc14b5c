package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) snapshotShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME [REF]", Short: "Show a snapshot and its changes",
		Long: `Show a snapshot (default: HEAD) and its changes against its parent: + added,
- removed, M modified. For a pulled proposal REMOTE/NAME, show its report.`,
		Example:           "  coppice snapshot show box HEAD~1",
		Args:              between(1, 2, "a sandbox and a REF"),
		ValidArgsFunction: a.nameThenRef(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && isPulled(args[0]) {
				return a.showPulled(cmd, args[0])
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			ref := "HEAD"
			if len(args) > 1 {
				ref = args[1]
			}
			res, err := c.Show(cmd.Context(), args[0], ref)
			if err != nil {
				return err
			}
			return a.printSnapshot(res, args[0])
		},
	}
}

// printSnapshot prints a snapshot and its changes. name is that of the sandbox in commands; "" inside it.
func (a *app) printSnapshot(res wire.ShowResult, name string) error {
	return a.print(res, func(w io.Writer) error {
		p := a.palette()
		head := "snapshot " + p.Yellow(tty.Clean(res.ID))
		if m := marks(p, res.Snapshot); m != "" {
			head += "  " + m
		}
		lines := []string{head}
		if res.Parent != "" {
			lines = append(lines, "parent     "+tty.Clean(res.Parent))
		}
		lines = append(lines, "made       "+res.Created.Local().Format(time.RFC3339)+" ("+tty.Ago(res.Created, a.now())+")",
			"by         "+by(res.Cause, res.Exit, res.Sandbox))
		finalized := "not yet"
		if res.Finalized {
			finalized = "yes"
		}
		lines = append(lines, "finalized  "+finalized)
		if m := res.Memory; m != nil {
			lines = append(lines,
				fmt.Sprintf("memory     %s, %s of it new: image %.12s", tty.Bytes(m.Size), tty.Bytes(m.Added), tty.Clean(m.Image)))
		}
		lines = append(lines, "")
		for _, l := range strings.Split(strings.TrimRight(res.Message, "\n"), "\n") {
			lines = append(lines, "    "+tty.Clean(l))
		}
		lines = append(lines, "")
		if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
			return err
		}
		if err := changes(w, p, res.Changes); err != nil || !res.Truncated {
			return err
		}
		return a.cutOff(w, len(res.Changes), name, res.Parent, res.ID)
	})
}

func by(cause string, exit *int, sandbox string) string {
	s := tty.Clean(cause)
	if exit != nil {
		s += fmt.Sprintf(", exit code %d", *exit)
	}
	if sandbox != "" {
		s += ", in " + tty.Clean(sandbox)
	}
	return s
}
