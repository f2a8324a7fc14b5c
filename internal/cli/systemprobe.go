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
			return a.print(res, func(w io.Writer) error {
				p := a.palette()
				var t tty.Table
				t.Row("kernel", tty.Clean(res.Kernel))
				t.Row("user", tty.Clean(res.User))
				t.Row("tier", orNone(res.Tier)+"  (selected by --tier auto)")
				t.Row("driver", orNone(res.Driver)+"  (selected by --driver auto)")
				if err := t.Write(w); err != nil {
					return err
				}
				group := ""
				var rows tty.Table
				for _, it := range res.Items {
					if it.Group != group {
						group = it.Group
						rows.Row("")
						rows.Row(p.Bold(tty.Clean(group)))
					}
					mark := p.Green("yes ")
					switch {
					case it.Unknown:
						mark = p.Red("?   ")
					case !it.OK:
						mark = p.Red("no  ")
					case it.Weak:
						mark = p.Yellow("weak")
					}
					rows.Row("  "+mark+"  "+tty.Clean(it.Name), tty.Clean(it.Detail))
					if it.Remedy != "" {
						rows.Row("        -> " + tty.Clean(it.Remedy))
					}
				}
				return rows.Write(w)
			})
		},
	}
}

// orNone shows a name, or that there is none.
func orNone(name string) string {
	if name == "" {
		return "none"
	}
	return tty.Clean(name)
}
