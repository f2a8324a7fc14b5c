package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/daemon"
	"github.com/coppice-dev/coppice/internal/filter"
	"github.com/coppice-dev/coppice/internal/label"
)

// peek returns a client that does not start the daemon.
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

// complete returns the completions that list finds within a second, through a client that does not start the daemon.
// It reports no errors to the shell.
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
	return slices.DeleteFunc(words, func(w string) bool { return !plainWord(w) }), none
}

// plainWord reports whether a shell reads a completion as one literal word. Shells insert the common prefix of
// several completions unquoted, and a label or a tag may have been chosen inside a sandbox. A description, after a
// tab, is only displayed.
func plainWord(completion string) bool {
	word, _, _ := strings.Cut(completion, "\t")
	for _, c := range []byte(word) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && !strings.ContainsRune("._-/:=@+,%", rune(c)) {
			return false
		}
	}
	return word != "" && word[0] != '-'
}

// fixed completes fixed values.
func fixed(values ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
}

// names completes the names of sandboxes; it does not start the daemon.
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
		switch {
		case len(args) == 0:
			return names(cmd, args, part)
		case len(args) > refs:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.refs(cmd, args[0])
	}
}

// nameThenTag completes a sandbox, then one of its tags, and then a snapshot for the tag to name.
func (a *app) nameThenTag(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.nameThenRef(2)(cmd, args, part)
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		tags, err := c.Tags(ctx, args[0])
		return slices.Sorted(maps.Keys(tags)), err
	})
}

// refOf completes the flag of a command whose value is a snapshot of the sandbox that the first argument names,
// which may be followed by ":" and a path.
func (a *app) refOf(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	name, _, _ := strings.Cut(args[0], ":")
	return a.refs(cmd, name)
}

// refs returns the tags and snapshots of a sandbox.
func (a *app) refs(cmd *cobra.Command, name string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Log(ctx, name)
		refs := []string{"HEAD"}
		for _, n := range res.Nodes {
			refs = append(refs, n.Tags...)
			refs = append(refs, cobra.CompletionWithDesc(n.ID, oneLine(n.Message, 60)))
		}
		return refs, err
	})
}

// sources completes the flag --from: a kind of source, a sandbox, or a file.
func (a *app) sources(cmd *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
	names, _ := a.names(0)(cmd, nil, part)
	return append([]string{"host", "host-copy"}, names...), cobra.ShellCompDirectiveDefault
}

// filters completes a term of --filter: its key, and then a value that a sandbox has or can have.
func (a *app) filters(cmd *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
	key, _, begun := strings.Cut(part, "=")
	if !begun {
		keys := filter.Keys()
		for i := range keys {
			keys[i] += "="
		}
		return keys, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) ([]string, error) {
		values := filter.Values(key)
		var err error
		if values == nil {
			var list []wire.Sandbox
			list, err = c.List(ctx)
			values = valuesOf(key, list)
		}
		for i := range values {
			values[i] = key + "=" + values[i]
		}
		return values, err
	})
}

// valuesOf lists, without repetition, the values of a filter key that sandboxes have.
func valuesOf(key string, list []wire.Sandbox) (values []string) {
	for i := range list {
		switch sb := &list[i]; key {
		case filter.KeyName:
			values = append(values, sb.Name)
		case filter.KeyOrigin:
			if from := filter.Origin(sb); from != "" {
				values = append(values, from)
			}
		case filter.KeyLabel:
			for _, l := range label.List(sb.Labels) {
				name, _, _ := strings.Cut(l, "=")
				values = append(values, name, l)
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// labelKeys completes the keys of the labels of the sandbox that the first argument names.
func (a *app) labelKeys(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (keys []string, _ error) {
		list, err := c.List(ctx)
		for i := range list {
			if len(args) == 0 || list[i].Name == args[0] {
				keys = slices.AppendSeq(keys, maps.Keys(list[i].Labels))
			}
		}
		slices.Sort(keys)
		return slices.Compact(keys), err
	})
}
