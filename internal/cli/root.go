package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/daemon"
)

// Annotations of commands.
const (
	exits    = "exits"     // the text of "Exit codes" in the help
	ownCodes = "own-codes" // set where every error of ours is 125
)

// The groups of the help.
const (
	groupBox     = "box"
	groupRun     = "run"
	groupHistory = "history"
	groupStore   = "store"
)

const usual = `  0  done
  1  it failed; the message says why, and the hint what to do
  2  the command line is wrong`

const rootLong = `Coppice gives a program a computer that can be rewound and forked.

A sandbox is a root file system with a history. Every command that changes a file
in it becomes a snapshot; "coppice log" shows them, "coppice rewind" goes
back to any of them, "coppice fork" makes more sandboxes from one.

Where a REF is wanted, an id, the beginning of one, a tag, HEAD, HEAD~2 or
@{5m} (the state five minutes ago) will do.

Environment:
  COPPICE_HOME    holds everything (default: $XDG_DATA_HOME/coppice, and
                  /var/lib/coppice for root)
  COPPICE_SOCKET  a daemon to talk to instead of the home's own
  COPPICE_HOST    a daemon to talk to over TCP: https://HOST:PORT
  COPPICE_TOKEN   the token for it; see "coppice help token"
  COPPICE_CA      a file of the certificates to trust there
  COPPICE_IDLE    how long a daemon that was started by itself waits for work
                  (default: 5m; 0 is for ever)
  COPPICE_EXEC_PATH
                  the directory of coppice-init, coppice-gate and coppice-sentry,
                  where they are not built into coppice (default: beside it)
  NO_COLOR        set: no colours`

const helpTemplate = `{{with or .Long .Short}}{{. | trimTrailingWhitespaces}}

{{end}}{{.UsageString}}`

const usageTemplate = `Usage:
{{if .Runnable}}  {{.UseLine}}
{{end}}{{if .HasAvailableSubCommands}}  {{.CommandPath}} COMMAND
{{end}}{{if .Aliases}}
Aliases:
  {{.NameAndAliases}}
{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{range $g := .Groups}}
{{.Title}}
{{range $cmds}}{{if and (eq .GroupID $g.ID) .IsAvailableCommand}}  {{rpad .Name 12}}{{.Short}}
{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}
Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}{{if .HasAvailableInheritedFlags}}
Flags of every command:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}{{with index .Annotations "exits"}}
Exit codes:
{{.}}
{{end}}{{if .HasExample}}
Example:
{{.Example}}
{{end}}`

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "coppice",
		Short:         "A computer that can be rewound and forked",
		Long:          rootLong,
		Version:       a.version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{exits: usual},
		Example: `  coppice create box
  coppice exec box -- sh -c 'rm -rf ~/*'
  coppice log box
  coppice rewind box HEAD~1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			e := &usageError{msg: fmt.Sprintf("there is no command %q", args[0])}
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				e.hint = "did you mean: coppice " + strings.Join(s, ", coppice ")
			}
			return e
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SuggestionsMinimumDistance = 2
	cmd.SetOut(a.out)
	cmd.SetErr(a.stderr)
	cmd.SetHelpTemplate(helpTemplate)
	cmd.SetUsageTemplate(usageTemplate)
	cmd.SetVersionTemplate("coppice {{.Version}}\n")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%s", err)
	})
	f := cmd.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "write the result as JSON")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "say nothing but results and errors")
	f.StringVar(&a.homeFlag, "home", "", "the `DIR` that holds everything, instead of COPPICE_HOME")
	cmd.AddGroup(
		&cobra.Group{ID: groupBox, Title: "Sandboxes:"},
		&cobra.Group{ID: groupRun, Title: "Commands in them:"},
		&cobra.Group{ID: groupHistory, Title: "Their history:"},
		&cobra.Group{ID: groupStore, Title: "The store and the program:"},
	)
	help := &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command", GroupID: groupStore,
		Annotations: map[string]string{exits: usual}, Example: "  coppice help exec",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("there is no command %q", strings.Join(args, " "))
			}
			return c.Help()
		},
	}
	cmd.SetHelpCommand(help)
	cmd.AddCommand(
		a.create(), a.fork(), a.ls(), a.status(), a.update(), a.cp(), a.start(), a.stop(), a.pause(), a.resume(), a.rm(),
		a.run(), a.attach(), a.exec(), a.shell(), a.tournament(), a.ps(), a.kill(), a.port(), a.net(), a.why(), a.allow(),
		a.approve(), a.deny(), a.socket(), a.mcp(),
		a.log(), a.ledger(), a.inspect(), a.compare(), a.propose(), a.rebase(), a.pr(), a.watch(), a.head(), a.branches(),
		a.show(), a.diff(), a.apply(), a.commit(), a.mark(), a.hook(), a.checkout(), a.undo(), a.redo(), a.tag(), a.delete(),
		a.push(), a.pull(),
		a.gc(), a.verify(), a.events(), a.probe(), a.policy(), a.serve(), a.token(), a.versionCmd(), a.completion(), a.man(),
		a.uninstall(),
	)
	for _, c := range cmd.Commands() {
		c.Flags().SortFlags = false
		c.DisableFlagsInUseLine = true
		if c.Args == nil {
			c.Args = between(0, 0, "")
		}
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		if c.Annotations[exits] == "" {
			c.Annotations[exits] = usual
		}
	}
	return cmd
}

// between checks the number of arguments; most < 0 is any. what says what they
// are.
func between(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s needs %s", cmd.Name(), what)
		case most == 0 && len(args) > 0:
			return usagef("%s takes no arguments: %q", cmd.Name(), args[0])
		case most > 0 && len(args) > most:
			return usagef("%s takes %s and no more: %q", cmd.Name(), what, args[most])
		}
		return nil
	}
}

// peek gives a client that starts no daemon.
func (a *app) peek() (*client.Client, error) {
	opt, remote, err := client.Remote(a.getenv)
	if err == nil && !remote {
		var s daemon.Starter
		s, err = a.starter()
		opt = client.Options{Dial: s.Dial}
	}
	if err != nil {
		return nil, err
	}
	return client.New(opt), nil
}

// complete gives what list finds by a client that starts no daemon, in a second at the
// most; a shell is told nothing of what goes wrong.
func (a *app) complete(
	cmd *cobra.Command, list func(context.Context, *client.Client) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	c, err := a.peek()
	if err != nil {
		return nil, none
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	words, err := list(ctx, c)
	if err != nil {
		return nil, none
	}
	return words, none
}

// names completes the names of sandboxes; it starts no daemon.
func (a *app) names(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd, func(ctx context.Context, c *client.Client) (names []string, _ error) {
			list, err := c.List(ctx)
			for _, sb := range list {
				names = append(names, sb.Name)
			}
			return names, err
		})
	}
}

// nameThenRef completes a sandbox, and then its tags and snapshots.
func (a *app) nameThenRef(refs int) cobra.CompletionFunc {
	names := a.names(1)
	return func(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return names(cmd, args, part)
		}
		if len(args) > refs {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
			res, err := c.Log(ctx, args[0])
			refs := []string{"HEAD"}
			for _, n := range res.Nodes {
				refs = append(refs, n.Tags...)
				refs = append(refs, cobra.CompletionWithDesc(n.ID, oneLine(n.Message, 60)))
			}
			return refs, err
		})
	}
}
