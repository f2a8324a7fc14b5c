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

func (a *app) ps() *cobra.Command {
	return &cobra.Command{
		Use: "ps NAME", Short: "List the processes of a sandbox", GroupID: groupRun,
		Long: `List the processes of a sandbox; with --quiet their numbers only, one a line. The
numbers are those inside, where "kill" and "coppice process kill" take them. The state is a
letter: R runs, S sleeps, D waits for the kernel, T is stopped, Z has ended and
waits for its parent. CPU is the processor time so far, RSS the memory. A sandbox
that is stopped has no processes, and is not started by this.`,
		Example: "  coppice process ls box\n  coppice process ls box --json | jq -r '.processes[] | select(.cpu_ms > 60000).pid'",
		Args:    between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
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

// commandOf is the command line of a process, or what it calls itself.
func commandOf(p wire.Process) string {
	if len(p.Args) == 0 {
		return "[" + tty.Clean(p.Name) + "]"
	}
	words := make([]string, len(p.Args))
	for i, word := range p.Args {
		if i < len(p.Raw) { // as it is, and not as text
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

func (a *app) kill() *cobra.Command {
	var sig wire.ProcessSignal
	cmd := &cobra.Command{
		Use: "kill NAME PID... [flags]", Short: "Signal processes of a sandbox", GroupID: groupRun,
		Long: `Send a signal, SIGTERM unless another one is given, to single processes of a
sandbox; "coppice process ls" lists them, "coppice stop" ends all.`,
		Example: "  coppice process kill box 12\n  coppice process kill box 12 13 -s KILL",
		Args:    between(2, -1, "the name of a sandbox and the numbers of processes"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var pids []int
			for _, word := range args[1:] {
				pid, err := strconv.Atoi(word)
				if err != nil || pid < 1 {
					return &usageError{msg: fmt.Sprintf("%q is no process", word), hint: "list them with: coppice process ls " + args[0]}
				}
				pids = append(pids, pid)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			for _, pid := range pids {
				if err := c.SignalProcess(cmd.Context(), args[0], pid, sig); err != nil {
					return err
				}
			}
			return a.print(map[string]any{"signalled": pids}, func(io.Writer) error { return nil })
		},
	}
	cmd.Flags().StringVarP(&sig.Name, "signal", "s", "TERM", "send signal `SIG`")
	return cmd
}
