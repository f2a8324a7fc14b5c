package cli

import (
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) systemDF() *cobra.Command {
	return &cobra.Command{
		Use: "df [flags]", Short: "Show disk usage",
		Long: `Show the disk usage of the daemon's home by type, and for each sandbox the size
of the layers that only it has (OWN), of those that it shares with others
(SHARED), and of the changes in its live root (LIVE).

SIZE and LIVE are blocks on the disk (st_blocks of 512 bytes). A file with
several hard links counts once. Blocks that files share, as reflinks do, count
in each file. OWN and SHARED are the contents of finalized layers, as recorded.
RECLAIMABLE is what "coppice system gc" frees, at least. Sandboxes may keep
running.`,
		Example: "  coppice system df\n" +
			"  coppice system df --json",
		Args: between(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			show, done := a.progress()
			res, err := c.DiskUse(ctx, show)
			done()
			if err != nil {
				return err
			}
			if res.Partial {
				a.note("some files could not be read, or were too many, and are not counted")
			}
			return a.print(res, func(w io.Writer) error { return diskUse(w, res) })
		},
	}
}

// diskUse writes a table by type, and one by sandbox if any exists.
func diskUse(w io.Writer, res wire.DiskUse) error {
	var t tty.Table
	t.Row("TYPE", "COUNT", "SIZE", "RECLAIMABLE")
	for _, p := range res.Parts {
		t.Row(tty.Clean(p.Kind), strconv.Itoa(p.Count), tty.Bytes(p.Bytes), tty.Bytes(p.Reclaimable))
	}
	t.Row("total", "", tty.Bytes(res.Bytes), tty.Bytes(res.Reclaimable))
	if err := t.Write(w); err != nil || len(res.Sandboxes) == 0 {
		return err
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	var s tty.Table
	s.Row("SANDBOX", "OWN", "SHARED", "LIVE")
	for _, b := range res.Sandboxes {
		s.Row(tty.Clean(b.Name), tty.Bytes(b.Own), tty.Bytes(b.Shared), tty.Bytes(b.Live))
	}
	return s.Write(w)
}
