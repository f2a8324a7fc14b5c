package repo

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Index is the index for a checked out tree, for git inside. It has the stat data of the files as they were written,
// so that `git status` reads none of them if they have the same inode, owner, size and modification time inside
// (ctime is ignored, see Inside). Otherwise git reads them once.
type Index struct {
	Written CheckedOut // by Checkout; its files are unchanged
	// Commit is the commit that the index matches: what is staged inside. "" is Written.Commit; use another one for a
	// tree with changes on top. Files that differ from it have no stat data, so that git compares their contents.
	Commit   OID
	Before   []byte   // if Written has a From: the index of From, as Index wrote it
	UID, GID uint32   // owner of the files inside
	To       *os.Root // a .git directory without an index
}

// Index writes the index, mode 0644. Its own modification time is one second after all times in it and not in the
// future, so that git never takes an entry for "racily clean". Nothing is flushed.
func (r *Repo) Index(ctx context.Context, i Index) error {
	x, err := r.indexOf(ctx, i)
	if err != nil {
		return fault.Wrap(err, "create the index of %s", i.Written.Commit)
	}
	data, err := x.encode(ctx, r.Format)
	if err == nil {
		err = writeIndex(i.To, data, x.after(i.Written.Time))
	}
	return fault.Wrap(err, "write the index of %s", i.Written.Commit)
}

// indexOf computes the index.
func (r *Repo) indexOf(ctx context.Context, i Index) (*index, error) {
	x := &index{}
	if i.Written.From != "" {
		var err error
		if x, err = parseIndex(ctx, r.Format, i.Before); err != nil {
			return nil, err
		}
	}
	top, err := r.treeOf(ctx, i.Written.Commit)
	if err != nil {
		return nil, err
	}
	x, err = x.apply(ctx, i.Written.changes, top, i.UID, i.GID)
	if err != nil || i.Commit == "" || i.Commit == i.Written.Commit {
		return x, err
	}
	changes, err := r.treeChanges(ctx, i.Written.Commit, i.Commit)
	if err != nil {
		return nil, err
	}
	if top, err = r.treeOf(ctx, i.Commit); err != nil {
		return nil, err
	}
	return x.apply(ctx, changes, top, i.UID, i.GID)
}

// after returns the time one second after the last time in the index.
func (x *index) after(t time.Time) time.Time {
	last := uint32(t.Unix())
	for i := range x.entries {
		last = max(last, x.entries[i].stat.mtime)
	}
	return time.Unix(int64(last)+1, 0)
}

// treeOf returns the tree of a commit.
func (r *Repo) treeOf(ctx context.Context, commit OID) (OID, error) {
	out, err := r.user(ctx,
		call{args: []string{"rev-parse", "-q", "--verify", "--end-of-options", string(commit) + "^{tree}"}})
	if err != nil {
		return "", fault.Wrap(err, "find the tree of %s", commit)
	}
	return ParseOID(strings.TrimSpace(string(out)))
}

func writeIndex(to *os.Root, data []byte, t time.Time) error {
	f, err := to.OpenFile("index", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return to.Chtimes("index", t, t)
}

// statOf converts stat data for the index.
func statOf(st *unix.Stat_t) stat {
	return stat{mtime: uint32(st.Mtim.Sec), ctime: uint32(st.Ctim.Sec), ctimeNsec: uint32(st.Ctim.Nsec),
		ino: uint32(st.Ino), size: st.Size}
}
