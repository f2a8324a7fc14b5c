package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/tty"
)

// maxNote is how large a file with a note may be, in bytes.
const maxNote = 128 << 10

// noteFile reads a file with a note; "-" is standard input.
func (a *app) noteFile(name string) (string, error) {
	r := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, maxNote+1))
	if err == nil && len(b) > maxNote {
		err = usagef("%s has more than %d bytes: that is no checkpoint", name, maxNote)
	}
	return string(b), err
}

// writeNote writes a note, whose lines are kept.
func writeNote(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, tty.Clean(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) ledgerCheckpoint() *cobra.Command {
	var (
		since string
		from  int64
	)
	cmd := &cobra.Command{
		Use: "checkpoint [flags]", Short: "Print the signed checkpoint of the log",
		Long: `Print where the log of this host is now, signed. Keep it elsewhere: a log that was
rewritten does not grow from it, which coppice system verify NAME --checkpoint FILE finds.

With --since or --from it is what a witness is asked with: the checkpoint, and before it the
proof that the log grew from the one in FILE, or from SIZE, as the body of add-checkpoint in
C2SP tlog-witness. coppice ledger cosign takes it on another host.`,
		Example: `  coppice ledger checkpoint > log.checkpoint
  coppice ledger checkpoint --from 0 > request`,
		Args: between(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			proven := cmd.Flags().Changed("from")
			if since != "" && proven || from < 0 {
				return &usageError{msg: "one of --since FILE and --from SIZE is wanted",
					hint: "0 is the size of a log of which nothing is known"}
			}
			if since != "" {
				text, err := a.noteFile(since)
				if err != nil {
					return err
				}
				if from, err = sizeOf(since, text); err != nil {
					return err
				}
				proven = true
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if !proven {
				res, err := c.LedgerCheckpoint(cmd.Context())
				if err != nil {
					return err
				}
				return a.print(res, func(w io.Writer) error { return writeNote(w, res.Checkpoint) })
			}
			res, err := c.LedgerGrowth(cmd.Context(), from)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error { return writeNote(w, res.Growth) })
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "prove that the log grew from the checkpoint in `FILE`")
	cmd.Flags().Int64Var(&from, "from", 0, "prove that the log grew from `SIZE` records, 0 for none")
	return cmd
}

// sizeOf gives the size of the log in a checkpoint.
func sizeOf(name, text string) (int64, error) {
	head, _, _ := strings.Cut(text, "\n\n")
	c, err := format.ParseCheckpoint(head + "\n")
	if err != nil {
		return 0, &usageError{msg: fmt.Sprintf("%s is no checkpoint", tty.Quote(name)),
			hint: "print one with: coppice ledger checkpoint"}
	}
	return c.Size, nil
}

func (a *app) ledgerCosign() *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use: "cosign FILE --log-key KEY [flags]", Short: "Witness the log of another host",
		Long: `Sign the checkpoint of another host's log, as a witness: FILE is what that host printed
with coppice ledger checkpoint --from SIZE, "-" is standard input. KEY is a verifier key of that
log, which coppice ledger keys prints there, and which you have from its owner.

This host remembers the checkpoint, and signs a later one only if the log grew from it: SIZE is
that of the one signed last, 0 for none. A log that was rolled back, or goes on otherwise, is
refused, and you are told. The key of this host as a witness is made at the first time. What is
printed is the checkpoint with the cosignature; coppice ledger witness keeps it at the other host.`,
		Example: `  ssh other coppice ledger checkpoint --from 0 > request
  coppice ledger cosign request --log-key "$KEY" > cosigned`,
		Args: between(1, 1, "a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(keys) == 0 {
				return &usageError{msg: "--log-key KEY is wanted: whose log it is",
					hint: "the other host prints it with: coppice ledger keys"}
			}
			request, err := a.noteFile(args[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.LedgerCosign(cmd.Context(), wire.LedgerGrowth{Checkpoint: request, Keys: keys})
			if err != nil {
				return err
			}
			err = a.print(res, func(w io.Writer) error { return writeNote(w, res.Checkpoint) })
			a.note("cosigned %s at size %d, by %s", tty.Clean(res.Origin), res.Size, tty.Clean(res.Key))
			return err
		},
	}
	cmd.Flags().StringArrayVar(&keys, "log-key", nil, "the log is that of this verifier `KEY`; may be given again")
	return cmd
}

func (a *app) ledgerWitness() *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use: "witness FILE --key KEY [flags]", Short: "Keep a checkpoint that witnesses cosigned",
		Long: `Keep a checkpoint of this host's log that other hosts, or public witnesses, cosigned: FILE
is a checkpoint with their cosignatures behind it, "-" is standard input. KEY is the verifier
key of a witness (C2SP tlog-cosignature/v1), and all that are named must have signed. The newest
one is in every bundle that is exported from then on, with the proof that the log grew from it.`,
		Example: `  coppice ledger witness cosigned --key "$WITNESS"`,
		Args:    between(1, 1, "a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(keys) == 0 {
				return &usageError{msg: "--key KEY is wanted: the verifier key of the witness",
					hint: "coppice ledger cosign says it, and so does coppice ledger keys on the witness' host"}
			}
			cosigned, err := a.noteFile(args[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.LedgerWitness(cmd.Context(), wire.LedgerGrowth{Checkpoint: cosigned, Keys: keys})
			if err != nil {
				return err
			}
			return a.print(res, func(io.Writer) error {
				a.note("the log of %d records is witnessed", res.Size)
				return nil
			})
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "this witness, by its verifier `KEY`, signed; may be given again")
	return cmd
}
