package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) grant() *cobra.Command {
	var given granting
	cmd := &cobra.Command{
		Use: "grant NAME GRANT[=SECRET] [flags]", Short: "Let a sandbox use a secret", GroupID: groupAccess,
		Long: `Let requests of a sandbox carry a secret (see "coppice secret") that the sandbox
does not have, and print the placeholder that it has instead: a text of the same
length and form, which authorizes nothing. The gate replaces it by the secret in
HTTPS requests to the hosts of the grant, at its sites alone, and removes the
secret from responses. Commands that start afterwards have the placeholder in
the variables of the grant. A grant of that name is replaced.

The name of the secret is that of the grant unless given. A preset names hosts,
sites and variables of a service, and refuses requests that would create another
credential. The presets are:
` + presetList() + `.

Without a preset, name a host and a site: where the secret is in requests, as
--bearer. --method and --path restrict requests further. The sites --body and
--form require both, since other requests could publish the secret.

An access key of AWS, ID:SECRET or ID:SECRET:TOKEN, stays out of requests: the
gate signs those that a program has signed with the placeholder (Signature
Version 4). The preset aws signs for all services but those that return
credentials; --sigv4 names regions and services.

A secret that is a private key is for git over SSH: the sandbox logs in without
a key, and --path names repositories. The gate accepts a server only with a key
of --host-key, or of your known_hosts.

The sandbox must be able to reach the hosts ("coppice net allow"), in tier
supervised, container or gvisor. If it runs, it must have been started with a
grant, with --grants-later, or with rules about requests: otherwise stop it.`,
		Example: `  coppice grant box github --for 8h --path '/repos/acme/*'
  coppice grant box anthropic=work-key --uses 1000
  coppice grant box corp --host api.example.com --header X-Api-Key --env KEY
  coppice grant box deploy --host git.example.com --path /acme/repo.git
  coppice grant box id --host id.example --body /token --method POST --path /in
  coppice grant box aws --sigv4 'eu-west-1/s3' --sigv4 '*/dynamodb'`,
		Args: between(2, 2, "the name of a sandbox, and a grant"), ValidArgsFunction: a.nameThenGrantable,
		RunE: func(cmd *cobra.Command, args []string) error {
			if given.named(args[1]); cmd.Flags().Changed("for") && given.lasts <= 0 {
				return usagef("invalid --for %s: must be positive", given.lasts)
			}
			if err := a.completeSSH(cmd.Context(), &given); err != nil {
				return err
			}
			spec, gives, err := given.checked(a.now())
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Grant(cmd.Context(), args[0], given.name, spec)
			if err != nil {
				return err
			}
			a.warnUnreachable(cmd.Context(), c, args[0], gives)
			return a.print(res, func(w io.Writer) error {
				a.note("%s", grantNote(res))
				if res.Placeholder == "" {
					return nil
				}
				_, err := fmt.Fprintln(w, tty.Clean(res.Placeholder))
				return err
			})
		},
	}
	f := cmd.Flags()
	given.add(f)
	must(cmd.RegisterFlagCompletionFunc("preset", fixed(grant.PresetNames()...)))
	must(cmd.RegisterFlagCompletionFunc("ask", fixed("never", "first", "each")))
	must(cmd.RegisterFlagCompletionFunc("fork", fixed("none", "reissue")))
	must(cmd.RegisterFlagCompletionFunc("mode", fixed("replace", "require", "add")))
	must(cmd.RegisterFlagCompletionFunc("kind", fixed(kindNames()...)))
	return cmd
}

// presetList returns the presets of grants as text of a help page.
func presetList() string {
	return strings.Join(tty.Wrap(strings.Join(grant.PresetNames(), ", "), 78), "\n")
}

// grantNote describes a new grant.
func grantNote(g wire.Grant) string {
	note := fmt.Sprintf("granted %s: secret %s for %s", tty.Clean(g.Name), tty.Clean(g.Secret),
		tty.Clean(strings.Join(g.Hosts, ", ")))
	if g.Until != nil {
		note += ", until " + g.Until.Local().Format("2006-01-02 15:04:05")
	}
	if g.Uses > 0 {
		note += ", " + tty.Count(int(g.Uses), "use")
	}
	if len(g.Env) > 0 && g.Placeholder != "" {
		note += "; commands that start now have its placeholder in " + tty.Clean(strings.Join(g.Env, ", "))
	}
	return note
}

// warnUnreachable warns of the hosts of a grant that the policy of the sandbox does not let it reach: a grant changes
// no rule.
func (a *app) warnUnreachable(ctx context.Context, c *client.Client, name string, g grant.Grant) {
	var denied []string
	for _, rule := range destinations(g) {
		if strings.HasPrefix(rule, "*.") {
			continue // it names more than one host
		}
		why, err := c.Why(ctx, name, wire.WhyRequest{Host: rule})
		if err == nil && why.Verdict == wire.VerdictDeny {
			denied = append(denied, strings.TrimSuffix(rule, ":443"))
		}
	}
	if len(denied) > 0 {
		hosts := strings.Join(denied, " ")
		a.warn([]string{fmt.Sprintf("sandbox %s cannot reach %s: coppice net allow %[1]s %[2]s", name, hosts)})
	}
}

// grantables completes a preset or a secret.
func (a *app) grantables(cmd *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
	secrets, _ := a.secretNames(0)(cmd, nil, part)
	return append(grant.PresetNames(), secrets...), cobra.ShellCompDirectiveNoFileComp
}

// nameThenGrantable completes a sandbox, and then a preset or a secret.
func (a *app) nameThenGrantable(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return a.names(1)(cmd, args, part)
	case 1:
		return a.grantables(cmd, nil, part)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) revoke() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "revoke NAME [GRANT...] [flags]", Short: "Revoke grants of a sandbox", GroupID: groupAccess,
		Long: `Revoke grants, and print their names. When revoke returns, no request of the
sandbox carries the secret: connections that used it are closed. The placeholder
stays in files and variables of the sandbox, and is refused. A rewind does not
restore the grant. With --all, all live grants are revoked.`,
		Example: "  coppice revoke box github\n  coppice revoke box --all",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 1:
				return usagef("--all does not go with a grant: %q", args[1])
			case len(args) == 1 && !all:
				return &usageError{msg: "revoke requires the name of a grant, or --all",
					hint: "list them: coppice grants " + args[0]}
			}
			return between(1, -1, "the name of a sandbox, and grants")(cmd, args)
		},
		ValidArgsFunction: a.nameThenGrants,
		RunE: func(cmd *cobra.Command, args []string) error {
			names := args[1:]
			if all {
				live, err := a.liveGrants(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				names = live
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.eachSecret(names, "revoked", func(name string) error {
				return c.Revoke(cmd.Context(), args[0], name)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "revoke all grants")
	return cmd
}

// liveGrants returns the names of the live grants of a sandbox.
func (a *app) liveGrants(ctx context.Context, name string) (names []string, err error) {
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	list, err := c.Grants(ctx, name)
	for _, g := range list {
		if g.State == wire.GrantLive {
			names = append(names, g.Name)
		}
	}
	return names, err
}

// nameThenGrants completes a sandbox, and then its grants.
func (a *app) nameThenGrants(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.names(1)(cmd, args, part)
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (names []string, _ error) {
		list, err := c.Grants(ctx, args[0])
		for _, g := range list {
			if g.State == wire.GrantLive {
				names = append(names, g.Name)
			}
		}
		return names, err
	})
}
