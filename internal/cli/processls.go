package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) processLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls NAME", Short: "List the processes in a sandbox",
		Long: `List the processes in a sandbox. With --quiet, print only PIDs, one per line.
PIDs are those inside the sandbox, as "kill" and "coppice process kill" take
them. STATE is R (running), S (sleeping), D (waiting for the kernel), T
(stopped) or Z (zombie). CPU is the processor time used, RSS the resident
memory. A stopped sandbox has no processes and is not started.`,
		Example: "  coppice process ls box\n" +
			"  coppice process ls box --json | jq '.processes[] | select(.cpu_ms > 60000)'",
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Processes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if res.More > 0 {
				a.warn([]string{fmt.Sprintf("%d more processes are not shown", res.More)})
			}
			return a.print(res, func(w io.Writer) error {
				if a.quiet {
					for _, p := range res.Processes {
						if _, err := fmt.Fprintln(w, p.PID); err != nil {
							return err
						}
					}
					return nil
				}
				var t tty.Table
				t.Row("PID", "PPID", "STATE", "STARTED", "CPU", "RSS", "COMMAND")
				for _, p := range res.Processes {
					t.Row(strconv.Itoa(p.PID), strconv.Itoa(p.PPID), tty.Clean(p.State), tty.Ago(p.Started, a.now()),
						(time.Duration(p.CPUMS) * time.Millisecond).String(),
						tty.Bytes(p.RSS), commandOf(p))
				}
				return t.Write(w)
			})
		},
	}
}

// commandOf returns the command line of a process, or its name.
func commandOf(p wire.Process) string {
	if len(p.Args) == 0 {
		return "[" + tty.Clean(p.Name) + "]"
	}
	words := make([]string, len(p.Args))
	for i, word := range p.Args {
		if i < len(p.Raw) { // the exact bytes
			word = string(p.Raw[i])
		}
		words[i] = tty.Clean(word)
	}
	line := strings.Join(words, " ")
	if p.Cut {
		line += " ..."
	}
	return tty.Cut(line, 200)
}
