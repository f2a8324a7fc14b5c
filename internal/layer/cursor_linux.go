package layer

import (
	"context"
	"os"
	"path"
	"strings"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Cursor looks up paths of a view, one after another. It keeps the directories of the last path open, so a lookup
// costs the steps from there and not from the root: lookups in path order open each directory once. The caller closes
// it. It is not safe for concurrent use.
type Cursor struct {
	v  *View
	at []*mdir // the open directories, from the root down; empty before the first use
}

// Cursor returns a cursor at the root of the view.
func (v *View) Cursor() *Cursor { return &Cursor{v: v} }

// Lookup returns the entry at p, which must not be the root. It returns NotFound if there is none.
func (c *Cursor) Lookup(ctx context.Context, p string) (Entry, error) {
	f, err := c.find(ctx, p)
	if err != nil {
		return Entry{}, err
	}
	return f.entry(), nil
}

// Open opens the regular file at p for reading. The caller closes it.
func (c *Cursor) Open(ctx context.Context, p string) (*os.File, error) {
	f, err := c.find(ctx, p)
	if err != nil {
		return nil, err
	}
	return f.openFile()
}

// Close closes everything that is open.
func (c *Cursor) Close() {
	for _, m := range c.at {
		m.close()
	}
	c.at = nil
}

// find returns the entry at p, which is valid until the cursor is used again.
func (c *Cursor) find(ctx context.Context, p string) (*found, error) {
	dir, name := path.Split(path.Clean("/" + p))
	m, err := c.enter(ctx, strings.Split(strings.Trim(dir, "/"), "/"))
	if err != nil {
		return nil, fault.Wrap(err, "open %q", p)
	}
	f, err := m.child(name)
	if err == nil && f == nil {
		err = notFound(p)
	}
	return f, fault.Wrap(err, "read %q", p)
}

// enter moves the cursor to the directory with those names. After an error it is in a directory above that one, or
// unused.
func (c *Cursor) enter(ctx context.Context, names []string) (*mdir, error) {
	if len(c.at) == 0 {
		root, err := c.v.root()
		if err != nil {
			return nil, err
		}
		c.at = []*mdir{root}
	}
	if names[0] == "" {
		names = nil
	}
	common := 0
	for common < len(names) && common+1 < len(c.at) && c.at[common+1].name == names[common] {
		common++
	}
	for len(c.at) > common+1 {
		if err := c.up(ctx); err != nil {
			c.Close()
			return nil, err
		}
	}
	for _, name := range names[common:] {
		if err := c.down(ctx, name); err != nil {
			return nil, err
		}
	}
	return c.at[len(c.at)-1], nil
}

// up moves the cursor to the parent directory.
func (c *Cursor) up(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n := len(c.at) - 1
	err := c.at[n-1].unpark(c.at[n]) // a no-op if it was not parked
	c.at[n].close()
	c.at = c.at[:n]
	return err
}

// down enters a directory. Deep in a tree it parks the parent.
func (c *Cursor) down(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := c.at[len(c.at)-1]
	f, err := m.child(name)
	switch {
	case err != nil:
		return err
	case f == nil:
		return fault.New(fault.NotFound, "%q does not exist in %q", name, m)
	case !dirfd.IsDir(&f.st):
		return fault.New(fault.NotFound, "%q is not a directory", f)
	}
	sub, err := m.sub(f)
	if err != nil {
		return err
	}
	c.at = append(c.at, sub)
	if len(c.at) <= viewHeld {
		return nil
	}
	if err := m.park(sub); err != nil {
		c.Close()
		return err
	}
	return nil
}
