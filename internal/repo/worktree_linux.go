package repo

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
)

// WorkTree makes a commit on HEAD of what is not committed in the user's own work tree:
// what `git add -A` would take, with the user's filters and ignore rules. Nothing of the
// user's index or files changes. The commit's objects are in the repository, on the disk,
// and no reference holds them: the caller sets one. It is HEAD's commit where nothing
// differs. Repositories within, which git does not track, are left out and told.
//
// An index with a conflict that is not resolved is a Conflict.
func (r *Repo) WorkTree(ctx context.Context) (OID, []Skipped, error) {
	return "", nil, fault.New(fault.Internal, "not written")
}
