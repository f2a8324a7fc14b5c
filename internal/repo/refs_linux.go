package repo

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// settable returns a Conflict if a reference does not have the value old ("" means missing), or a work tree has
// it checked out. Callers check before they do the work for the reference.
func (r *Repo) settable(ctx context.Context, ref Ref, old OID) error {
	if _, err := ParseRef(string(ref)); err != nil {
		return err
	}
	trees, err := r.checkedOut(ctx)
	if err != nil {
		return err
	}
	if at, is := trees[ref]; is {
		return fault.New(fault.Conflict, "%s is checked out in %s", ref.Short(), at).
			WithHint("check out another branch there: git -C %s switch -", at)
	}
	now, err := r.tip(ctx, ref)
	if err == nil && now != old {
		err = moved(ref, now, old)
	}
	return err
}

// moved is the Conflict for a reference without its expected value.
func moved(ref Ref, now, old OID) *fault.Error {
	return fault.New(fault.Conflict, "%s has changed to %s, expected %s", ref.Short(), now.orNone(), old.orNone()).
		WithHint("review it, then try again: git log %s", ref.Short())
}

// setRef sets a reference of the user's repository durably if it has the value old ("" means missing), with a
// line in its reflog. Conflict: it has another value, or a work tree has it checked out.
func (r *Repo) setRef(ctx context.Context, ref Ref, to, old OID, message string) error {
	if err := r.settable(ctx, ref, old); err != nil {
		return err
	}
	return r.moveRef(ctx, ref, to, old, message)
}

// moveRef is setRef without the check for work trees.
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
	// A git process that is killed here leaves its lock of the reference.
	_, err := r.user(context.WithoutCancel(ctx),
		call{args: []string{"update-ref", "-m", message, "--create-reflog", "--", string(ref), string(to),
			string(old.orNull(r.Format))}})
	if code(err) > 0 {
		now, _ := r.tip(ctx, ref)
		if now != old {
			return moved(ref, now, old).Because(err)
		}
		if werr := unix.Access(filepath.Join(r.Common, "refs"), unix.W_OK); werr != nil {
			return fault.New(fault.Denied, "cannot write to the repository %s: %v", r.Common, werr).
				WithHint("make it writable, or do without it: coppice create --no-repo")
		}
		return fault.New(fault.Conflict, "git cannot set %s", ref.Short()).Because(err).
			WithHint("see what git reports above; a branch whose name is a prefix of this one is in the way")
	}
	if err != nil {
		return fault.Wrap(err, "set %s", ref.Short())
	}
	return fault.Wrap(r.syncRef(ref), "set %s", ref.Short())
}

// orNone returns the ID, or "missing", for messages.
func (o OID) orNone() string {
	if o == "" {
		return "missing"
	}
	return string(o)
}

// syncRef flushes the directories in which git created a reference.
func (r *Repo) syncRef(ref Ref) error {
	dirs := []string{r.Common, filepath.Join(r.Common, "reftable")}
	at := r.Common
	for part := range strings.SplitSeq(filepath.Dir(string(ref)), "/") {
		at = filepath.Join(at, part)
		dirs = append(dirs, at)
	}
	for _, dir := range dirs {
		if err := vfs.Sync(r.opt.FS, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkedOut returns the branches that work trees have checked out, and where.
func (r *Repo) checkedOut(ctx context.Context) (map[Ref]string, error) {
	out, err := r.user(ctx, call{args: []string{"worktree", "list", "--porcelain", "-z"}})
	if err != nil {
		return nil, fault.Wrap(err, "list the work trees of %s", r.Top)
	}
	return parseWorktrees(string(out)), nil
}

// SetRef sets a reference durably if it has the value old ("" means missing), with a line in its reflog.
// Conflict: it has another value, or it is checked out in a work tree.
func (r *Repo) SetRef(ctx context.Context, ref Ref, to, old OID, message string) error {
	return r.setRef(ctx, ref, to, old, message)
}

// Refs returns the references at or below a name. With a trailing slash it excludes the name itself.
func (r *Repo) Refs(ctx context.Context, below Ref) (map[Ref]OID, error) {
	if _, err := ParseRef(string(below)); err != nil {
		return nil, err
	}
	out, err := r.user(ctx, call{args: []string{"for-each-ref", "--format=%(objectname) %(refname)", "--", string(below)}})
	if err != nil {
		return nil, fault.Wrap(err, "list the references below %s", below)
	}
	all := map[Ref]OID{}
	for l := range strings.Lines(string(out)) {
		hex, name, _ := strings.Cut(strings.TrimSuffix(l, "\n"), " ")
		id, err := ParseOID(hex)
		if err != nil {
			return nil, err
		}
		all[Ref(name)] = id
	}
	return all, nil
}

// DropRefs deletes the references at or below a name. It is not an error if there are none.
func (r *Repo) DropRefs(ctx context.Context, below Ref) error {
	all, err := r.Refs(ctx, below)
	if err != nil || len(all) == 0 {
		return err
	}
	var list strings.Builder
	for ref, id := range all {
		list.WriteString("delete " + string(ref) + " " + string(id) + "\n")
	}
	_, err = r.user(ctx, call{args: []string{"update-ref", "--stdin"}, stdin: strings.NewReader(list.String())})
	if err != nil {
		return fault.Wrap(err, "delete the references below %s", below)
	}
	return fault.Wrap(r.syncRef(below+"/x"), "delete the references below %s", below)
}
