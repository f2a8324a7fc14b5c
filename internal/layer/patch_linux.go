package layer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// maxDiffSize is the size up to which a file is compared by lines. A larger one
// counts as binary.
const maxDiffSize = 8 << 20

// Patch writes how b differs from a as unified diffs with git's headers. paths
// chooses as in DiffOptions.
func Patch(ctx context.Context, w io.Writer, a, b *View, touched []rootspec.Part, paths []string) error {
	list, err := Changes(ctx, a, b, touched, DiffOptions{Paths: paths})
	if err != nil {
		return err
	}
	for i := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := list[i].patch(w); err != nil {
			return fault.Wrap(err, "patch of %q", list[i].Path)
		}
	}
	return nil
}

// text reads what a side has as the text that a patch compares: a file's
// content, a link's target. binary is set when it is not text.
func (s *side) text() (text string, binary bool, err error) {
	if s == nil {
		return "", false, nil
	}
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return s.Link, false, nil
	case unix.S_IFREG:
	default:
		return "", false, nil
	}
	if s.Size > maxDiffSize {
		return "", true, nil
	}
	f, err := s.view.Open(s.Path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDiffSize+1))
	if err != nil {
		return "", false, err
	}
	return string(b), bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0, nil
}

func (c *Change) texts() (a, b string, binary bool, err error) {
	a, ba, err := c.a.text()
	if err != nil {
		return "", "", false, err
	}
	b, bb, err := c.b.text()
	return a, b, ba || bb, err
}

// stat counts the changed lines.
func (c *Change) stat() error {
	if !c.a.lines() && !c.b.lines() {
		return nil
	}
	a, b, binary, err := c.texts()
	if err != nil || binary {
		c.Binary = binary
		return err
	}
	u, err := udiff.ToUnifiedDiff("a", "b", a, udiff.Lines(a, b), 0)
	if err != nil {
		return err
	}
	c.Lines = &Lines{}
	for _, h := range u.Hunks {
		for _, l := range h.Lines {
			switch l.Kind {
			case udiff.Insert:
				c.Lines.Added++
			case udiff.Delete:
				c.Lines.Removed++
			}
		}
	}
	return nil
}

// lines says whether the side has lines to count.
func (s *side) lines() bool { return s != nil && s.Mode&unix.S_IFMT == unix.S_IFREG }

// patch writes one change.
func (c *Change) patch(w io.Writer) error {
	if c.Type == "dir" && (c.a == nil || c.b == nil) {
		return nil // a patch has no directories
	}
	rel := strings.TrimPrefix(c.Path, "/")
	from, to := quoteName("a/"+rel), quoteName("b/"+rel)
	var head strings.Builder
	fmt.Fprintf(&head, "diff --git %s %s\n", from, to)
	switch {
	case c.a == nil:
		fmt.Fprintf(&head, "new file mode %06o\n", c.b.Mode)
		from = "/dev/null"
	case c.b == nil:
		fmt.Fprintf(&head, "deleted file mode %06o\n", c.a.Mode)
		to = "/dev/null"
	case c.a.Mode != c.b.Mode:
		fmt.Fprintf(&head, "old mode %06o\nnew mode %06o\n", c.a.Mode, c.b.Mode)
	}
	a, b, binary, err := c.texts()
	if err != nil {
		return err
	}
	var body string
	switch {
	case binary:
		if same := c.a != nil && c.b != nil && c.a.Size == c.b.Size && c.a.Size <= maxDiffSize && a == b; !same {
			body = fmt.Sprintf("Binary files %s and %s differ\n", from, to)
		}
	case a != b:
		if body, err = udiff.ToUnified(from, to, a, udiff.Lines(a, b), 3); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, head.String()+body)
	return err
}

// quoteName writes a name as git does: in double quotes with escapes when it
// holds bytes that would spoil a line.
func quoteName(name string) string {
	plain := utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r < ' ' || r >= 0x7f && r < 0xa0 || r == '"' || r == '\\'
	})
	if plain {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		switch c := name[i]; {
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
