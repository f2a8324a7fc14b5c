package cli

import "github.com/spf13/cobra"

func (a *app) system() *cobra.Command {
	return group(&cobra.Command{
		Use: "system", Short: "Maintain the store, and inspect this host", GroupID: groupOthers,
		Long: `Free and verify the store, show what this host supports, follow the events of
all sandboxes, and print what other programs need from coppice.`,
		Example: `  coppice system probe
  coppice system df
  coppice system gc --dry-run
  coppice system verify`,
	}, a.systemDF(), a.systemGC(), a.systemVerify(), a.systemProbe(), a.systemEvents(), a.systemSocket(), a.systemMan(),
		a.systemCompletion(), a.systemVersion(), a.systemUninstall())
}
