package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Annotations of commands.
const (
	exits    = "exits"     // text of the section "Exit codes" in the help
	ownCodes = "own-codes" // set if every error of Coppice exits with 125
)

// Groups of commands in the help.
const (
	groupBox     = "box"
	groupRun     = "run"
	groupHistory = "history"
	groupAccess  = "access"
	groupOthers  = "others"
)

const rootLong = `Coppice runs AI agents and other programs in sandboxes that can be rewound,
forked and audited.

A sandbox is a root file system with a history. Each command that changes it
takes a snapshot: "coppice log" lists snapshots, "coppice rewind" brings the
sandbox to one, and "coppice fork" creates sandboxes from one.

A REF is an ID, a unique prefix of one, a tag, HEAD, HEAD~2, or @{5m} (the state
five minutes ago).

Environment:
  COPPICE_HOME    data directory (default: $XDG_DATA_HOME/coppice;
                  /var/lib/coppice for root)
  COPPICE_SOCKET  socket of the daemon, instead of the one in the data directory
  COPPICE_HOST    daemon to use over TCP: https://HOST:PORT
  COPPICE_TOKEN   token for COPPICE_HOST; see "coppice help token"
  COPPICE_CA      file of CA certificates to trust for COPPICE_HOST
  COPPICE_IDLE    idle time after which an automatically started daemon exits
                  (default: 5m; 0: never)
  COPPICE_EXEC_PATH
                  directory of coppice-init and the other helper programs, if they
                  are not built in (default: the directory of coppice)
  NO_COLOR        if set, disable colors

Variables that configure "coppice serve" are listed in "coppice help serve".`

// root builds the command tree.
func (a *app) root() *cobra.Command {
	cmd := a.bare("Sandboxes that can be rewound, forked and audited", rootLong, `  coppice create box
  coppice exec box -- sh -c 'rm -rf ~/*'
  coppice log box
  coppice rewind box HEAD~1`)
	cmd.PersistentFlags().StringVar(&a.homeFlag, "home", "", "use `DIR` instead of COPPICE_HOME")
	cmd.AddGroup(
		&cobra.Group{ID: groupBox, Title: "Sandboxes:"},
		&cobra.Group{ID: groupRun, Title: "Commands:"},
		&cobra.Group{ID: groupHistory, Title: "History:"},
		&cobra.Group{ID: groupAccess, Title: "Access:"},
		&cobra.Group{ID: groupOthers, Title: "Repositories, agents and the daemon:"},
	)
	cmd.SetHelpCommandGroupID(groupOthers)
	return a.assemble(cmd,
		a.create(), a.run(), a.fork(), a.ls(), a.status(), a.start(), a.stop(), a.rm(), a.update(), a.cp(),
		a.exec(), a.shell(), a.attach(), a.process(), a.tournament(),
		a.log(), a.diff(), a.rewind(), a.undo(), a.redo(), a.snapshot(),
		a.net(), a.policy(), a.secret(), a.grant(), a.grants(), a.revoke(), a.ledger(), a.token(),
		a.git(),
		a.mcp(), a.hook(),
		a.serve(), a.system(),
	)
}

// bare returns a root command without subcommands, with the flags that every command has.
func (a *app) bare(short, long, example string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "coppice", Short: short, Long: long, Example: example, Version: a.version,
		SilenceErrors: true, SilenceUsage: true, Annotations: map[string]string{exits: usual},
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetOut(a.out)
	cmd.SetErr(a.stderr)
	cmd.SetUsageTemplate(helpTemplate)
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_, _ = io.WriteString(a.out, helpPage(cmd, wholePage(cmd))) // a failed write is an error of the flush
	})
	cmd.SetVersionTemplate("coppice {{.Version}}\n")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%s", err)
	})
	f := cmd.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print the result as JSON")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print only results and errors")
	help := &cobra.Command{
		Use: "help [COMMAND]", Short: "Show help for a command",
		Annotations: map[string]string{exits: usual}, Example: "  coppice help exec",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == "exit-codes" {
				_, err := io.WriteString(a.out, exitCodesHelp)
				return err
			}
			c, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("unknown command %q", strings.Join(args, " "))
			}
			c.InitDefaultHelpFlag()
			_, err = io.WriteString(a.out, wholePage(c))
			return err
		},
	}
	cmd.SetHelpCommand(help)
	return cmd
}

// assemble adds the subcommands of a root, and gives all commands what they have in common.
func (a *app) assemble(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	group(cmd, subs...)
	cmd.DisableFlagsInUseLine = true
	for _, c := range family(cmd)[1:] {
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

// between checks the number of arguments; most < 0 means no limit. what describes them.
func between(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s requires %s", spelled(cmd), what)
		case most == 0 && len(args) > 0:
			return usagef("%s takes no arguments, got %q", spelled(cmd), args[0])
		case most > 0 && len(args) > most:
			return usagef("%s takes only %s, got %q", spelled(cmd), what, args[most])
		}
		return nil
	}
}
