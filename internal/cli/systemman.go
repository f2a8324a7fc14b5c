package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/internal/fault"
)

func (a *app) systemMan() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write manual pages to a directory",
		Long: "Write one manual page per command to a directory, which is created if it does\nnot exist, and " +
			"print their names.",
		Example: "  coppice system man ~/.local/share/man/man1",
		Args:    between(1, 1, "a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fault.Wrap(err, "make %s", args[0])
			}
			root := cmd.Root()
			root.InitDefaultHelpFlag()
			var written []string
			for _, c := range family(root) {
				if c.Hidden {
					continue
				}
				c.InitDefaultHelpFlag()
				name := filepath.Join(args[0], strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
				if err := os.WriteFile(name, []byte(page(c)), 0o644); err != nil {
					return fault.Wrap(err, "write the manual")
				}
				written = append(written, name)
			}
			return a.print(map[string]any{"pages": written}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, strings.Join(written, "\n"))
				return err
			})
		},
	}
}

// family returns a command and all below it.
func family(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, family(sub)...)
	}
	return all
}

// roff escapes text, so that no line of it is a request.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

// page returns the manual page of one command. It has no date, so that the output of a program is reproducible.
func page(c *cobra.Command) string {
	var b strings.Builder
	title := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"coppice\" \"Coppice Manual\"\n", strings.ToUpper(roff(title)))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(title), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, ".P\nAlso: %s\n", roff(strings.Join(c.Aliases, ", ")))
	}
	verbatim(&b, "DESCRIPTION", orElse(c.Long, c.Short))
	if c.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, s := range c.Commands() {
			if !s.Hidden {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(s.Name()), roff(s.Short))
			}
		}
	}
	flags(&b, "OPTIONS", c.NonInheritedFlags())
	flags(&b, "GLOBAL OPTIONS", c.InheritedFlags())
	verbatim(&b, "EXIT STATUS", c.Annotations[exits])
	verbatim(&b, "EXAMPLE", c.Example)
	if c.HasParent() {
		b.WriteString(".SH SEE ALSO\n.BR coppice (1)\n")
	}
	return b.String()
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func verbatim(b *strings.Builder, title, text string) {
	if text != "" {
		fmt.Fprintf(b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(text))
	}
}

func flags(b *strings.Builder, title string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		arg, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, ".TP\n.B %s %s\n%s\n", roff(name), roff(arg), roff(usage))
	})
}
