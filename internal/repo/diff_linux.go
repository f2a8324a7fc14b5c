package repo

import (
	"context"
	"io"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
)

// DiffOptions configures Diff and Patch.
type DiffOptions struct {
	From, To OID      // commits or trees of the repository
	Paths    []string // only these and those below them, literally; none: all
	Renames  bool     // detect renames
	Stat     bool     // count lines
	// Have is a commit or tree: files that it has with the same content and mode as To are left out. "" leaves none
	// out.
	Have OID
}

// args returns the common arguments of git diffs. None of them runs a program or reads an attribute.
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

// Diff returns the changed paths, in git's order, without attributes, textconv or drivers. Invalid: the changes
// exceed the limit, or one can never be applied.
func (r *Repo) Diff(ctx context.Context, o DiffOptions) (changes []Change, err error) {
	changes, _, err = r.DiffPending(ctx, o)
	return changes, err
}

// DiffPending is Diff, and also counts the files that o.Have leaves out.
func (r *Repo) DiffPending(ctx context.Context, o DiffOptions) (changes []Change, had int, err error) {
	d, err := r.desk()
	if err != nil {
		return nil, 0, err
	}
	defer d.close(&err)
	if o, had, err = d.without(ctx, o); err != nil {
		return nil, 0, err
	}
	changes, err = d.changes(ctx, o)
	return changes, had, err
}

// without returns options without Have: From becomes a tree on the desk with the omitted files as To has them. n is the
// number of omitted files. A file is omitted only if Have has it with the same content and mode, or if neither has it;
// of any other file, all changes since From are shown.
func (d *desk) without(ctx context.Context, o DiffOptions) (_ DiffOptions, n int, err error) {
	if o.Have == "" {
		return o, 0, nil
	}
	changed, err := d.changes(ctx, DiffOptions{From: o.From, To: o.To, Paths: o.Paths})
	if err != nil {
		return o, 0, err
	}
	left, err := d.changes(ctx, DiffOptions{From: o.Have, To: o.To, Paths: o.Paths})
	if fault.Is(err, fault.Invalid) {
		// There are too many differences, or one of them can never be applied: nothing is left out.
		o.Have = ""
		return o, 0, nil
	}
	if err != nil {
		return o, 0, err
	}
	differs := make(map[string]bool, len(left))
	for _, c := range left {
		differs[c.Path] = true
	}
	had := slices.DeleteFunc(changed, func(c Change) bool { return differs[c.Path] })
	if o.Have = ""; len(had) == 0 {
		return o, 0, nil
	}
	o.From, err = d.with(ctx, o.From, had)
	return o, len(had), err
}

// changes is Diff, for objects on the desk.
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

// Patch writes the difference as a patch that git applies. Names have no control bytes; contents are unchanged,
// and must be sanitized before they are shown on a terminal. Invalid: the patch exceeds the limit.
func (r *Repo) Patch(ctx context.Context, o DiffOptions, w io.Writer) (err error) {
	d, err := r.desk()
	if err != nil {
		return err
	}
	defer d.close(&err)
	if o, _, err = d.without(ctx, o); err != nil {
		return err
	}
	_, err = d.run(ctx, call{args: o.args("-p", "--binary"), stdout: w, most: d.limits.Patch})
	return fault.Wrap(hostile(err, "git cannot compare the trees"), "write a patch")
}
