package cli

import (
	"github.com/spf13/cobra"
)

func (a *app) completion() *cobra.Command {
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print a completion script for a shell", GroupID: groupStore,
		Long: `Print a script that completes commands, flags, sandboxes and snapshots: for bash,
zsh, fish or powershell.`,
		Example: `  source <(coppice system completion bash)
  coppice system completion zsh > "${fpath[1]}/_coppice"`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      between(1, 1, "bash, zsh, fish or powershell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(a.out, true)
			case "zsh":
				return cmd.Root().GenZshCompletion(a.out)
			case "fish":
				return cmd.Root().GenFishCompletion(a.out, true)
			case "powershell":
				return cmd.Root().GenPowerShellCompletionWithDesc(a.out)
			}
			return usagef("no completion for %q: bash, zsh, fish or powershell", args[0])
		},
	}
}
