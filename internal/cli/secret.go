package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) secret() *cobra.Command {
	return group(&cobra.Command{
		Use: "secret", Short: "Manage secrets that sandboxes use but never hold", GroupID: groupAccess,
		Long: `Store, list, remove and test secrets, such as API keys. A grant (see "coppice
grant") lets requests of a sandbox carry a secret; the sandbox only has a
placeholder.

Values are held by the broker, a separate process that these commands start, and
for at most a minute at a time by the gates of sandboxes with a grant. No
command prints a value. See docs/secrets.md.`,
		Example: `  coppice secret set anthropic --from env:ANTHROPIC_API_KEY
  coppice secret set github --from gh
  coppice secret ls`,
	}, a.secretSet(), a.secretLs(), a.secretRm(), a.secretTest())
}

func (a *app) secretSet() *cobra.Command {
	var from, kind string
	cmd := &cobra.Command{
		Use: "set SECRET [flags]", Short: "Store or replace a secret",
		Long: `Store a secret, or replace it: gates use the new value with their next request.
The value is read from stdin, or at a terminal from a prompt without echo; it is
never an argument. A final newline is removed.

--from names another source. Except for env, it is read each time that a gate
needs the value, in the environment of your latest "coppice secret" command:

  age                    encrypted in the data directory (default)
  env:VARIABLE           a variable of this shell, which is read once and stored
  file:PATH[#/POINTER]   a file, or a string in a JSON file
  command:PROGRAM ARG... the output of a program
  gh[:HOST], op://VAULT/ITEM/FIELD, pass:NAME, gcloud[:ACCOUNT], aws[:PROFILE]
                         the output of that program
  vault:MOUNT/PATH#FIELD HashiCorp Vault or OpenBao, at VAULT_ADDR
  ssh-agent:COMMENT      a private key in your SSH agent, or its fingerprint

The kind, as in github, decides the form of placeholders. It is recognized by
the value; with --kind, a value of another kind is refused. A private key, of
kind ssh, is for git over SSH.`,
		Example: `  coppice secret set github < token
  coppice secret set anthropic --from env:ANTHROPIC_API_KEY
  coppice secret set deploy --kind ssh < ~/.ssh/id_ed25519
  coppice secret set npm --from "command:pass show npm"
  coppice secret set db --from vault:kv/team/db#password`,
		Args: between(1, 1, "the name of a secret"), ValidArgsFunction: a.secretNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := absoluteSource(from)
			if err != nil {
				return err
			}
			if kind != "" {
				if _, err := grant.ParseKind(kind); err != nil {
					return err
				}
			}
			var value []byte
			if from == "" || from == "age" {
				if value, err = a.secretValue(args[0]); err != nil {
					return err
				}
				defer clear(value)
			}
			s, err := a.secrets(cmd.Context())
			if err != nil {
				return err
			}
			set, err := s.Set(cmd.Context(), args[0], from, kind, value)
			if err != nil {
				return err
			}
			return a.describeSecret(set)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "where the value is kept, `STORE` (default: age)")
	f.StringVar(&kind, "kind", "", "refuse values that are not of `KIND`, as in github")
	must(cmd.RegisterFlagCompletionFunc("from", fixed("age", "env:", "file:", "command:", "vault:", "ssh-agent:", "gh",
		"op://", "pass:", "gcloud", "aws")))
	must(cmd.RegisterFlagCompletionFunc("kind", fixed(kindNames()...)))
	return cmd
}

// kindNames returns the kinds of secrets.
func kindNames() (names []string) {
	for _, k := range grant.Kinds() {
		names = append(names, string(k))
	}
	return names
}

// absoluteSource returns the source of --from with an absolute path, since the broker has another directory.
func absoluteSource(from string) (string, error) {
	name, ok := strings.CutPrefix(from, "file:")
	if !ok || name == "" || filepath.IsAbs(name) {
		return from, nil
	}
	if below, ok := strings.CutPrefix(name, "~/"); ok { // a shell expands ~ at the start of a word only
		home, err := os.UserHomeDir()
		return "file:" + filepath.Join(home, below), err
	}
	name, pointer, more := strings.Cut(name, "#/")
	abs, err := filepath.Abs(name)
	if more {
		abs += "#/" + pointer
	}
	return "file:" + abs, fault.Wrap(err, "find %s", name)
}

// secretValue reads a value from stdin. The caller clears it.
func (a *app) secretValue(name string) ([]byte, error) {
	if tty.IsTerminal(a.stdin) {
		restore, err := tty.Raw(a.stdin)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(a.stderr, "value of %s: ", tty.Clean(name))
		value, err := typedSecret(a.stdin)
		restore()
		fmt.Fprintln(a.stderr)
		return value, err
	}
	value := make([]byte, grant.MaxValue+2)
	n, err := io.ReadFull(a.stdin, value)
	switch {
	case err == nil:
		clear(value)
		return nil, fault.New(fault.TooLarge, "read the value: larger than %s", tty.Bytes(grant.MaxValue))
	case errors.Is(err, io.EOF):
		return nil, &usageError{msg: "the value is empty: stdin has no data",
			hint: "pipe it in: coppice secret set " + name + " < FILE; or name a source with --from"}
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fault.Wrap(err, "read the value")
	}
	return withoutLineEnd(value[:n]), nil
}

// withoutLineEnd removes a final newline.
func withoutLineEnd(value []byte) []byte {
	n := len(value)
	if n > 0 && value[n-1] == '\n' {
		n--
	}
	if n > 0 && n < len(value) && value[n-1] == '\r' {
		n--
	}
	return value[:n]
}

// typedSecret reads a line from a terminal in raw mode, which echoes nothing.
func typedSecret(r io.Reader) ([]byte, error) {
	const ctrlC, ctrlD, backspace, ctrlU, del = 3, 4, 8, 21, 127
	value := make([]byte, 0, grant.MaxValue)
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, one); err != nil {
			clear(value)
			return nil, fault.New(fault.Cancelled, "the terminal was closed")
		}
		switch c := one[0]; {
		case (c == '\r' || c == '\n') && len(value) > 0:
			return value, nil
		case c == ctrlC, c == ctrlD, c == '\r', c == '\n':
			clear(value)
			return nil, fault.New(fault.Cancelled, "no secret was stored")
		case c == backspace || c == del:
			value = value[:max(len(value)-1, 0)]
		case c == ctrlU:
			value = value[:0]
		case len(value) == cap(value):
			clear(value)
			return nil, fault.New(fault.TooLarge, "read the value: larger than %s", tty.Bytes(grant.MaxValue))
		default:
			value = append(value, c)
		}
	}
}

// describeSecret prints the name of a secret, and notes what it is.
func (a *app) describeSecret(s storedSecret) error {
	return a.print(s, func(w io.Writer) error {
		a.note("kind %s, from %s, %s, fingerprint %s", tty.Clean(s.Kind), tty.Clean(s.From), tty.Bytes(int64(s.Length)),
			tty.Clean(s.Fingerprint))
		_, err := fmt.Fprintln(w, tty.Clean(s.Name))
		return err
	})
}
