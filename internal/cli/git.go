package cli

import "github.com/spf13/cobra"

func (a *app) git() *cobra.Command {
	return group(&cobra.Command{
		Use: "git", Short: "Apply, propose and exchange changes to a repository", GroupID: groupOthers,
		Long: `Apply the changes of a sandbox in a git repository to your branch, propose them
to a reviewer, and exchange proposals with colleagues. "coppice create --repo"
and "coppice run --repo" create a sandbox that works on a repository; "coppice
diff" shows its changes.`,
		Example: `  coppice run --repo . --name fix -- claude
  coppice diff fix
  coppice git apply fix
  coppice git propose fix -m "Refuse empty tokens"`,
	}, a.gitApply(), a.gitPropose(), a.gitPush(), a.gitPull(), a.gitRebase(), a.gitPR())
}
