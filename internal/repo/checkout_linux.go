package repo

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Checkout writes the files of a commit below a directory that nobody else sees yet.
//
// Contents are the bytes of the blobs: no filter runs and no attribute counts, so files
// of LFS are pointers and line ends are as committed. Links are links, files have mode
// 0644 or 0755, directories 0755, whatever the umask is; submodules are empty directories.
// All files and directories that are written have one time, CheckedOut.Time; To itself
// keeps what it has. Nothing is flushed. A commit with a path that git does not check out
// either (`..`, `.git` in any spelling, one path twice) is Invalid; files may have been
// written by then.
type Checkout struct {
	Commit OID
	From   OID      // only what differs from this commit is written; "" is everything
	To     *os.Root // the top of the work tree; it has none of the paths that are written

	// With From: Remove is told of each path that From has and Commit has not, a file or a
	// whole directory; the directories above it are there by then. Hide is told of each
	// directory that was made where From has something else than a directory that goes on:
	// nothing that lies below To's layer may show through it.
	Remove func(path string) error
	Hide   func(path string) error

	Progress func(done, total int64) // files, now and then, by one goroutine at a time; may be nil
}

// CheckedOut is what was written.
type CheckedOut struct {
	Commit, From OID
	Files        int      // files and links
	Bytes        int64    // that they hold
	Submodules   []string // whose directories were made
	// Time is the modification time of all of it, in whole seconds: that of the commit, or,
	// where that is less than two seconds ago or in the future, two seconds before now.
	Time time.Time

	changes []treeChange // that were carried out; Index needs them
}

// Checkout writes them.
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

// settled is how old, at least, files are that nobody could tell from later ones else:
// their time and that of an index that knows them, a second later, are in the past.
const settled = 2 * time.Second

// fileTime is the time that the files of a commit get.
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
	// Git takes a time of 0 for none.
	return time.Unix(max(1, min(unix, r.opt.Now().Add(-settled).Unix())), 0), nil
}
