package cli

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// every has the flags --all and --filter of commands that take names of sandboxes.
type every struct {
	all    bool
	filter choosing
	ids    map[string]string // IDs of the chosen sandboxes, by name
}

// flags adds --all, whose usage describes its effect, and --filter.
func (e *every) flags(a *app, cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVar(&e.all, "all", false, usage)
	e.filter.flag(a, cmd, "") // no shorthand: -f is --force
}

// args requires names, or --all without names.
func (e *every) args(cmd *cobra.Command, args []string) error {
	switch {
	case e.all && len(args) > 0:
		return usagef("--all does not go with a name: %q", args[0])
	case e.all:
		return nil
	case len(e.filter) > 0:
		return &usageError{msg: "--filter requires --all", hint: "as in: coppice " + spelled(cmd) + " --all --filter " +
			e.filter[0]}
	}
	return between(1, -1, "the name of a sandbox")(cmd, args)
}

// names returns args, or with --all the names of the chosen sandboxes.
func (e *every) names(
	ctx context.Context, a *app, args []string, chosen func(wire.Sandbox) bool,
) ([]string, error) {
	if !e.all {
		return args, nil
	}
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	list, err := e.filter.list(ctx, c)
	if err != nil {
		return nil, err
	}
	names := []string{}
	e.ids = map[string]string{}
	for _, sb := range list {
		if chosen(sb) {
			names = append(names, sb.Name)
			e.ids[sb.Name] = sb.ID
		}
	}
	return names, nil
}

// ref returns the reference to a sandbox of names for the daemon. With --all it is the ID, since another sandbox may
// have the name by then.
func (e *every) ref(name string) string { return cmp.Or(e.ids[name], name) }

// confirmed asks at the terminal whether to remove all of names. Without a terminal it fails.
func (a *app) confirmed(names []string) error {
	if !tty.IsTerminal(a.stdin) {
		return &usageError{msg: "rm --all requires --force without a terminal", hint: "as in: coppice rm --all --force"}
	}
	fmt.Fprintf(a.stderr, "Remove %s with their history: %s? [y/N] ", tty.Count(len(names), "sandbox"),
		tty.Clean(strings.Join(names, ", ")))
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil && answer == "" {
		fmt.Fprintln(a.stderr)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fault.New(fault.Denied, "nothing was removed")
}
