package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/daemon"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) token() *cobra.Command {
	return group(&cobra.Command{
		Use: "token", Short: "Manage tokens for the API on TCP", GroupID: groupAccess,
		Long: `Create, list and revoke the tokens that "coppice serve --http" requires. Local
commands use the unix socket, which requires none.`,
		Example: `  coppice token create ci --scope operate --expires 30d
  coppice token ls
  coppice token rm 1f0c9a3e`,
	}, a.tokenCreate(), a.tokenGenerate(), a.tokenLs(), a.tokenRm())
}

func (a *app) tokenCreate() *cobra.Command {
	var (
		req     wire.TokenRequest
		expires string
	)
	cmd := &cobra.Command{
		Use: "create NAME [flags]", Short: "Create a token and print its secret",
		Long: `Create a token, and print its secret, which is shown only once. NAME describes
its purpose. Each scope includes the previous ones:

  read     read states, history, files and events
  operate  run commands, write files, rewind, create, fork and remove sandboxes
           (default)
  admin    manage tokens, gc, the whole store and the daemon

--sandbox restricts a token to those sandboxes and to forks created with it. A
client that can create sandboxes can read this machine's files and use its
network: give such a token only to people whom you would give access to your
account.`,
		Example: `  TOKEN=$(coppice token create ci --scope read --expires 30d)
  coppice token create agent --sandbox box
  curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8080/v1/sandboxes`,
		Args: between(1, 1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			life, err := lifetime(expires)
			if err != nil {
				return err
			}
			req.TTLMS = life.Milliseconds()
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.CreateToken(cmd.Context(), req)
			if err != nil {
				return err
			}
			until := "never expires"
			if res.Expires != nil {
				until = "expires " + res.Expires.Local().Format(time.DateTime)
			}
			a.note("token %s, scope %s, %s; this is its secret, which is shown only once:", tty.Clean(res.ID),
				tty.Clean(res.Scope), until)
			return a.print(res, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, tty.Clean(res.Secret))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Scope, "scope", "operate", "scope of the token, `SCOPE`: read, operate or admin")
	f.StringArrayVar(&req.Sandboxes, "sandbox", nil, "restrict the token to sandbox `NAME`; repeatable")
	f.StringVar(&expires, "expires", "", "lifetime of the token, `TIME` as in 12h or 30d (default: no expiry)")
	must(cmd.RegisterFlagCompletionFunc("scope",
		fixed("read", "operate", "admin")))
	must(cmd.RegisterFlagCompletionFunc("sandbox", a.names(0)))
	return cmd
}

func (a *app) tokenGenerate() *cobra.Command {
	return &cobra.Command{
		Use: "generate", Short: "Generate the secret of a token, and print it",
		Long: `Generate the secret of a token for "coppice serve --token-file", and print it.
It is not stored, and is valid only while a daemon is configured with it.`,
		Example: `  coppice token generate > token`,
		Args:    between(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			secret := daemon.NewToken()
			return a.print(map[string]any{"secret": secret}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, secret)
				return err
			})
		},
	}
}

// lifetime parses a duration, which may be in days; "" is unlimited.
func lifetime(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	var d time.Duration
	var err error
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	} else {
		d, err = time.ParseDuration(s)
	}
	if err != nil || d < time.Second {
		return 0, &usageError{msg: fmt.Sprintf("invalid --expires %q: must be at least 1s", s),
			hint: "use a duration as in 90m, 12h or 30d"}
	}
	return d, nil
}

func (a *app) tokenLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List tokens",
		Long:    "List tokens, oldest first, including expired ones. Secrets are not stored.",
		Example: "  coppice token ls",
		Args:    between(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Tokens(cmd.Context())
			if err != nil {
				return err
			}
			boxes, err := c.List(cmd.Context())
			if err != nil {
				return err
			}
			names := map[string]string{}
			for _, sb := range boxes {
				names[sb.ID] = sb.Name
			}
			return a.print(wire.TokensResult{Tokens: list}, func(w io.Writer) error { return a.tokenTable(w, list, names) })
		},
	}
}

// tokenTable writes a row for each token. names are the names of sandboxes, by ID.
func (a *app) tokenTable(w io.Writer, list []wire.Token, names map[string]string) error {
	if a.quiet {
		for _, t := range list {
			if _, err := fmt.Fprintln(w, tty.Clean(t.ID)); err != nil {
				return err
			}
		}
		return nil
	}
	var t tty.Table
	t.Row("ID", "NAME", "SCOPE", "SANDBOXES", "MADE", "EXPIRES", "USED")
	for _, tok := range list {
		of := "all"
		if len(tok.Sandboxes) > 0 {
			var all []string
			for _, id := range tok.Sandboxes {
				name := names[id]
				if name == "" {
					name = id // the sandbox was removed
				}
				all = append(all, tty.Clean(name))
			}
			of = strings.Join(all, ",")
		}
		expires, used := "never", "never"
		if tok.Expires != nil {
			expires = tok.Expires.Local().Format(time.DateTime)
			if !a.now().Before(*tok.Expires) {
				expires = "expired"
			}
		}
		if tok.LastUsed != nil {
			used = tty.Ago(*tok.LastUsed, a.now())
		}
		t.Row(tty.Clean(tok.ID), tty.Clean(tok.Name), tty.Clean(tok.Scope), of, tty.Ago(tok.Created, a.now()), expires, used)
	}
	return t.Write(w)
}

func (a *app) tokenRm() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID...", Aliases: []string{"remove", "revoke"}, Short: "Revoke tokens",
		Long: "Revoke tokens, and print their IDs. Requests in progress are aborted;\ncommands that were " +
			"started with them continue to run.",
		Example: "  coppice token rm 1f0c9a3e",
		Args:    between(1, -1, "the ID of a token"),
		RunE: func(cmd *cobra.Command, args []string) error {
			removed := []string{}
			err := a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, id string) error {
				err := c.RevokeToken(ctx, id)
				if err == nil {
					removed = append(removed, id)
				}
				return err
			})
			perr := a.print(map[string]any{"removed": removed}, func(w io.Writer) error {
				for _, id := range removed {
					if _, err := fmt.Fprintln(w, tty.Clean(id)); err != nil {
						return err
					}
				}
				return nil
			})
			return errors.Join(err, perr)
		},
	}
}
