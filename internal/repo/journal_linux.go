package repo

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// An apply that changes a work tree has three files in its git directory, and a flock on the directory itself.
// Every git process that the apply starts also holds the lock: while one of them runs, no other process can apply
// or mend.
const (
	journalName = "coppice-apply"       // the journal; exists from the first change to the last
	privateName = "coppice-apply.index" // the future index
	savedName   = "coppice-saved"       // files of the user that were in the way of a repair
	indexName   = "index"
	lockName    = "index.lock" // git's own; with lockText in it, it is Coppice's
	lockText    = "coppice git apply\n"
)

// journal describes what an apply does to a work tree.
type journal struct {
	Version int `json:"version"`
	Ref     Ref `json:"ref,omitempty"` // the checked out branch; "" is a detached HEAD
	Old     OID `json:"old"`           // its commit before
	New     OID `json:"new,omitempty"` // the new commit; "" with Patch, which makes none
	Tree    OID `json:"tree"`          // the new tree of the work tree
}

const journalVersion = 1

// lock locks the git directory for applies. The caller calls unlock.
func (r *Repo) lock() (unlock func(), err error) {
	f, err := os.Open(r.Dir)
	if err != nil {
		return nil, fault.Wrap(err, "lock %s", r.Dir)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.Conflict, "another apply to %s is in progress", r.Top).
				WithHint("wait for it to finish, then try again")
		}
		return nil, fault.Wrap(err, "lock %s", r.Dir)
	}
	r.mu.Lock()
	r.held = f
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		r.held = nil
		r.mu.Unlock()
		// Closing is not enough: a child before its execve may have a copy of the descriptor.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
	}, nil
}

// writeJournal writes the journal durably.
func (r *Repo) writeJournal(j journal) error {
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return fault.Wrap(vfs.WriteFile(r.opt.FS, filepath.Join(r.Dir, journalName), append(b, '\n')),
		"write the journal of the apply")
}

// readJournal returns the journal of an interrupted apply, or nil.
func (r *Repo) readJournal() (*journal, error) {
	b, err := os.ReadFile(filepath.Join(r.Dir, journalName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "read the journal of the apply")
	}
	var j journal
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&j); err != nil || j.Version != journalVersion {
		return nil, fault.New(fault.Version, "%s has an unknown version of the apply journal",
			filepath.Join(r.Dir, journalName)).
			Because(err).
			WithHint("use the version of coppice that wrote it, or restore the work tree with git and remove the file")
	}
	for _, id := range []OID{j.Old, j.Tree} {
		if _, err := ParseOID(string(id)); err != nil {
			return nil, fault.New(fault.Corrupt, "%s is damaged", filepath.Join(r.Dir, journalName)).Because(err)
		}
	}
	return &j, nil
}

// takeIndex acquires git's lock of the index, so that the user's git does not change it. The lock file appears with
// its text or not at all, also after a power failure. A lock of an interrupted apply is taken over.
func (r *Repo) takeIndex() error {
	if r.ownsIndex() {
		return nil
	}
	name, text := filepath.Join(r.Dir, lockName), filepath.Join(r.Dir, privateName+".text")
	if err := vfs.WriteFile(r.opt.FS, text, []byte(lockText)); err != nil {
		return fault.Wrap(err, "lock the index of %s", r.Top)
	}
	err := vfs.Link(r.opt.FS, text, name)
	if errors.Is(err, fs.ErrExist) {
		err = fault.New(fault.Conflict, "another git process is using %s", r.Top).
			WithHint("wait for it to finish; if none is running: rm %s", name)
	}
	return fault.Wrap(errors.Join(err, vfs.Remove(r.opt.FS, text)), "lock the index of %s", r.Top)
}

// ownsIndex reports whether git's lock exists and is Coppice's.
func (r *Repo) ownsIndex() bool {
	b, err := os.ReadFile(filepath.Join(r.Dir, lockName))
	return err == nil && string(b) == lockText
}

// freeIndex releases git's lock, if it is Coppice's.
func (r *Repo) freeIndex() error {
	if !r.ownsIndex() {
		return nil
	}
	return fault.Wrap(vfs.Remove(r.opt.FS, filepath.Join(r.Dir, lockName)), "unlock the index of %s", r.Top)
}

// copyIndex creates the private index as a copy of the current one.
func (r *Repo) copyIndex() error {
	b, err := os.ReadFile(filepath.Join(r.Dir, indexName))
	if err != nil {
		return fault.Wrap(err, "read the index of %s", r.Top)
	}
	return fault.Wrap(vfs.NoteUnsynced(r.opt.FS, filepath.Join(r.Dir, privateName), b), "copy the index of %s", r.Top)
}

// putIndex replaces the current index with the private index.
func (r *Repo) putIndex() error {
	from, to := filepath.Join(r.Dir, privateName), filepath.Join(r.Dir, indexName)
	info, err := os.Stat(to)
	if err == nil {
		err = vfs.Chmod(r.opt.FS, from, info.Mode())
	}
	if err == nil {
		err = vfs.Sync(r.opt.FS, from)
	}
	if err == nil {
		err = vfs.Rename(r.opt.FS, from, to)
	}
	return fault.Wrap(errors.Join(err, vfs.Sync(r.opt.FS, r.Dir)), "write the index of %s", r.Top)
}

// done removes the files of an apply.
func (r *Repo) done() error {
	var errs []error
	for _, name := range []string{
		privateName, privateName + ".tmp", privateName + ".lock", privateName + ".text", privateName + ".text.tmp",
		journalName + ".new", journalName + ".tmp", journalName, // .new: of earlier versions
	} {
		errs = append(errs, vfs.Remove(r.opt.FS, filepath.Join(r.Dir, name)))
	}
	return fault.Wrap(errors.Join(append(errs, vfs.Sync(r.opt.FS, r.Dir), r.freeIndex())...),
		"remove the journal of the apply")
}
