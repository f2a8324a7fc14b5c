package repo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/undo"
)

// Way is how commits of a sandbox are applied to a branch.
type Way string

// The ways.
const (
	Squash Way = "squash" // one commit with all changes
	Merge  Way = "merge"  // a merge commit, with the sandbox's own commits as second parent
	Rebase Way = "rebase" // each commit again, in order
	Patch  Way = "patch"  // no commit: changes in the work tree and the index
)

// Apply configures Repo.Apply.
type Apply struct {
	Base, Tip OID // the changes between them are applied; Tip was accepted
	Way       Way
	Onto      Ref      // a branch; "" is the one that is checked out
	Paths     []string // only these and those below them; with Squash and Patch

	Author    Person // of Squash and Merge; zero is the committer
	Committer Person // zero uses the user's configuration
	Message   string // of Squash and Merge
	Trailers  []Trailer

	Trust    []string // paths whose marks were reviewed
	TrustAll bool     // all marks were reviewed

	DryRun bool // compute and check everything but trust, and change nothing
	// Do, if not nil, is called when everything is computed and checked, and nothing has been changed. It calls
	// write, which applies the result, and returns the error of write; or it returns why it did not call it.
	Do func(now Applied, write func() error) error `json:"-"`
}

// Applied is the result of Repo.Apply.
type Applied struct {
	Ref      Ref // "" with Patch
	Old, New OID // commits; with Patch both are the checked out one
	Changes  []Change
	Marks    []Mark // that were trusted; with DryRun all
	Saved    string // the directory of files that the repair of an earlier apply moved away, or ""
}

// Conflicts are the paths that both sides changed. It is the cause of a Conflict.
type Conflicts struct{ Paths []string }

func (c *Conflicts) Error() string { return some(c.Paths) }

// Dirty lists the conflicting paths of the user's work tree. It is the cause of a Conflict.
type Dirty struct{ Paths []string }

func (d *Dirty) Error() string { return some(d.Paths) }

// Untrusted lists marks that were not reviewed. It is the cause of Denied.
type Untrusted struct{ Marks []Mark }

func (u *Untrusted) Error() string {
	var paths []string
	for _, m := range u.Marks {
		paths = append(paths, m.Path)
	}
	return some(slices.Compact(paths))
}

// some lists the first of many paths, without control bytes.
func some(paths []string) string {
	const most = 10
	var b strings.Builder
	for i, p := range paths[:min(len(paths), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(printable(clip(p)))
	}
	if more := len(paths) - most; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// Apply applies the changes of a sandbox. It can be cancelled with ctx until it starts to write. It first
// computes the result, as objects: on a conflict (Conflict), an untrusted mark (Denied), or an obstacle
// (Conflict), nothing is changed. Then it stores the objects, updates the work tree and the index if the branch
// is checked out here, and finally sets the branch, if that has not changed. If it is killed at any point, the
// branch is at the old or the new commit, and the next Apply or Mend brings work tree and index to the state of
// the branch.
//
// The merge itself reads no attributes, so it runs no driver and converts nothing. The user's git writes the
// files of the user's work tree, with the user's filters (LFS, line endings), since git status would show them as
// modified otherwise. A .gitattributes file, even one from the sandbox, only selects among the filters that the
// user's own configuration defines. Every change of one is marked.
func (r *Repo) Apply(ctx context.Context, a Apply) (got Applied, err error) {
	if err := a.check(); err != nil {
		return got, err
	}
	if err := r.sane(ctx, a.Base, a.Tip); err != nil {
		return got, err
	}
	unlock, err := r.lock()
	if err != nil {
		return got, err
	}
	defer unlock()
	if got.Saved, err = r.mend(context.WithoutCancel(ctx)); err != nil {
		return got, err
	}
	t, err := r.target(ctx, a)
	if err != nil {
		return got, err
	}
	d, err := r.desk()
	if err != nil {
		return got, err
	}
	defer d.close(&err)
	res, err := r.compute(ctx, d, a, t)
	if err != nil {
		return got, err
	}
	got.Ref, got.Old, got.New = t.ref, t.old, res.commit
	if a.Way == Patch {
		got.Ref, got.New = "", t.old
	}
	if got.Changes, err = d.changes(ctx, DiffOptions{From: t.old, To: res.tree}); err != nil {
		return got, fault.Wrap(err, "list the changes to apply")
	}
	if len(got.Changes) == 0 && (a.Way != Merge || d.has(ctx, t.old, a.Tip)) {
		return got, fault.New(fault.Invalid, "nothing to apply: %s has all changes already", t.name())
	}
	if got.Marks, err = d.trusted(ctx, a, got.Changes); err != nil {
		return got, err
	}
	var cleanup undo.Stack
	defer cleanup.Run(&err)
	if t.here {
		if err := r.takeIndex(); err != nil {
			return got, err
		}
		cleanup.Push(r.done)
		r.step("locked")
		if err := r.inTheWay(ctx, got.Changes); err != nil {
			return got, err
		}
	}
	if a.DryRun {
		return got, nil
	}
	write := func() error {
		ctx := context.WithoutCancel(ctx)
		if err := r.keep(ctx, d, res.either(), []OID{t.old, a.Tip}); err != nil {
			return err
		}
		r.step("kept")
		cleanup.Release() // land reverts its own changes
		return r.land(ctx, d, t, res, a)
	}
	if a.Do != nil {
		return got, a.Do(got, write)
	}
	return got, write()
}

// check validates the request without the repository.
func (a Apply) check() error {
	switch a.Way {
	case Squash, Merge, Rebase, Patch:
	default:
		return fault.New(fault.Invalid, "unknown way to apply %q", a.Way).WithHint("use squash, merge, rebase or patch")
	}
	if a.Way == Patch && a.Onto != "" {
		return fault.New(fault.Invalid, "cannot apply a patch to a branch: it changes the work tree only").
			WithHint("drop --onto or --patch")
	}
	if len(a.Paths) > 0 && (a.Way == Merge || a.Way == Rebase) {
		return fault.New(fault.Invalid, "cannot apply selected paths by %s: it takes whole commits", a.Way).
			WithHint("use --squash or --patch with --paths")
	}
	for _, p := range a.Paths {
		if why := badPath(p); why != "" {
			return fault.New(fault.Invalid, "cannot apply path %q: %s", clip(p), why)
		}
	}
	for _, p := range []Person{a.Author, a.Committer} {
		if why := p.bad(); p != (Person{}) && why != "" {
			return fault.New(fault.Invalid, "invalid person %q: %s", clip(p.Name), why)
		}
	}
	if a.Way == Squash || a.Way == Merge {
		_, err := message(a.Message, a.Trailers)
		return err
	}
	return nil
}

// target is the branch to apply to.
type target struct {
	ref  Ref // "" where HEAD is detached
	old  OID
	here bool // the work tree has it checked out
}

func (t target) name() string {
	if t.ref == "" {
		return "HEAD"
	}
	return t.ref.Short()
}

// target returns the branch to apply to, and refuses one that another work tree has checked out.
func (r *Repo) target(ctx context.Context, a Apply) (t target, err error) {
	head, err := r.head(ctx)
	if err != nil {
		return t, err
	}
	switch {
	case a.Onto == "" && head.Branch == "" && a.Way != Patch:
		return t, fault.New(fault.Conflict, "no branch is checked out in %s", r.Top).
			WithHint("check one out, or name one with --onto: git switch BRANCH")
	case a.Onto == "" || a.Onto == head.Branch:
		return target{head.Branch, head.Commit, true}, nil
	}
	trees, err := r.checkedOut(ctx)
	if err != nil {
		return t, err
	}
	if at, is := trees[a.Onto]; is {
		return t, fault.New(fault.Conflict, "%s is checked out in %s", a.Onto.Short(), at).
			WithHint("apply it from there: cd %s", at)
	}
	if t.old, err = r.tip(ctx, a.Onto); err == nil && t.old == "" {
		err = fault.New(fault.NotFound, "branch %s not found", a.Onto.Short()).
			WithHint("create it: git branch %s", a.Onto.Short())
	}
	t.ref = a.Onto
	return t, err
}

// has reports whether a commit has other in its history.
func (d *desk) has(ctx context.Context, commit, other OID) bool {
	_, err := d.run(ctx, call{args: []string{"merge-base", "--is-ancestor", string(other), string(commit)}})
	return err == nil
}

// trusted returns the marks of changes, or an error if one was not reviewed.
func (d *desk) trusted(ctx context.Context, a Apply, changes []Change) ([]Mark, error) {
	all, err := d.marks(ctx, changes)
	if err != nil || a.TrustAll || a.DryRun {
		return all, err
	}
	trust := set(a.Trust)
	var not []Mark
	for _, m := range all {
		if !trust[m.Path] {
			not = append(not, m)
		}
	}
	if len(not) > 0 {
		return nil, fault.New(fault.Denied, "the host runs or trusts files among the changes").Because(&Untrusted{not}).
			WithHint("review each of them, then trust it: --trust %s", printable(clip(not[0].Path)))
	}
	return all, nil
}
