package repo

import (
	"context"
	"os"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Checkout writes the files of a commit below a directory that nobody else sees yet.
//
// Contents are the bytes of the blobs: no filter runs and no attribute counts, so files
// of LFS are pointers and line ends are as committed. Links are links, files have mode
// 0644 or 0755, directories 0755, whatever the umask is; submodules are empty directories.
// All files and directories that are written have one time, CheckedOut.Time. Nothing is
// flushed. A commit with a path that git does not check out either (`..`, `.git` in any
// spelling) is Invalid, and then files may have been written.
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

	Progress func(done, total int64) // files; called a few times a second at most, by one goroutine at a time; may be nil
}

// CheckedOut is what was written.
type CheckedOut struct {
	Commit, From OID
	Files        int   // files and links
	Bytes        int64 // that they hold
	Submodules   []string
	// Time is the modification time of all of it, in whole seconds: that of the commit, or,
	// where that is less than two seconds ago or in the future, two seconds before now.
	Time time.Time

	changes []treeChange // that were carried out, in the order of an index; Index needs them
}

// Checkout writes them.
func (r *Repo) Checkout(ctx context.Context, c Checkout) (CheckedOut, error) {
	return CheckedOut{}, fault.New(fault.Internal, "not written")
}

// treeChange is one path that differs, and what the file system says of it once it is written.
type treeChange struct{}
