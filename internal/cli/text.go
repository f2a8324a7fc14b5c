package cli

import (
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// oneLine returns the first line of an untrusted message, sanitized and truncated to cols.
func oneLine(s string, cols int) string {
	s = strings.TrimSpace(s)
	if first, rest, ok := strings.Cut(s, "\n"); ok && strings.TrimSpace(rest) != "" {
		s = strings.TrimSpace(first) + " ..."
	}
	return tty.Cut(tty.Clean(s), cols)
}

// marks formats the HEAD and tags of a snapshot, as in "(HEAD, good)"; "" if it has neither.
func marks(p tty.Palette, n wire.Snapshot) string {
	var m []string
	if n.Head {
		m = append(m, p.Bold(p.Cyan("HEAD")))
	}
	for _, t := range n.Tags {
		m = append(m, p.Green(tty.Clean(t)))
	}
	if m == nil {
		return ""
	}
	return "(" + strings.Join(m, ", ") + ")"
}

// how describes the cause of a snapshot, and the size of its changes.
func how(n wire.Snapshot) string {
	var parts []string
	switch {
	case n.Cause != "exec":
		parts = append(parts, tty.Clean(n.Cause))
	case n.Exit != nil:
		parts = append(parts, fmt.Sprintf("exit %d", *n.Exit))
	}
	if n.Paths > 0 || n.Bytes > 0 {
		parts = append(parts, tty.Count(n.Paths, "path"))
	}
	if n.Bytes > 0 {
		parts = append(parts, tty.Bytes(n.Bytes))
	}
	return strings.Join(parts, ", ")
}

// changes lists changes one a line, as git status does.
func changes(w io.Writer, p tty.Palette, list []wire.Change) error {
	for _, c := range list {
		name := tty.Quote(c.Name())
		if c.Type == "dir" {
			name += "/"
		}
		line := tty.Clean(c.Kind) + " " + name
		switch c.Kind {
		case wire.Added:
			line = p.Green(line)
		case wire.Removed:
			line = p.Red(line)
		case wire.Modified:
			line = p.Yellow(line)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// cutOff reports that a list of changes is truncated, and how to see the rest.
func (a *app) cutOff(w io.Writer, n int, name, from, to string) error {
	_, err := fmt.Fprintf(w, "\n... only %s shown; to see more, name a path: %s\n", tty.Count(n, "path"),
		strings.Join(strings.Fields(tty.Clean("coppice diff "+name+" "+from+" "+to+" -- PATH")), " "))
	return err
}

// stat writes changes with counts of lines, as git diff --stat does, and a summary.
func stat(w io.Writer, p tty.Palette, list []wire.Change) error {
	var t tty.Table
	kinds := map[string]int{}
	add, del := 0, 0
	for _, c := range list {
		kinds[c.Kind]++
		what := ""
		switch {
		case c.Lines != nil:
			add, del = add+c.Lines.Added, del+c.Lines.Removed
			what = counts(p, c.Lines.Added, c.Lines.Removed)
		case c.Binary:
			what = "binary, " + tty.Bytes(c.Size)
		case c.Type != "" && c.Type != "file":
			what = tty.Clean(c.Type)
		}
		name := tty.Quote(c.Name())
		if c.Type == "dir" {
			name += "/"
		}
		t.Row(tty.Clean(c.Kind)+" "+name, "| "+what)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s changed: %d added, %d removed, %d modified; %s added, %s removed\n",
		tty.Count(len(list), "path"),
		kinds[wire.Added], kinds[wire.Removed], kinds[wire.Modified], tty.Count(add, "line"), tty.Count(del, "line"))
	return err
}

// moved reports the new HEAD.
func (a *app) moved(m wire.MoveResult) error {
	return a.print(m, func(w io.Writer) error {
		if m.Kept != "" {
			a.note("previous state saved as %s", tty.Clean(m.Kept))
		}
		if m.Stopped > 0 {
			a.note("stopped %d running processes", m.Stopped)
		}
		if m.InPlace {
			a.note("%s changed while commands were running", tty.Count(m.Rewritten, "path"))
		}
		if len(m.Resumed) > 0 {
			a.note("%s from memory: %s",
				map[bool]string{true: "resumed this command", false: "resumed these commands"}[len(m.Resumed) == 1],
				tty.Clean(strings.Join(m.Resumed, " ")))
		}
		a.note("HEAD is now at %s  %s", tty.Clean(m.Head), oneLine(m.Message, 0))
		_, err := fmt.Fprintln(w, tty.Clean(m.Head))
		return err
	})
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
