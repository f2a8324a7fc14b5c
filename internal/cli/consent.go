package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) consent() *cobra.Command {
	var revoke, list bool
	cmd := &cobra.Command{
		Use: "consent [FILE|DIGEST] [flags]", Short: "Consent to the grants that a project's policy file requests",
		Long: `Show the grants that the policy file FILE of a project requests (default:
coppice.yaml), and consent to them: sandboxes that are created with the file
have these grants from then on. Coppice asks at a terminal; without one, the
command itself is the consent. It prints a digest for each grant.

A consent holds for one grant, exactly as it is requested, in one directory: a
changed file needs another one. Your own policy file and flags need none.

--revoke ends the consents for the directory of FILE, or the one with DIGEST.
Sandboxes keep the grants that they have: see "coppice revoke". --list lists all
consents.`,
		Example: `  coppice grants consent
  coppice grants consent ~/src/app/coppice.yaml
  coppice grants consent --list
  coppice grants consent --revoke ~/src/app/coppice.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if list && (revoke || len(args) > 0) {
				return usagef("--list does not go with a file or --revoke")
			}
			return between(0, 1, "one file")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			switch {
			case list:
				return a.listConsents(cmd.Context(), c)
			case revoke:
				return a.revokeConsents(cmd.Context(), c, theFile(args))
			}
			return a.giveConsent(cmd.Context(), c, theFile(args))
		},
	}
	cmd.Flags().BoolVar(&revoke, "revoke", false, "end consents")
	cmd.Flags().BoolVar(&list, "list", false, "list all consents")
	return cmd
}

// listConsents prints all consents.
func (a *app) listConsents(ctx context.Context, c *client.Client) error {
	all, err := c.Consents(ctx)
	if err != nil {
		return err
	}
	return a.print(wire.ConsentsResult{Consents: append([]wire.Consent{}, all...)}, func(w io.Writer) error {
		var t tty.Table
		if len(all) > 0 {
			t.Row("DIRECTORY", "GRANT", "SECRET", "HOSTS", "GIVEN", "DIGEST")
		}
		for _, o := range all {
			t.Row(tty.Quote(o.Root), tty.Clean(o.Grant), tty.Clean(o.Secret), oneLine(strings.Join(o.Hosts, ","), 40),
				tty.Ago(o.Given, a.now()), tty.Clean(o.Digest))
		}
		return t.Write(w)
	})
}

// revokeConsents ends the consents for the directory of a file, or the one with a digest.
func (a *app) revokeConsents(ctx context.Context, c *client.Client, which string) error {
	all, err := c.Consents(ctx)
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(which)
	if err != nil {
		return fault.Wrap(err, "find %s", which)
	}
	var digests []string
	for _, o := range all {
		if o.Digest == which || o.Root == filepath.Dir(abs) {
			digests = append(digests, o.Digest)
		}
	}
	if digests == nil {
		return fault.New(fault.NotFound, "no consent for %s", which).
			WithHint("list them: coppice grants consent --list")
	}
	return a.eachSecret(digests, "revoked", func(digest string) error { return c.RevokeConsent(ctx, digest) })
}

// giveConsent consents to what a file requests, with the user's own file in force.
func (a *app) giveConsent(ctx context.Context, c *client.Client, name string) error {
	var files []wire.PolicyFile
	if mine := a.userPolicy(); mine != "" {
		f, err := policyText(mine, wire.PolicyUser)
		switch {
		case err == nil:
			files = append(files, f)
		case !fault.Is(err, fault.NotFound):
			return a.mistakes(mine, err)
		}
	}
	f, err := policyText(name, wire.PolicyProject)
	if err != nil {
		return a.mistakes(name, err)
	}
	files = append(files, f)
	p, requested, err := a.requestsOf(files)
	if err != nil {
		return a.mistakes(name, err)
	}
	if len(requested) == 0 {
		a.note("%s requests no grants", tty.Quote(f.Name))
		return nil
	}
	a.showRequests(p, requested)
	if a.interactive() && !a.agreed() {
		return fault.New(fault.Denied, "nothing was granted")
	}
	res, err := c.Consent(ctx, wire.ConsentRequest{Policy: files, Digests: digestsOf(requested)})
	if err != nil {
		return err
	}
	return a.print(wire.ConsentsResult{Consents: res}, func(w io.Writer) error {
		for _, o := range res {
			if _, err := fmt.Fprintln(w, tty.Clean(o.Digest)); err != nil {
				return err
			}
		}
		return nil
	})
}

// requestsOf returns the policy of files, and the grants that it requests.
func (a *app) requestsOf(files []wire.PolicyFile) (p policy.Policy, requested []grant.Request, err error) {
	levels := map[string]policy.Level{wire.PolicyUser: policy.User, wire.PolicyProject: policy.Project,
		wire.PolicyFlags: policy.Flags}
	var layers []policy.Layer
	for _, f := range files {
		d, err := policy.Parse(f.Name, []byte(f.Text))
		if err != nil {
			return p, nil, err
		}
		layers = append(layers, policy.Layer{Level: levels[f.Level], Document: d})
	}
	return grant.MergePolicy(a.getenv("HOME"), layers...)
}

func digestsOf(requests []grant.Request) (all []string) {
	for _, r := range requests {
		all = append(all, r.Digest())
	}
	return all
}

// interactive reports whether Coppice can ask.
func (a *app) interactive() bool { return tty.IsTerminal(a.stdin) && tty.IsTerminal(a.stderr) }

// agreed asks whether to grant what was shown.
func (a *app) agreed() bool {
	fmt.Fprint(a.stderr, "Let sandboxes of this project use these secrets? [y/N] ")
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil && answer == "" {
		fmt.Fprintln(a.stderr)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return err == nil && (answer == "y" || answer == "yes")
}

// showRequests shows requests in full, and what else would refuse them.
func (a *app) showRequests(p policy.Policy, requested []grant.Request) {
	for _, r := range requested {
		fmt.Fprintf(a.stderr, "%s requests a grant:\n", tty.Quote(r.At.Source))
		var t tty.Table
		for _, term := range r.Terms() {
			t.Row("  "+term.What, tty.Clean(term.Value))
		}
		for _, rule := range destinations(r.Grant) {
			if why := unreachable(p, rule); why != "" {
				t.Row("  denied", tty.Clean(strings.TrimSuffix(rule, ":443")+": "+why))
			}
		}
		_ = t.Write(a.stderr) // as with all messages
	}
}

// unreachable returns why a policy lets no request reach a destination; "" if it does, or if the destination is more
// than one host.
func unreachable(p policy.Policy, rule string) string {
	if strings.HasPrefix(rule, "*.") {
		return ""
	}
	q, err := policy.ParseRequest(rule)
	if err != nil {
		return err.Error()
	}
	if d := p.Network.Decide(q); d.Verdict == policy.Deny {
		return d.Reason
	}
	return ""
}

// askConsent asks at a terminal for the consents that a new sandbox requires. Without a terminal the daemon refuses
// what the owner has not consented to.
func (a *app) askConsent(ctx context.Context, c *client.Client, req *wire.CreateRequest) error {
	isProject := func(f wire.PolicyFile) bool { return f.Level == wire.PolicyProject }
	if !a.interactive() || !slices.ContainsFunc(req.Policy, isProject) {
		return nil
	}
	p, requested, err := a.requestsOf(req.Policy)
	if err != nil {
		return nil //nolint:nilerr // the daemon reports all that is wrong with the request
	}
	requested = slices.DeleteFunc(requested, func(r grant.Request) bool { _, given := req.Grants[r.Name]; return given })
	if len(requested) == 0 {
		return nil
	}
	given, err := c.Consents(ctx)
	if err != nil {
		return err
	}
	requested = slices.DeleteFunc(requested, func(r grant.Request) bool {
		return slices.ContainsFunc(given, func(o wire.Consent) bool { return o.Digest == r.Digest() })
	})
	if len(requested) == 0 {
		return nil
	}
	a.showRequests(p, requested)
	if !a.agreed() {
		if slices.ContainsFunc(requested, func(r grant.Request) bool { return !r.Optional }) {
			return fault.New(fault.Denied, "no sandbox was created").
				WithHint("ignore the project's file: coppice create --no-policy-files")
		}
		return nil // the daemon omits them, with a note
	}
	_, err = c.Consent(ctx, wire.ConsentRequest{Policy: req.Policy, Digests: digestsOf(requested)})
	return err
}
