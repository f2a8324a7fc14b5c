package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
)

func (a *app) netDeny() *cobra.Command {
	return a.answering(&cobra.Command{
		Use: "deny NAME HOST[:PORT]... [flags]", Short: "Deny a pending network request",
		Long: `Deny pending requests of a sandbox created with --ask, permanently or with --for
temporarily: add a deny rule to its policy, and print the digest of the new
policy. Held requests are denied immediately and not asked about again. A host
without a port is denied on all ports. A deny rule always takes precedence over
an allow rule.
` + answerLong,
		Example: `  coppice net deny box tracker.example.com
  coppice net deny box ads.example.com --for 1h`,
	}, (*client.Client).Deny)
}
