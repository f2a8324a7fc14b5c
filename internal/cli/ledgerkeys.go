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
		Use: "keys", Short: "Print the verifier keys of the log",
		Long: `Print the verifier keys of this host's log, the first one first, with the size of the log
from which each signs; "current" is the one that signs now. Who trusts one trusts those after it,
as each is signed by the one before. "witness" is the key by which this host cosigns the logs of
others, once it has done so. Give them to whoever is to verify.`,
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

// printKeys writes keys, one a line: the key last, since it is long.
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
		Use: "rotate-key", Short: "Sign the log with a new key from now on",
		Long: `Make a new key, which signs the log from now on. The old one signs the new one, which is
recorded (coppice ledger show host), and is forgotten: who trusts the old one trusts the new one.
The keys are printed, as coppice ledger keys does.`,
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
		Long: `Compress the records of a sandbox that are older than TIME, as far as whole segments go
(4 MiB), but never the newest segment. They are read, verified and exported as ever. That it was
done is recorded.`,
		Example: "  coppice ledger archive box --before 720h",
		Args:    between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if before == "" {
				return &usageError{msg: "--before TIME is wanted", hint: "give 720h, or a time as in 2026-01-02T15:04:05Z"}
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
	cmd.Flags().StringVar(&before, "before", "", "those that are older than `TIME`: 720h, or 2026-01-02T15:04:05Z")
	return cmd
}
