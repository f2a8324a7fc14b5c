package repo

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// settable: a reference is what old says ("" is not there), and no work tree has it checked
// out. Conflict else. It is asked before the work for it is done.
func (r *Repo) settable(ctx context.Context, ref Ref, old OID) error {
	if _, err := ParseRef(string(ref)); err != nil {
		return err
	}
	trees, err := r.checkedOut(ctx)
	if err != nil {
		return err
	}
	if at, is := trees[ref]; is {
		return fault.New(fault.Conflict, "%s is checked out in %s", ref.Short(), at).WithHint("check out another branch there: git -C %s switch -", at)
	}
	now, err := r.tip(ctx, ref)
	if err == nil && now != old {
		err = moved(ref, now, old)
	}
	return err
}

// moved: a reference is not what it was to be.
func moved(ref Ref, now, old OID) *fault.Error {
	return fault.New(fault.Conflict, "%s is %s by now, and was to be %s", ref.Short(), now.orNone(), old.orNone()).
		WithHint("look at it, and try again: git log %s", ref.Short())
}

// setRef sets a reference of the user's repository, if it is what old says ("" is not
// there), with a line in its reflog, and has it on the disk. Conflict where it is not, or
// where a work tree has it checked out.
func (r *Repo) setRef(ctx context.Context, ref Ref, to, old OID, message string) error {
	if err := r.settable(ctx, ref, old); err != nil {
		return err
	}
	return r.moveRef(ctx, ref, to, old, message)
}

// moveRef is setRef, whether it is checked out or not.
func (r *Repo) moveRef(ctx context.Context, ref Ref, to, old OID, message string) error {
	if _, err := ParseRef(string(ref)); err != nil {
		return err
	}
	if message = printable(message); message == "" {
		message = "coppice"
	}
	if to == old {
		return nil
	}
	_, err := r.user(ctx, call{args: []string{"update-ref", "-m", message, "--create-reflog", "--", string(ref), string(to), string(old.orNull(r.Format))}})
	if code(err) > 0 {
		now, _ := r.tip(ctx, ref)
		if now != old {
			return moved(ref, now, old).Because(err)
		}
		return fault.New(fault.Conflict, "git does not set %s", ref.Short()).Because(err).WithHint("see what git says above; a branch called like a part of this one stands in its way")
	}
	if err != nil {
		return fault.Wrap(err, "set %s", ref.Short())
	}
	return fault.Wrap(r.syncRef(ref), "set %s", ref.Short())
}

// orNone is for messages.
func (o OID) orNone() string {
	if o == "" {
		return "not there"
	}
	return string(o)
}

// syncRef has the names of the directories on the disk in which git put a reference.
func (r *Repo) syncRef(ref Ref) error {
	dirs := []string{r.Common, filepath.Join(r.Common, "reftable")}
	at := r.Common
	for part := range strings.SplitSeq(filepath.Dir(string(ref)), "/") {
		at = filepath.Join(at, part)
		dirs = append(dirs, at)
	}
	for _, dir := range dirs {
		if err := syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkedOut gives the branches that work trees have checked out, and where.
func (r *Repo) checkedOut(ctx context.Context) (map[Ref]string, error) {
	out, err := r.user(ctx, call{args: []string{"worktree", "list", "--porcelain", "-z"}})
	if err != nil {
		return nil, fault.Wrap(err, "list the work trees of %s", r.Top)
	}
	return parseWorktrees(string(out)), nil
}
