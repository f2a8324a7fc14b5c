package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/inside"
	"github.com/coppice-dev/coppice/internal/mcpapi"
	"github.com/coppice-dev/coppice/internal/tty"
)

const insideLong = `This is a Coppice sandbox. Its root file system has a history: changes become
snapshots automatically. These commands use the history of this sandbox, as far
as its policy permits ("coppice create --self").

A REF is an ID, a unique prefix of one, a tag, HEAD, HEAD~2, or @{5m} (the state
five minutes ago).

To use a separate store in the sandbox instead, set COPPICE_HOME, or COPPICE_HOST
to use another daemon.`

// socketInside returns the sandbox's own socket if this process is in a sandbox and neither the environment nor args
// chooses a store or a daemon.
func (a *app) socketInside(args []string) string {
	if slices.ContainsFunc(args, func(s string) bool { return s == "--home" || strings.HasPrefix(s, "--home=") }) {
		return ""
	}
	return inside.Socket(a.getenv)
}

// insideRoot builds the tree of commands for a process in a sandbox.
func (a *app) insideRoot(c *inside.Client) *cobra.Command {
	cmd := a.bare("Use the history of this sandbox", insideLong, `  coppice log
  coppice snapshot create -m "before the upgrade"
  coppice trial "make test"
  coppice rewind HEAD~1`)
	a.assemble(cmd,
		a.insideLog(c), a.insideDiff(c), a.insideRewind(c), a.insideSnapshot(c), a.insideTrial(c), a.insideMCP(c))
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return &usageError{
			msg:  fmt.Sprintf("unknown command %q: this is a sandbox, whose own history is accessible", args[0]),
			hint: "the commands are log, diff, rewind, snapshot, trial and mcp; to use a separate store here, set COPPICE_HOME"}
	}
	return cmd
}

func (a *app) insideLog(c *inside.Client) *cobra.Command {
	var most int
	cmd := &cobra.Command{
		Use: "log [flags]", Short: "List the snapshots of this sandbox",
		Example: "  coppice log -n 20",
		RunE: func(cmd *cobra.Command, _ []string) error {
			res, err := c.Log(cmd.Context())
			if err != nil {
				return err
			}
			if most > 0 && len(res.Nodes) > most {
				res.Nodes = res.Nodes[:most]
			}
			return a.print(res, func(w io.Writer) error { return a.list(w, res.Nodes) })
		},
	}
	cmd.Flags().IntVarP(&most, "max-count", "n", 0, "show the newest `N` only")
	return cmd
}

func (a *app) insideDiff(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "diff [A [B]] [-- PATH...] [flags]", Short: "Show changes between two states",
		Long: `Show the paths that differ between snapshot A (default: HEAD) and snapshot B
(default: the live state): + added, - removed, M modified. For the contents of an
old file: coppice trial --at A "cat FILE".`,
		Example: `  coppice diff
  coppice diff HEAD~1 HEAD -- etc/passwd`,
		Args: between(0, -1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := wire.DiffRequest{A: "HEAD"}
			refs := args
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				refs, req.Paths = args[:n], args[n:]
			}
			switch len(refs) {
			case 0:
			case 1:
				req.A = refs[0]
			case 2:
				req.A, req.B = refs[0], refs[1]
			default:
				return &usageError{msg: fmt.Sprintf("diff takes only two states, got %q", refs[2]),
					hint: "put paths after --"}
			}
			res, err := c.Diff(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				if err := changes(w, a.palette(), res.Changes); err != nil || !res.Truncated {
					return err
				}
				return a.cutOff(w, len(res.Changes), "", req.A, req.B)
			})
		},
	}
}

func (a *app) insideRewind(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "rewind REF", Aliases: []string{"checkout"}, Short: "Rewind this sandbox to a snapshot",
		Long: `Rewind the root file system to a snapshot, in place: all processes continue, and
so does this session. The current state is captured first, so nothing is lost.`,
		Example: "  coppice rewind HEAD~1",
		Args:    between(1, 1, "a REF"),
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := c.Checkout(cmd.Context(), wire.CheckoutRequest{Node: args[0], InPlace: true})
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
}

func (a *app) insideSnapshot(c *inside.Client) *cobra.Command {
	return group(&cobra.Command{
		Use: "snapshot", Short: "Show, take, mark and tag snapshots of this sandbox",
		Example: `  coppice snapshot create -m "before the upgrade"`,
	}, a.insideHead(c), a.insideShow(c), a.insideBranches(c), a.insideCreate(c), a.insideMark(c), a.insideTag(c))
}

func (a *app) insideHead(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "head", Short: "Print the current snapshot", Example: "  good=$(coppice snapshot head)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			res, err := c.Head(cmd.Context())
			if err != nil {
				return err
			}
			return a.printID(res, res.Head)
		},
	}
}

func (a *app) insideShow(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "show [REF]", Short: "Show a snapshot and its changes",
		Example: "  coppice snapshot show HEAD~1", Args: between(0, 1, "a REF"),
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := c.Show(cmd.Context(), strings.Join(append(args, "HEAD")[:1], ""))
			if err != nil {
				return err
			}
			return a.printSnapshot(res, "")
		},
	}
}

func (a *app) insideBranches(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "branches", Short: "List branches", Example: "  coppice snapshot branches",
		RunE: func(cmd *cobra.Command, _ []string) error {
			res, err := c.Branches(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error { return a.list(w, res.Nodes) })
		},
	}
}

func (a *app) insideCreate(c *inside.Client) *cobra.Command {
	var msg string
	cmd := &cobra.Command{
		Use: "create -m MSG", Short: "Take a snapshot of the current state",
		Example: `  coppice snapshot create -m "before the upgrade"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if msg == "" {
				return &usageError{msg: "snapshot create requires a message",
					hint: `as in: coppice snapshot create -m "what this is"`}
			}
			res, err := c.Commit(cmd.Context(), msg)
			if err != nil {
				return err
			}
			a.tookSnapshot(res)
			return a.printID(res, res.Node)
		},
	}
	cmd.Flags().StringVarP(&msg, "message", "m", "", "message `MSG` of the snapshot")
	return cmd
}

func (a *app) insideMark(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "mark [begin|end] MESSAGE", Short: "Mark the activity of this sandbox with a message",
		Long: `Take a snapshot of the current state with a message, and print its ID. Automatic
snapshots between "begin" and "end" have the message.`,
		Example: `  coppice snapshot mark "tests pass"
  coppice snapshot mark begin "upgrade the compiler"
  coppice snapshot mark end`,
		Args: between(1, 2, "begin or end, and a message"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := markRequest(args, "coppice snapshot mark")
			if err != nil {
				return err
			}
			res, err := c.Mark(cmd.Context(), req)
			if err != nil {
				return err
			}
			a.tookSnapshot(res)
			return a.printID(res, res.Node)
		},
	}
}

func (a *app) insideTag(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "tag [TAG [REF]]", Short: "List or create tags",
		Long: `Without TAG, list tags. With TAG, tag snapshot REF (default: HEAD) and print its
ID; an existing tag is moved.`,
		Example: "  coppice snapshot tag good", Args: between(0, 2, "a tag and a REF"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				res, err := c.Tags(cmd.Context())
				if err != nil {
					return err
				}
				return a.printTags(res)
			}
			req := wire.TagRequest{Name: args[0], Ref: "HEAD"}
			if len(args) == 2 {
				req.Ref = args[1]
			}
			res, err := c.SetTag(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.printID(res, res.Node)
		},
	}
}

func (a *app) insideTrial(c *inside.Client) *cobra.Command {
	var req wire.TrialRequest
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "trial CMD [flags]", Short: "Run a shell command in a temporary fork of this sandbox",
		Long: `Run a shell command in a fork of this sandbox, print the end of its output, and
remove the fork. The files of this sandbox do not change, and directories of the
host are read-only in the fork. The fork has the network rules of this sandbox:
what the command sends is not undone. No process of this sandbox runs in it.

The trial ends with this command, and when the sandbox is paused, stopped or
rewound, or its network rules change. A sandbox runs one trial at a time. Exits
with the exit code of the command; 124 means that it timed out, and 125 that it
could not be run.`,
		Example:     `  coppice trial "make clean && make test"`,
		Args:        between(1, 1, "a shell command"),
		Annotations: map[string]string{ownCodes: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usagef("invalid --timeout %s: must be positive", limit)
			}
			req.Cmd, req.TimeoutMS = args[0], limit.Milliseconds()
			res, err := c.Trial(cmd.Context(), req)
			if err != nil {
				return err
			}
			if err := a.print(res, func(w io.Writer) error {
				_, err := fmt.Fprintln(tty.Cleaner(w), strings.TrimRight(res.Tail, "\n"))
				return err
			}); err != nil || res.Exit == 0 {
				return err
			}
			return &exitCode{code: res.Exit}
		},
	}
	cmd.Flags().StringVar(&req.At, "at", "", "fork snapshot `REF` instead of the current state")
	cmd.Flags().DurationVar(&limit, "timeout", 0, "stop the command after `TIME`; default and maximum: 10m")
	return cmd
}

func (a *app) insideMCP(c *inside.Client) *cobra.Command {
	return &cobra.Command{
		Use: "mcp", Short: "Serve the history of this sandbox as MCP tools",
		Long: `Serve the Model Context Protocol on stdin and stdout until stdin is closed, for
an agent in the sandbox: it can inspect the history, take and tag snapshots, try
commands in a fork, and rewind the sandbox while its session continues. The tools
are head, log, branches, show, diff, checkout, commit, mark, tag and trial.

A typical client configuration:

  {"mcpServers": {"coppice": {"command": "coppice", "args": ["mcp"]}}}`,
		Example:     "  claude mcp add coppice -- coppice mcp",
		Annotations: map[string]string{exits: mcpCodes},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			log := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			return mcpapi.Serve(ctx, mcpapi.Options{Self: c, Version: a.version, Log: log}, a.stdin, a.stdout)
		},
	}
}
