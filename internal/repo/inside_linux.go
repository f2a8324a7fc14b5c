package repo

import (
	"context"
	"os"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Inside is the .git of a sandbox: a repository of its own that borrows the user's objects
// and has the user's branches, tags and remotes as they are now. Submodules that the user
// has initialised have theirs in it.
//
// Configuration is written anew, by a list of what may be in it: what concerns contents and
// the ways of working. No credential, header, helper or command comes along, and no password
// in an address. The user's hooks do: they run inside only. The index is not written.
type Inside struct {
	Branch Ref // HEAD names it
	Commit OID // where it is
	// Objects gives where inside each directory of ObjectDirs is found; one that is not in
	// it is not borrowed.
	Objects map[string]string
	// Moved: files do not have the inodes and owners inside that the index tells of
	// (copied trees, other ids). Git then compares only size and modification time.
	Moved bool
	To    *os.Root // .git: empty, or with an index
}

// Inside writes it. Nothing is flushed.
func (r *Repo) Inside(ctx context.Context, i Inside) error {
	return fault.New(fault.Internal, "not written")
}

// ObjectDirs gives the directories of objects that a sandbox has to see: that of the
// repository, all that it borrows from (its alternates, and theirs), and those of its
// initialised submodules. They are absolute host paths, each once, in an order that does
// not change.
func (r *Repo) ObjectDirs(ctx context.Context) ([]string, error) {
	return nil, fault.New(fault.Internal, "not written")
}
