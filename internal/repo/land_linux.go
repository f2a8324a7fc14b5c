package repo

import (
	"context"
	"errors"
	"os"

	"github.com/coppice-dev/coppice/internal/fault"
)

// land applies the result to the branch, and to the work tree if it has the branch checked out. Setting the
// branch is the point of no return: an apply that ends before is reverted.
//
//	step       on the disk                               if killed after it
//	locked     git's lock of the index (Apply)           the lock is removed
//	kept       objects, a private index                  the lock is removed
//	journal    the planned changes                       the lock is removed
//	checked    files of the work tree                    the files are restored
//	indexed    the index                                 files and index are restored
//	moved      the branch                                complete; the locks are removed
//	done       no files of Coppice                       -
func (r *Repo) land(ctx context.Context, d *desk, t target, res result, a Apply) (err error) {
	why := "coppice: apply (" + string(a.Way) + ")"
	if !t.here {
		return r.setRef(ctx, t.ref, res.commit, t.old, why)
	}
	j := journal{Version: journalVersion, Ref: t.ref, Old: t.old, New: res.commit, Tree: res.tree}
	if err := r.writeJournal(j); err != nil {
		return errors.Join(err, r.done())
	}
	r.step("journal")
	if err := r.checkOut(ctx, j, why); err != nil {
		_, back := r.takeBack(context.WithoutCancel(ctx), d, j)
		return errors.Join(err, back)
	}
	return r.done()
}

// checkOut executes the journal.
func (r *Repo) checkOut(ctx context.Context, j journal, why string) error {
	if _, err := r.private(ctx, call{args: []string{"read-tree", "-m", "-u", string(j.Old), string(j.Tree)}}); err != nil {
		if code(err) > 0 {
			return fault.New(fault.Conflict, "git cannot write the files of %s", r.Top).Because(err).
				WithHint("fix what git reports above, then try again")
		}
		return fault.Wrap(err, "write the files of %s", r.Top)
	}
	r.step("checked")
	if err := r.putIndex(); err != nil {
		return err
	}
	r.step("indexed")
	if j.New != "" {
		if err := r.moveRef(ctx, j.Ref, j.New, j.Old, why); err != nil {
			return err
		}
	}
	r.step("moved")
	return nil
}

// private runs the user's git on the private index. Its process holds the lock of applies until it exits, even if
// this process is killed.
func (r *Repo) private(ctx context.Context, c call) ([]byte, error) {
	c.args = append([]string{"-c", "core.fsync=none"}, c.args...)
	c.env = append(c.env, "GIT_INDEX_FILE="+r.Dir+"/"+privateName)
	r.mu.Lock()
	c.files = []*os.File{r.held}
	r.mu.Unlock()
	return r.user(ctx, c)
}
