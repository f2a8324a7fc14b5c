package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
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

A sandbox is a root file system with a history. Every command that is run in it
becomes a snapshot by itself; "coppice log" shows them, "coppice checkout" goes
back to any of them, "coppice fork" makes more sandboxes from one.

Where a REF is wanted, an id, the beginning of one, a tag, HEAD, HEAD~2 or
@{5m} (the state five minutes ago) will do.

Environment:
  COPPICE_HOME    holds everything (default: $XDG_DATA_HOME/coppice, and
                  /var/lib/coppice for root)
  COPPICE_SOCKET  a daemon to talk to instead of the home's own
  COPPICE_IDLE    how long a daemon that was started by itself waits for work
                  (default: 5m; 0 is for ever)
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
  coppice exec box -- rm -rf /usr/lib/git-core
  coppice log box
  coppice checkout box HEAD~1`,
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
		if cmd.Annotations[ownCodes] != "" && cmd.Name() == "exec" {
			return &usageError{msg: err.Error(), hint: `put "--" before the command: coppice exec NAME -- CMD...`}
		}
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
		a.create(), a.fork(), a.ls(), a.status(), a.stop(), a.rm(),
		a.exec(), a.shell(),
		a.log(), a.head(), a.branches(), a.show(), a.diff(), a.commit(), a.checkout(), a.undo(), a.redo(), a.tag(), a.delete(),
		a.gc(), a.verify(), a.probe(), a.serve(), a.versionCmd(), a.completion(), a.man(),
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

// names completes the names of sandboxes; it starts no daemon.
func (a *app) names(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if most > 0 && len(args) >= most {
			return nil, none
		}
		s, err := a.starter()
		if err != nil {
			return nil, none
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		c := client.New(client.Options{Dial: s.Dial})
		defer c.Close()
		list, err := c.List(ctx)
		if err != nil {
			return nil, none
		}
		var names []string
		for _, sb := range list {
			names = append(names, sb.Name)
		}
		return names, none
	}
}

// nameThenRef completes a sandbox, and then its tags and snapshots.
func (a *app) nameThenRef(refs int) cobra.CompletionFunc {
	names := a.names(1)
	return func(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if len(args) == 0 {
			return names(cmd, args, part)
		}
		s, err := a.starter()
		if err != nil || len(args) > refs {
			return nil, none
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		c := client.New(client.Options{Dial: s.Dial})
		defer c.Close()
		res, err := c.Log(ctx, args[0])
		if err != nil {
			return nil, none
		}
		out := []string{"HEAD"}
		for _, n := range res.Nodes {
			out = append(out, n.Tags...)
			out = append(out, cobra.CompletionWithDesc(n.ID, oneLine(n.Message, 60)))
		}
		return out, none
	}
}
