package repo

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Checkout writes the files of a commit below a directory that no sandbox sees yet.
//
// Contents are the bytes of the blobs: no filter and no attribute applies, so files of LFS are pointers and line ends
// are as committed. Symbolic links are kept; files have mode 0644 or 0755, directories 0755, whatever the umask;
// submodules are empty directories. All written files and directories have the same time, CheckedOut.Time; To itself
// keeps its own. Nothing is flushed. A commit with a path that git does not check out either (`..`, `.git` in any
// spelling, a duplicate path) is Invalid; files may have been written by then.
type Checkout struct {
	Commit OID
	From   OID      // write only differences from this commit; "" writes everything
	To     *os.Root // top of the work tree; it must have none of the written paths

	// If From is set, Remove is called for each path of From that Commit does not have, a file or a whole directory;
	// its parents exist by then. Hide is called for each directory that was made where From has something other than
	// a continued directory: nothing below To's layer may show through it.
	Remove func(path string) error
	Hide   func(path string) error

	Progress func(done, total int64) // number of files; called by one goroutine at a time; may be nil
}

// CheckedOut is the result of a Checkout.
type CheckedOut struct {
	Commit, From OID
	Files        int      // files and links
	Bytes        int64    // that they hold
	Submodules   []string // whose directories were made
	// Time is the modification time of all of it, in whole seconds: the time of the commit, or two seconds before
	// now if that is earlier.
	Time time.Time

	changes []treeChange // that were carried out; Index needs them
}

// Checkout writes the files of a commit.
func (r *Repo) Checkout(ctx context.Context, c Checkout) (got CheckedOut, err error) {
	got = CheckedOut{Commit: c.Commit, From: c.From}
	if got.Time, err = r.fileTime(ctx, c.Commit); err != nil {
		return got, err
	}
	if got.changes, err = r.treeChanges(ctx, c.From, c.Commit); err != nil {
		return got, err
	}
	p := planTree(got.changes)
	w, err := newTreeWriter(c, got.Time, int64(len(p.files)))
	if err != nil {
		return got, fault.Wrap(err, "check out %s", c.Commit)
	}
	defer w.close()
	if err := w.shape(ctx, p); err != nil {
		return got, fault.Wrap(err, "check out %s", c.Commit)
	}
	if err := r.writeFiles(ctx, w, p.files); err != nil {
		return got, fault.Wrap(err, "check out %s", c.Commit)
	}
	if err := w.finish(ctx, p); err != nil {
		return got, fault.Wrap(err, "check out %s", c.Commit)
	}
	got.Files, got.Submodules = len(p.files), p.modules
	for _, f := range p.files {
		got.Bytes += f.stat.size
	}
	return got, nil
}

// settled is the minimum age of file times: they, and the time of an index that lists them, one second later, must be
// in the past, since later changes could not be detected otherwise.
const settled = 2 * time.Second

// fileTime returns the time for the files of a commit.
func (r *Repo) fileTime(ctx context.Context, commit OID) (time.Time, error) {
	out, err := r.user(ctx,
		call{args: []string{"rev-list", "--max-count=1", "--no-commit-header", "--format=%ct", string(commit)}})
	if err != nil {
		return time.Time{}, fault.Wrap(err, "inspect commit %s", commit)
	}
	unix, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		unix = 0
	}
	// Git treats a time of 0 as missing.
	return time.Unix(max(1, min(unix, r.opt.Now().Add(-settled).Unix())), 0), nil
}
