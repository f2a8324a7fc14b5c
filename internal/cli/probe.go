package cli

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// printProbe prints what the host supports, for people. Details are wrapped at columns, the width of the terminal.
// Remedies are not wrapped, so that a command can be copied.
func (a *app) printProbe(w io.Writer, res *wire.ProbeReport, columns int) error {
	p := a.palette()
	var t tty.Table
	t.Row("kernel", tty.Clean(res.Kernel))
	t.Row("user", tty.Clean(res.User))
	t.Row("tier", autoTier(res))
	t.Row("driver", orNone(res.Driver)+"  (selected by --driver auto)")
	if err := t.Write(w); err != nil {
		return err
	}
	names := 0
	for _, it := range res.Items {
		names = max(names, len(tty.Clean(it.Name)))
	}
	left := 2 + len("weak") + 2 + names + 2
	var b strings.Builder
	group := ""
	for _, it := range res.Items {
		if it.Group != group {
			group = it.Group
			fmt.Fprintf(&b, "\n%s\n", p.Bold(tty.Clean(group)))
		}
		line := fmt.Sprintf("  %s  %-*s", probeMark(p, it), names, tty.Clean(it.Name))
		for i, part := range tty.Wrap(tty.Clean(it.Detail), columns-left) {
			if i > 0 {
				line = strings.Repeat(" ", left-2)
			}
			fmt.Fprintf(&b, "%s  %s\n", line, part)
		}
		if it.Detail == "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		if it.Remedy != "" {
			fmt.Fprintf(&b, "        -> %s\n", tty.Clean(it.Remedy))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// autoTier formats the tier that auto selects.
func autoTier(res *wire.ProbeReport) string {
	switch {
	case res.Tier != "":
		return tty.Clean(res.Tier) + "  (selected by --tier auto)"
	case slices.ContainsFunc(res.Items, func(it wire.ProbeItem) bool { return it.Group == "tiers" && it.Unknown }):
		return "unknown"
	}
	return "none that confines  (--tier auto selects workspace, unless a policy or a flag requires more)"
}

// probeMark formats the state of an item, four columns wide.
func probeMark(p tty.Palette, it wire.ProbeItem) string {
	switch {
	case it.Unknown:
		return p.Red("?   ")
	case !it.OK:
		return p.Red("no  ")
	case it.Weak:
		return p.Yellow("weak")
	}
	return p.Green("yes ")
}

// columns returns the width of the terminal on stdout. If stdout is not a terminal, the width is unlimited: programs
// that read a pipe or file by lines get each item on one line.
func (a *app) columns() int {
	if cols, _, ok := tty.Size(a.stdout); ok && cols > 0 {
		return cols
	}
	return math.MaxInt16
}
