package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/filter"
	"github.com/coppice-dev/coppice/internal/label"
)

// labelling is the flag --label of commands that create sandboxes.
type labelling []string

func (l *labelling) flag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringArrayVarP((*[]string)(l), "label", "l", nil, usage)
}

// relabelling has the flags that change the labels of a sandbox.
type relabelling struct{ add, remove []string }

func (r *relabelling) flags(a *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&r.add, "label-add", nil, "add or replace a label, `KEY=VALUE`; repeatable")
	f.StringArrayVar(&r.remove, "label-rm", nil, "remove the label `KEY`; repeatable")
	must(cmd.RegisterFlagCompletionFunc("label-add", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("label-rm", a.labelKeys))
}

// fill adds the changes to a request.
func (r *relabelling) fill(req *wire.LifeRequest) (err error) {
	req.RemoveLabels = r.remove
	req.Labels, err = label.Parse(r.add)
	return err
}

// choosing is the flag --filter of commands that list sandboxes.
type choosing []string

// flag adds --filter, with a shorthand or "".
func (c *choosing) flag(a *app, cmd *cobra.Command, shorthand string) {
	cmd.Flags().StringArrayVarP((*[]string)(c), "filter", shorthand, nil,
		"only sandboxes that satisfy `KEY=VALUE`: label, name, state, tier, driver, origin; repeatable")
	must(cmd.RegisterFlagCompletionFunc("filter", a.filters))
}

// list returns the chosen sandboxes. It filters the answer again, since a daemon older than the CLI ignores the
// filters and returns all.
func (c choosing) list(ctx context.Context, from *client.Client) ([]wire.Sandbox, error) {
	chosen, err := filter.Parse(c)
	if err != nil {
		return nil, err
	}
	list, err := from.List(ctx, c...)
	return chosen.Choose(list), err
}
