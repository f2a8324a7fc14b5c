package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) systemProbe() *cobra.Command {
	return &cobra.Command{
		Use: "probe", Short: "Show what this host supports",
		Long: `Show what this host supports for each tier and driver, as found by trying it,
and for each missing feature the command or setting that provides it.

Below "home" it shows the protections that sandboxes of this home have used,
which are now required to start, and those that sandboxes run without.`,
		Example: "  coppice system probe",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Probe(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error { return a.printProbe(w, &res, a.columns()) })
		},
	}
}

// orNone formats a name, or "none".
func orNone(name string) string {
	if name == "" {
		return "none"
	}
	return tty.Clean(name)
}
