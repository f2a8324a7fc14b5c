package layer

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Patch writes the differences from a to b as unified diffs with git's headers, each as soon as it is found.
// It uses Paths, Ignore and Timeless of opts. An error may come late: TooLarge if the paths have more than
// limit.PatchBytes.
func Patch(ctx context.Context, w io.Writer, a, b *View, touched []rootspec.Part, opts DiffOptions) error {
	opts = DiffOptions{Paths: opts.Paths, Ignore: opts.Ignore, Timeless: opts.Timeless, Most: math.MaxInt,
		Bytes: limit.PatchBytes, contents: true}
	return EachChange(ctx, a, b, touched, opts, func(c *Change) error {
		return fault.Wrap(c.patch(ctx, w), "patch of %q", cmp.Or(c.b, c.a))
	})
}

// text returns the text of one side of a change: a file's content or a link's target. binary reports that it is not
// text.
func (f *found) text() (text string, binary bool, err error) {
	if f == nil {
		return "", false, nil
	}
	switch f.st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return f.link(), false, nil
	case unix.S_IFREG:
	default:
		return "", false, nil
	}
	if f.st.Size > limit.DiffLines {
		return "", true, nil
	}
	fd, err := f.open()
	if err != nil {
		return "", false, err
	}
	file := os.NewFile(uintptr(fd), f.name)
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, limit.DiffLines+1))
	if err != nil {
		return "", false, err
	}
	binary = bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 || bytes.Count(b, []byte{'\n'}) > limit.DiffLineCount
	return string(b), binary, nil
}

// turn is held while lines are compared, which takes many times the memory of the files: a
// daemon does one such comparison at a time. A nil turn is always free.
type turn chan struct{}

// take waits for the turn. On success, the caller calls give.
func (t turn) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil || t == nil {
		return err
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) give() {
	if t != nil {
		<-t
	}
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
func (c *Change) stat(ctx context.Context) error {
	if !c.a.lines() && !c.b.lines() {
		return nil
	}
	if err := c.turn.take(ctx); err != nil {
		return err
	}
	defer c.turn.give()
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

// lines reports whether the side has lines to count.
func (f *found) lines() bool { return f != nil && dirfd.IsRegular(&f.st) }

// patch writes one change.
func (c *Change) patch(ctx context.Context, w io.Writer) error {
	rel := strings.TrimPrefix(c.Path, "/")
	from, to := quoteName("a/"+rel), quoteName("b/"+rel)
	var head strings.Builder
	fmt.Fprintf(&head, "diff --git %s %s\n", from, to)
	switch {
	case c.a == nil:
		fmt.Fprintf(&head, "new file mode %06o\n", c.b.st.Mode)
		from = "/dev/null"
	case c.b == nil:
		fmt.Fprintf(&head, "deleted file mode %06o\n", c.a.st.Mode)
		to = "/dev/null"
	case c.a.st.Mode != c.b.st.Mode:
		fmt.Fprintf(&head, "old mode %06o\nnew mode %06o\n", c.a.st.Mode, c.b.st.Mode)
	}
	body, err := c.hunks(ctx, from, to)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, head.String()+body)
	return err
}

// hunks returns the part of a patch below its header. It returns the turn before anything is written: the
// reader of the patch may be slow.
func (c *Change) hunks(ctx context.Context, from, to string) (string, error) {
	if err := c.turn.take(ctx); err != nil {
		return "", err
	}
	defer c.turn.give()
	a, b, binary, err := c.texts()
	switch {
	case err != nil:
		return "", err
	case binary:
		if same := c.a != nil && c.b != nil && c.a.st.Size == c.b.st.Size && c.a.st.Size <= limit.DiffLines && a == b; !same {
			return fmt.Sprintf("Binary files %s and %s differ\n", from, to), nil
		}
	case a != b:
		return udiff.ToUnified(from, to, a, udiff.Lines(a, b), 3)
	}
	return "", nil
}

// quoteName writes a name as git does: in double quotes with escapes if it has bytes that would break a line.
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
