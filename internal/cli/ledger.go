package cli

import "github.com/spf13/cobra"

func (a *app) ledger() *cobra.Command {
	return group(&cobra.Command{
		Use: "ledger", Short: "Show, compare and export the audit log", GroupID: groupAccess,
		Long: `Show, compare and export the records of sandboxes: commands, changes, network
access and denials. Records are chained and signed in this host's audit log.
"coppice system verify" checks them; docs/LEDGER.md describes each kind.`,
		Example: `  coppice ledger show box
  coppice ledger compare one two
  coppice ledger export box -o box.tar
  coppice ledger checkpoint > log.checkpoint`,
	}, a.ledgerShow(), a.ledgerCompare(), a.ledgerExport(), a.ledgerArchive(), a.ledgerCheckpoint(), a.ledgerCosign(),
		a.ledgerWitness(), a.ledgerKeys(), a.ledgerRotateKey())
}
