package cli

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) ledgerExport() *cobra.Command {
	var to string
	var since []string
	cmd := &cobra.Command{
		Use: "export NAME [flags]", Short: "Export all records of a sandbox with their proofs",
		Long: `Write a bundle, as a tar archive: all records of a sandbox, with the proof that
the signed log of this host contains these records and no others. "coppice
system verify --bundle", or any implementation of docs/LEDGER.md, verifies it
without this host. For a verifier that holds an earlier checkpoint, include a
consistency proof with --since.`,
		Example: `  coppice ledger export box -o box.tar
  coppice ledger export box -o box.tar --since log.checkpoint`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			old := make([]int64, len(since))
			for i, name := range since {
				text, err := a.noteFile(name)
				if err != nil {
					return err
				}
				if old[i], err = sizeOf(name, text); err != nil {
					return err
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if to == "" || to == "-" {
				if tty.IsTerminal(a.stdout) {
					return usagef("refusing to write a bundle to a terminal: use -o FILE, or pipe it")
				}
				return c.ExportLedger(cmd.Context(), args[0], a.out, old...)
			}
			f, err := os.CreateTemp(filepath.Dir(to), ".bundle-*")
			if err != nil {
				return err
			}
			defer func() {
				if err != nil {
					err = errors.Join(err, f.Close(), os.Remove(f.Name()))
				}
			}()
			if err := c.ExportLedger(cmd.Context(), args[0], f, old...); err != nil {
				return err
			}
			if err := errors.Join(f.Chmod(0o600), f.Sync()); err != nil {
				return err
			}
			if err := os.Rename(f.Name(), to); err != nil {
				return err
			}
			return f.Close()
		},
	}
	cmd.Flags().StringArrayVar(&since, "since", nil,
		"include a proof that the log extends the checkpoint in `FILE`; repeatable")
	cmd.Flags().StringVarP(&to, "output", "o", "", "write to `FILE` instead of standard output")
	return cmd
}
