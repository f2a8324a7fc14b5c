package repo

import (
	"context"
	"os"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Index is the index that git inside is to find for a tree that was checked out. It has
// the stat data of the files as they were written, so that `git status` reads none of them
// where they show the same inode, owner, size and modification time inside (the time of the
// inode does not count, see Inside). Where they show others, git reads them once.
type Index struct {
	Written CheckedOut // by Checkout; nothing of it was changed since
	// Commit is what the index is of: what is staged inside. "" is Written.Commit; another
	// one is for a tree that holds changes on top of it. Files that differ from it have no
	// stat data, so that git looks at them.
	Commit   OID
	Before   []byte   // where Written has a From: the index of From, as Index wrote it
	UID, GID uint32   // who owns the files inside
	To       *os.Root // a .git directory of a layer, in which "index" is not there
}

// Index writes it, mode 0644, with a modification time that is one second after all
// that it tells of and not in the future, so that no entry is "racily clean". Nothing is flushed.
func (r *Repo) Index(ctx context.Context, i Index) error {
	return fault.New(fault.Internal, "not written")
}

var _ = time.Now
