package cli

import "github.com/spf13/cobra"

func (a *app) snapshot() *cobra.Command {
	return group(&cobra.Command{
		Use: "snapshot", Short: "Create, show, name and remove snapshots", GroupID: groupHistory,
		Long: `Create, show, tag, mark and remove snapshots of a sandbox. "coppice log" shows
the history, and "coppice rewind" rewinds a sandbox to a snapshot.`,
		Example: `  coppice snapshot create box -m "before the upgrade"
  coppice snapshot show box HEAD~1
  coppice snapshot tag box good`,
	}, a.snapshotCreate(), a.snapshotShow(), a.snapshotTag(), a.snapshotMark(), a.snapshotRm(), a.snapshotBranches(),
		a.snapshotHead())
}
