package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
)

func (a *app) netDeny() *cobra.Command {
	return a.answering(&cobra.Command{
		Use: "deny NAME HOST[:PORT]... [flags]", Short: "Keep from a sandbox what it waits for",
		Long: `Deny what waits for a person in a sandbox that was made with --ask, for good or with
--for for some time: a rule that denies is added to its policy, and the digest of the
policy in force then is printed. What is held is refused at once, and not asked about
again. Without a port every port is denied. What is denied stays denied, whatever is
allowed.
` + answerLong,
		Example: `  coppice net deny box tracker.example.com
  coppice net deny box ads.example.com --for 1h`,
	}, (*client.Client).Deny)
}
