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

// maxNote is the maximum size of a file with a note, in bytes.
const maxNote = 128 << 10

// noteFile reads a note from a file; "-" is stdin.
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
		err = usagef("%s is not a checkpoint: larger than %d bytes", name, maxNote)
	}
	return string(b), err
}

// writeNote writes a note. It sanitizes each line, and keeps the line breaks.
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
		Use: "checkpoint [flags]", Short: "Print the signed checkpoint of the audit log",
		Long: `Print a signed checkpoint of this host's audit log. Keep it elsewhere: "coppice
system verify NAME --checkpoint FILE" then detects a rewritten log.

With --since or --from, print the request that a witness expects: the
checkpoint, preceded by the proof that the log extends the checkpoint in FILE,
or its first SIZE records, as the body of add-checkpoint in C2SP tlog-witness.
"coppice ledger cosign" accepts it on another host.`,
		Example: `  coppice ledger checkpoint > log.checkpoint
  coppice ledger checkpoint --from 0 > request`,
		Args: between(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			proven := cmd.Flags().Changed("from")
			if since != "" && proven || from < 0 {
				return &usageError{msg: "--since and --from are mutually exclusive, and --from must not be negative",
					hint: "use --from 0 if no earlier size is known"}
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
	cmd.Flags().StringVar(&since, "since", "", "prove that the log extends the checkpoint in `FILE`")
	cmd.Flags().Int64Var(&from, "from", 0, "prove that the log extends its first `SIZE` records; 0 for none")
	return cmd
}

// sizeOf returns the size of the log in a checkpoint; name is the file's, for errors.
func sizeOf(name, text string) (int64, error) {
	head, _, _ := strings.Cut(text, "\n\n")
	c, err := format.ParseCheckpoint(head + "\n")
	if err != nil {
		return 0, &usageError{msg: fmt.Sprintf("%s is not a checkpoint", tty.Quote(name)),
			hint: "print one with: coppice ledger checkpoint"}
	}
	return c.Size, nil
}

func (a *app) ledgerCosign() *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use: "cosign FILE --log-key KEY [flags]", Short: "Cosign the audit log of another host",
		Long: `Cosign the checkpoint of another host's audit log, as a witness, and print it
with the cosignature. FILE is the output of "coppice ledger checkpoint --from
SIZE" on that host; "-" is standard input. KEY is a verifier key of that log, as
printed by "coppice ledger keys" there; get it from the owner of the host.

This host remembers each checkpoint, and signs a later one only if the log
extends it: SIZE is the size of the last one signed, 0 for none. A log that was
rolled back or forked is refused with an error. The witness key of this host is
created on first use. "coppice ledger witness" stores the result on the other
host.`,
		Example: `  ssh other coppice ledger checkpoint --from 0 > request
  coppice ledger cosign request --log-key "$KEY" > cosigned`,
		Args: between(1, 1, "a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(keys) == 0 {
				return &usageError{msg: "--log-key KEY is required",
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
	cmd.Flags().StringArrayVar(&keys, "log-key", nil, "verifier `KEY` of the log; repeatable")
	return cmd
}

func (a *app) ledgerWitness() *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use: "witness FILE --key KEY [flags]", Short: "Store a checkpoint cosigned by witnesses",
		Long: `Store a checkpoint of this host's audit log that other hosts or public witnesses
cosigned. FILE is a checkpoint followed by their cosignatures; "-" is standard
input. KEY is the verifier key of a witness (C2SP tlog-cosignature/v1); every
named witness must have signed. From then on each exported bundle contains the
newest one, with the proof that the log extends it.`,
		Example: `  coppice ledger witness cosigned --key "$WITNESS"`,
		Args:    between(1, 1, "a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(keys) == 0 {
				return &usageError{msg: "--key KEY is required: the verifier key of the witness",
					hint: "on the host of the witness: coppice ledger keys"}
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
	cmd.Flags().StringArrayVar(&keys, "key", nil, "verifier `KEY` of a witness that signed; repeatable")
	return cmd
}
