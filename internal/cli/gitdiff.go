package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// gitForm is how a difference in a repository is shown.
type gitForm struct {
	stat, names, status bool
	color               string
	noPager             bool
	pending             bool // leave out files that the branch already has
}

// gitDiff shows the changes of a sandbox, or of a pulled proposal, in its repository.
func (a *app) gitDiff(ctx context.Context, of reviewed, r *wire.Repo, paths []string, form gitForm) error {
	req := wire.GitDiffRequest{Stat: form.stat || a.json, Pending: form.pending}
	var err error
	if req.Paths, err = inRepo(r.Top, paths); err != nil {
		return err
	}
	res, err := of.diff(ctx, req)
	if err != nil {
		return err
	}
	if a.json {
		return a.print(res, nil)
	}
	for _, s := range res.Skipped {
		a.note("skipped: %s: %s", tty.Quote(s.Name()), tty.Clean(s.Why))
	}
	if err := a.noteApplied(ctx, of, req, res); err != nil {
		return err
	}
	if len(res.Changes) == 0 {
		return nil
	}
	return a.paged(ctx, form, func(w io.Writer, p tty.Palette, shown bool) error {
		var err error
		switch {
		case form.names || form.status:
			return gitNames(w, p, res.Changes, nil, form.status)
		case form.stat:
			err = gitStat(w, p, res.Changes, res.Marks)
		default:
			req.Work, req.Onto = res.Work, res.Onto
			if !shown {
				err = of.patch(ctx, req, w)
				break
			}
			pw := &gitLines{lines: lines{w: w, p: p}, marks: marksBefore(res)}
			if err = of.patch(ctx, req, pw); err == nil {
				err = pw.flush()
			}
		}
		if err != nil {
			return err
		}
		if !shown && !form.stat { // a patch is for git, so remarks go to stderr
			w = a.stderr
			if a.quiet {
				w = io.Discard
			}
		}
		return gitMarks(w, p, res.Marks)
	})
}

// noteApplied notes how many files the branch already has as the sandbox has them. By default they are shown too: a
// review without them may be of another branch than the one to which the changes are applied.
func (a *app) noteApplied(ctx context.Context, of reviewed, req wire.GitDiffRequest, res wire.GitDiff) error {
	format := "not shown: %s that %s already has as the sandbox has them"
	if !req.Pending {
		if a.quiet || len(res.Changes) == 0 {
			return nil
		}
		// Work is the commit that was shown, so that the sandbox is not captured again.
		req.Pending, req.Stat, req.Work = true, false, res.Work
		var err error
		if res, err = of.diff(ctx, req); err != nil {
			return err
		}
		format = "%s are already on %s as in the sandbox; to leave them out, add --pending"
	}
	if res.Applied > 0 {
		a.note(format, tty.Count(res.Applied, "file"), cmp.Or(tty.Clean(res.Branch), "HEAD"))
	}
	return nil
}

// inRepo resolves paths against the top of a work tree, as git does: from the current directory if it is in the work
// tree, and otherwise from the top.
func inRepo(top string, paths []string) ([]string, error) {
	from := ""
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(top, wd); err == nil && filepath.IsLocal(rel) {
			from = rel
		}
	}
	var out []string
	for _, p := range paths {
		rel := filepath.Join(from, p)
		if filepath.IsAbs(p) {
			var err error
			if rel, err = filepath.Rel(top, filepath.Clean(p)); err != nil {
				return nil, usagef("%q: %s", p, err)
			}
		}
		switch {
		case rel == ".":
			return nil, nil
		case !filepath.IsLocal(rel):
			return nil, &usageError{msg: fmt.Sprintf("%q is not in the repository %s", p, top),
				hint: "for files outside of it: coppice diff --files"}
		}
		out = append(out, filepath.ToSlash(rel))
	}
	return out, nil
}

// gitNames lists changes, one a line, with or without their status.
func gitNames(w io.Writer, p tty.Palette, list []wire.GitChange, marks []wire.GitMark, status bool) error {
	marked := marksOf(marks)
	for _, c := range list {
		line := tty.Quote(c.Name())
		if status {
			line = tty.Clean(c.Status) + "\t"
			if c.Old != "" {
				line += tty.Quote(c.OldName()) + "\t"
			}
			line += tty.Quote(c.Name())
		}
		switch c.Status {
		case "A":
			line = p.Green(line)
		case "D":
			line = p.Red(line)
		}
		if _, err := fmt.Fprintln(w, line+suffix(p, marked, c)); err != nil {
			return err
		}
	}
	return nil
}

// marksOf returns the kinds of marks by path.
func marksOf(marks []wire.GitMark) map[string][]string {
	out := map[string][]string{}
	for _, m := range marks {
		out[m.Name()] = append(out[m.Name()], tty.Clean(m.Kind))
	}
	return out
}

// suffix returns the marks of a change.
func suffix(p tty.Palette, marked map[string][]string, c wire.GitChange) string {
	kinds := marked[c.Name()]
	if c.Old != "" {
		kinds = append(kinds[:len(kinds):len(kinds)], marked[c.OldName()]...)
	}
	if len(kinds) == 0 {
		return ""
	}
	return "  " + p.Bold(p.Yellow("! "+strings.Join(kinds, ", ")))
}

// gitStat writes changes with counts of lines, as git diff --stat does.
func gitStat(w io.Writer, p tty.Palette, list []wire.GitChange, marks []wire.GitMark) error {
	marked := marksOf(marks)
	var t tty.Table
	add, del := 0, 0
	for _, c := range list {
		name := tty.Quote(c.Name())
		if c.Old != "" {
			name = tty.Quote(c.OldName()) + " => " + name
		}
		what := "binary"
		if !c.Binary {
			add, del = add+c.Added, del+c.Deleted
			what = counts(p, c.Added, c.Deleted)
		}
		t.Row(name, "| "+what+suffix(p, marked, c))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s changed; %s added, %s deleted\n", tty.Count(len(list), "file"), tty.Count(add, "line"),
		tty.Count(del, "line"))
	return err
}

// counts formats the numbers of added and deleted lines.
func counts(p tty.Palette, added, deleted int) string {
	var s []string
	if added > 0 {
		s = append(s, p.Green(fmt.Sprintf("+%d", added)))
	}
	if deleted > 0 {
		s = append(s, p.Red(fmt.Sprintf("-%d", deleted)))
	}
	return strings.Join(s, " ")
}

// gitMarks lists the files that the host may later run or trust.
func gitMarks(w io.Writer, p tty.Palette, marks []wire.GitMark) error {
	if len(marks) == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", p.Bold(p.Yellow("Files that the host may later run or trust:"))); err != nil {
		return err
	}
	for _, m := range marks {
		if _, err := fmt.Fprintf(w, "  %s: %s: %s\n", tty.Quote(m.Name()), p.Yellow(tty.Clean(m.Kind)),
			tty.Clean(m.Why)); err != nil {
			return err
		}
	}
	return nil
}

// marksBefore returns the remarks to print before each file of a patch, by the first line of the file in the patch.
func marksBefore(res wire.GitDiff) map[string][]string {
	by := map[string][]wire.GitMark{}
	for _, m := range res.Marks {
		by[m.Name()] = append(by[m.Name()], m)
	}
	out := map[string][]string{}
	for _, c := range res.Changes {
		old := c.Name()
		if c.Old != "" {
			old = c.OldName()
		}
		var say []string
		for _, m := range by[c.Name()] {
			say = append(say, fmt.Sprintf("! %s: %s", tty.Clean(m.Kind), tty.Clean(m.Why)))
		}
		if old != c.Name() {
			for _, m := range by[old] {
				say = append(say, fmt.Sprintf("! %s: %s", tty.Clean(m.Kind), tty.Clean(m.Why)))
			}
		}
		if say != nil {
			out["diff --git "+gitName("a/"+old)+" "+gitName("b/"+c.Name())] = say
		}
	}
	return out
}

// gitName quotes a path as git does in the header of a patch.
func gitName(p string) string {
	const named = "\a\b\t\n\v\f\r\"\\"
	plain := true
	var b strings.Builder
	for i := range len(p) {
		switch at := strings.IndexByte(named, p[i]); {
		case at >= 0:
			plain = false
			b.WriteByte('\\')
			b.WriteByte(`abtnvfr"\`[at])
		case p[i] < ' ' || p[i] >= 0x7f:
			plain = false
			fmt.Fprintf(&b, `\%03o`, p[i])
		default:
			b.WriteByte(p[i])
		}
	}
	if plain {
		return p
	}
	return `"` + b.String() + `"`
}

// gitLines writes lines, with remarks before marked files. A line of content is never taken for the header of a file,
// because it begins with a sign.
type gitLines struct {
	lines
	marks map[string][]string
	rest  []byte
}

func (g *gitLines) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, more, ok := bytes.Cut(b, []byte("\n"))
		g.rest = append(g.rest, line...)
		if !ok {
			return n, nil
		}
		if err := g.whole(); err != nil {
			return 0, err
		}
		b = more
	}
}

func (g *gitLines) whole() error {
	for _, say := range g.marks[string(g.rest)] {
		if _, err := fmt.Fprintln(g.w, g.p.Bold(g.p.Yellow(say))); err != nil {
			return err
		}
	}
	_, err := g.lines.Write(append(g.rest, '\n'))
	g.rest = g.rest[:0]
	return err
}

func (g *gitLines) flush() error {
	if len(g.rest) == 0 {
		return nil
	}
	return g.whole()
}
