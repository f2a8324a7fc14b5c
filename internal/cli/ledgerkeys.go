package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) ledgerKeys() *cobra.Command {
	return &cobra.Command{
		Use: "keys", Short: "Print the verifier keys of the audit log",
		Long: `Print the verifier keys of this host's audit log, oldest first, with the log
size from which each one signs; "current" marks the signing key. Each key is
signed by the one before it, so trust in one extends to its successors.
"witness" is the key with which this host cosigns other logs, if it has one.
Give the keys to verifiers of the log.`,
		Example: "  coppice ledger keys",
		Args:    between(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.LedgerKeys(cmd.Context())
			if err != nil {
				return err
			}
			return a.printKeys(res)
		},
	}
}

// printKeys writes keys, one a line. The key is the last column, since it is long.
func (a *app) printKeys(res wire.LedgerKeys) error {
	return a.print(res, func(w io.Writer) error {
		var t tty.Table
		for _, k := range res.Keys {
			state := "replaced"
			if k.Current {
				state = "current"
			}
			t.Row(state, fmt.Sprintf("from %d", k.From), tty.Clean(k.Key))
		}
		if res.Witness != "" {
			t.Row("witness", "", tty.Clean(res.Witness))
		}
		return t.Write(w)
	})
}

func (a *app) ledgerRotateKey() *cobra.Command {
	return &cobra.Command{
		Use: "rotate-key", Short: "Rotate the signing key of the audit log",
		Long: `Create a new key that signs the audit log from now on. The old key signs the new
one, which is recorded ("coppice ledger show host"), and is deleted: verifiers
that trust the old key trust the new one. Prints the keys, as "coppice ledger
keys" does.`,
		Example: "  coppice ledger rotate-key",
		Args:    between(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.RotateLedgerKey(cmd.Context())
			if err != nil {
				return err
			}
			return a.printKeys(res)
		},
	}
}

func (a *app) ledgerArchive() *cobra.Command {
	var before string
	cmd := &cobra.Command{
		Use: "archive NAME --before TIME", Short: "Compress old records of a sandbox",
		Long: `Compress the records of a sandbox that are older than TIME, in whole segments (4
MiB) and never the newest one. Archived records can be read, verified and
exported as before. The operation is recorded.`,
		Example: "  coppice ledger archive box --before 720h",
		Args:    between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if before == "" {
				return &usageError{msg: "--before TIME is required", hint: "use 720h, or a time as in 2026-01-02T15:04:05Z"}
			}
			at, err := a.moment("--before", before)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.ArchiveLedger(cmd.Context(), args[0], at)
			if err != nil {
				return err
			}
			return a.print(res, func(io.Writer) error {
				a.note("%s archived", tty.Count(int(res.Records), "record"))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&before, "before", "", "archive records older than `TIME`: 720h, or 2026-01-02T15:04:05Z")
	return cmd
}
