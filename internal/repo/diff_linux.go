package repo

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/internal/fault"
)

// DiffOptions configures Diff and Patch.
type DiffOptions struct {
	From, To OID      // commits or trees of the repository
	Paths    []string // only these and what is below them, literally; none is all
	Renames  bool     // find what was renamed
	Stat     bool     // count lines
}

// args are the arguments of git's that all differences have. Nothing of them runs a
// program or reads an attribute.
func (o DiffOptions) args(form ...string) []string {
	args := append(
		[]string{"diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "--full-index",
			"--ignore-submodules=none"}, form...)
	if o.Renames {
		args = append(args, "-M")
	} else {
		args = append(args, "--no-renames")
	}
	return append(append(args, "--end-of-options", string(o.From), string(o.To), "--"), o.Paths...)
}

// Diff returns the changed paths, in git's order, without attributes, textconv or drivers. Invalid: there are more
// than the limit, or one can never be applied.
func (r *Repo) Diff(ctx context.Context, o DiffOptions) (changes []Change, err error) {
	d, err := r.desk()
	if err != nil {
		return nil, err
	}
	defer d.close(&err)
	return d.changes(ctx, o)
}

// changes is Diff, of what may lie on the desk.
func (d *desk) changes(ctx context.Context, o DiffOptions) ([]Change, error) {
	form := []string{"-z", "--raw"}
	if o.Stat {
		form = append(form, "--numstat")
	}
	raw := &rawReader{most: d.limits.Changes}
	if err := d.records(ctx, call{args: o.args(form...), most: 16 << 30}, 0, raw.record); err != nil {
		return nil, hostile(err, "git cannot compare the trees")
	}
	return raw.changes, raw.end()
}

// Patch writes the difference as a patch that git applies. Names have no control bytes; contents are unchanged, and
// must be sanitized before they are shown on a terminal. Invalid: it is longer than the limit.
func (r *Repo) Patch(ctx context.Context, o DiffOptions, w io.Writer) (err error) {
	d, err := r.desk()
	if err != nil {
		return err
	}
	defer d.close(&err)
	_, err = d.run(ctx, call{args: o.args("-p", "--binary"), stdout: w, most: d.limits.Patch})
	return fault.Wrap(hostile(err, "git cannot compare the trees"), "write a patch")
}
