package cli

import "github.com/spf13/cobra"

func (a *app) net() *cobra.Command {
	return group(&cobra.Command{
		Use: "net", Short: "Control the network of a sandbox", GroupID: groupAccess,
		Long: `Show the network activity of a sandbox, change its network rules while it runs,
answer its pending requests, and reach the ports on which it listens.`,
		Example: `  coppice net log box --denied
  coppice net why box pypi.org
  coppice net allow box pypi.org --for 10m
  coppice net forward box 3000 --forward`,
	}, a.netLog(), a.netAllow(), a.netDeny(), a.netApprove(), a.netWhy(), a.netForward())
}
