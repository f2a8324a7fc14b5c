package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Size of a terminal that fits the output of --help. If the whole page, which "coppice help COMMAND" prints, is
// longer, --help prints an extract that refers to that command.
const (
	pageLines   = 40
	pageColumns = 80
)

// helpTemplate is the template of the whole page.
const helpTemplate = `{{with or .Long .Short}}{{. | trimTrailingWhitespaces}}

{{end}}Usage:
  {{.UseLine}}
{{if .Aliases}}
Aliases:
  {{.NameAndAliases}}
{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{range $g := .Groups}}
{{.Title}}
{{range $cmds}}{{if and (eq .GroupID $g.ID) .IsAvailableCommand}}  {{rpad .Name 12}}{{.Short}}
{{end}}{{end}}{{end}}{{if not .Groups}}
Commands:
{{range $cmds}}{{if .IsAvailableCommand}}  {{rpad .Name 12}}{{.Short}}
{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}
Flags:
{{.LocalFlags.FlagUsagesWrapped 80 | trimTrailingWhitespaces}}
{{end}}{{if .HasAvailableInheritedFlags}}
Global flags:
{{.InheritedFlags.FlagUsagesWrapped 80 | trimTrailingWhitespaces}}
{{end}}{{with index .Annotations "exits"}}
Exit codes:
{{.}}
{{end}}{{if .HasExample}}
Example:
{{.Example}}
{{end}}`

// wholePage returns the help of cmd.
func wholePage(cmd *cobra.Command) string {
	var b strings.Builder
	out := cmd.OutOrStdout()
	cmd.SetOut(&b)
	defer cmd.SetOut(out)
	_ = cmd.UsageFunc()(cmd) // a strings.Builder never fails
	return b.String()
}

// helpPage returns the output of --help for cmd, given the whole page.
func helpPage(cmd *cobra.Command, whole string) string {
	if strings.Count(whole, "\n") <= pageLines {
		return whole
	}
	if !cmd.HasParent() {
		return rootPage(cmd)
	}
	var b strings.Builder
	lead, _, _ := strings.Cut(cmd.Long, "\n\n")
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s\n\n", lead, cmd.UseLine())
	if first, _, _ := strings.Cut(cmd.Example, "\n"); first != "" {
		fmt.Fprintf(&b, "Example:\n%s\n\n", first)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("Commands:\n")
		writeCommands(&b, cmd.Commands(), "")
	}
	rest := "For details and exit codes see: coppice help" + strings.TrimPrefix(cmd.CommandPath(), "coppice") + "\n"
	flagSummary(&b, cmd.LocalFlags(), pageLines-strings.Count(b.String(), "\n")-2)
	return b.String() + "\n" + rest
}

// rootPage returns the list of all commands.
func rootPage(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString("Usage: coppice COMMAND; see also: coppice help; coppice help COMMAND\n")
	for _, g := range cmd.Groups() {
		b.WriteString(g.Title + "\n")
		writeCommands(&b, cmd.Commands(), g.ID)
	}
	return b.String()
}

// writeCommands lists the commands of a group.
func writeCommands(b *strings.Builder, cmds []*cobra.Command, group string) {
	for _, c := range cmds {
		if c.IsAvailableCommand() && c.GroupID == group {
			fmt.Fprintf(b, "  %-12s%s\n", c.Name(), c.Short)
		}
	}
}

// flagSummary prints the first flags on one line each, at most lines, and then the names of the others.
func flagSummary(b *strings.Builder, flags *pflag.FlagSet, lines int) {
	type flag struct{ name, text string }
	var all []flag
	widest, named := 0, 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, text := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + kind)
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		text, _, _ = strings.Cut(text, "; ")
		all = append(all, flag{name, text})
		widest = max(widest, len(name))
		named += len(name) + 2
	})
	described := len(all)
	if room := lines - 1; described > room {
		described = max(0, room-1-(named+pageColumns-20)/(pageColumns-20))
	}
	b.WriteString("Flags:\n")
	for _, f := range all[:described] {
		line := fmt.Sprintf("  %-*s  %s", widest, f.name, f.text)
		if len(line) > pageColumns {
			line = line[:pageColumns-3] + "..."
		}
		b.WriteString(line + "\n")
	}
	if described == len(all) {
		return
	}
	line := "Also:"
	for i, f := range all[described:] {
		word := " " + f.name
		if i < len(all)-described-1 {
			word += ","
		}
		if len(line)+len(word) > pageColumns {
			b.WriteString(line + "\n")
			line = "     "
		}
		line += word
	}
	b.WriteString(line + "\n")
}
