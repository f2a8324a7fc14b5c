package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) secretLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List secrets",
		Long: `List secrets, without their values: kind, source, length in bytes, a fingerprint
that is equal for equal values, when the value was last set, and how many grants
of sandboxes use it. Sources other than age are not opened: see "coppice secret
test".`,
		Example: "  coppice secret ls\n  coppice secret ls --json",
		Args:    between(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.secrets(cmd.Context())
			if err != nil {
				return err
			}
			list, err := s.List(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(map[string]any{"secrets": list}, func(w io.Writer) error { return a.secretTable(w, list) })
		},
	}
}

// secretTable writes a row for each secret.
func (a *app) secretTable(w io.Writer, list []storedSecret) error {
	var t tty.Table
	if !a.quiet && len(list) > 0 {
		t.Row("NAME", "KIND", "FROM", "LENGTH", "FINGERPRINT", "SET", "GRANTS")
	}
	for _, s := range list {
		if a.quiet {
			t.Row(tty.Clean(s.Name))
			continue
		}
		if s.Problem != "" {
			hint := ""
			if s.Hint != "" {
				hint = "; " + s.Hint
			}
			a.warn([]string{s.Name + ": " + s.Problem + hint})
		}
		length, set := "-", "-"
		if s.Length > 0 {
			length = strconv.Itoa(s.Length)
		}
		if at := latest(s.Rotated, s.Created); !at.IsZero() {
			set = tty.Ago(at, a.now())
		}
		t.Row(tty.Clean(s.Name), orDash(s.Kind), orDash(oneLine(s.From, 60)), length, orDash(s.Fingerprint), set,
			strconv.Itoa(s.Grants))
	}
	return t.Write(w)
}

// latest returns the later time.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// orDash returns an untrusted word of a table, or a dash for none.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return tty.Clean(s)
}

func (a *app) secretRm() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm SECRET... [flags]", Aliases: []string{"remove"}, Short: "Remove secrets",
		Long: `Remove secrets, and print their names. A secret that a grant of a running
sandbox uses is kept, unless --force is given; then the sandboxes' requests with
it are refused immediately. A value in another program's store is not removed
there.`,
		Example: "  coppice secret rm github",
		Args:    between(1, -1, "the name of a secret"), ValidArgsFunction: a.secretNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.secrets(cmd.Context())
			if err != nil {
				return err
			}
			return a.eachSecret(args, "removed", func(name string) error { return s.Remove(cmd.Context(), name, force) })
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove secrets that grants use")
	return cmd
}

// eachSecret calls fn for every name, and prints the names for which it succeeded, in JSON under key.
func (a *app) eachSecret(names []string, key string, fn func(name string) error) error {
	done := []string{}
	var last error
	for _, name := range names {
		if err := fn(name); err != nil {
			if last != nil {
				a.finish(nil, last)
			}
			last = err
			continue
		}
		done = append(done, name)
	}
	return errors.Join(last, a.print(map[string]any{key: done}, func(w io.Writer) error {
		for _, name := range done {
			if _, err := fmt.Fprintln(w, tty.Clean(name)); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (a *app) secretTest() *cobra.Command {
	return &cobra.Command{
		Use: "test SECRET", Short: "Check that the broker can read a secret",
		Long: `Read a secret from its source, as the broker does for a gate, and print its
name. Its kind, length and fingerprint are printed to stderr, but never its
value. If its source is locked or out of reach, the error says how to unlock it.`,
		Example: "  coppice secret test github",
		Args:    between(1, 1, "the name of a secret"), ValidArgsFunction: a.secretNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.secrets(cmd.Context())
			if err != nil {
				return err
			}
			res, err := s.Test(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.describeSecret(res)
		},
	}
}
