package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// group adds subs to cmd, which does nothing itself: without a subcommand it shows its help, and an unknown
// subcommand is a usage error.
func group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Use += " COMMAND"
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknown(cmd, args)
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	if shows(cmd.Name(), "") != nil { // any word may be a sandbox, and is rarely a typo
		cmd.SuggestionsMinimumDistance = 1
	}
	cmd.AddCommand(subs...)
	return cmd
}

// unknown returns the error for args that name no subcommand of cmd, with the commands that were probably meant.
func unknown(cmd *cobra.Command, args []string) error {
	at := spelled(cmd)
	e := &usageError{msg: fmt.Sprintf("unknown command %q", strings.TrimSpace(at+" "+args[0]))}
	meant := guesses(at, args[0])
	if len(meant) == 0 {
		for _, s := range cmd.SuggestionsFor(args[0]) {
			meant = append(meant, strings.TrimSpace(at+" "+s))
		}
	}
	if len(meant) == 0 {
		meant = shows(at, args[0])
	}
	if len(meant) > 0 {
		e.hint = "did you mean: coppice " + strings.Join(meant, ", coppice ")
	}
	return e
}

// spelled returns the words that follow "coppice" on the command line of cmd.
func spelled(cmd *cobra.Command) string {
	_, rest, _ := strings.Cut(cmd.CommandPath(), " ")
	return rest
}
