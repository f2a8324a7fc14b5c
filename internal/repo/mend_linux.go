package repo

import (
	"bytes"
	"context"
	"encoding/hex"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Mend completes an apply that was killed. If the branch was set, it cleans up; otherwise it restores work tree
// and index. A file with neither its old nor its new content (partly written by git, or changed by the user
// since) is moved into a new directory, which Mend returns; "" if there was none. Without a killed apply, Mend
// does nothing.
func (r *Repo) Mend(ctx context.Context) (saved string, err error) {
	unlock, err := r.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	return r.mend(ctx)
}

// mend is Mend, with the lock held.
func (r *Repo) mend(ctx context.Context) (saved string, err error) {
	j, err := r.readJournal()
	if err != nil {
		return "", err
	}
	if j == nil {
		return "", r.done()
	}
	// If the branch has moved since, past git's lock, the user has seen the work tree as it is.
	now, err := r.head(ctx)
	if err != nil {
		return "", err
	}
	if now != (Head{j.Ref, j.Old}) {
		return "", r.done()
	}
	d, err := r.desk()
	if err != nil {
		return "", err
	}
	defer d.close(&err)
	saved, err = r.takeBack(ctx, d, *j)
	return saved, fault.Wrap(err, "undo an incomplete apply to %s", r.Top)
}

// takeBack restores the paths that an apply changed, in index and work tree. It is idempotent, even after an
// interruption.
func (r *Repo) takeBack(ctx context.Context, d *desk, j journal) (saved string, err error) {
	if err := vfs.Remove(r.opt.FS, filepath.Join(r.Dir, privateName+".lock")); err != nil {
		return "", err
	}
	if err := r.takeIndex(); err != nil {
		return "", err
	}
	changes, err := d.changes(ctx, DiffOptions{From: j.Tree, To: j.Old})
	if err != nil {
		return "", err
	}
	tree, err := os.OpenRoot(r.Top)
	if err != nil {
		return "", err
	}
	defer func() { _ = tree.Close() }()
	odd, clear, err := r.sort(ctx, tree, changes)
	if err != nil {
		return "", err
	}
	if len(odd) > 0 {
		if saved, err = r.save(tree, odd); err != nil {
			return saved, err
		}
	}
	r.step("saved")
	for _, p := range clear {
		if err := remove(tree, p); err != nil {
			return saved, err
		}
	}
	r.step("cleared")
	if err := r.copyIndex(); err != nil {
		return saved, err
	}
	if _, err := r.private(ctx,
		call{args: []string{"update-index", "-z", "--index-info"},
			stdin: bytes.NewReader(indexInfo(changes, r.Format))}); err != nil {
		return saved, err
	}
	var back bytes.Buffer
	for _, c := range changes {
		if c.Mode != 0 {
			back.WriteString(c.Path + "\x00")
		}
	}
	if _, err := r.private(ctx,
		call{args: []string{"checkout-index", "-f", "-u", "-q", "-z", "--stdin"}, stdin: &back}); err != nil {
		return saved, err
	}
	r.step("restored")
	if err := r.putIndex(); err != nil {
		return saved, err
	}
	r.step("put")
	return saved, r.done()
}

// sort separates the files at the paths of changes. Odd files have unknown content and are saved; clear ones have
// the content of either side and may be removed.
func (r *Repo) sort(ctx context.Context, tree *os.Root, changes []Change) (odd, clear []string, err error) {
	var files []Change
	for _, c := range changes {
		info, err := at(tree, c.Path)
		switch {
		case err != nil:
			return nil, nil, err
		case info == nil || info.IsDir():
			// The path is missing, or is a directory of other changes, or a submodule.
		case info.Mode().IsRegular():
			files = append(files, c)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := tree.Readlink(c.Path)
			if err != nil {
				return nil, nil, err
			}
			h := (&walk{format: r.Format}).begin(int64(len(target)))
			h.Write([]byte(target))
			if id := OID(hex.EncodeToString(h.Sum(nil))); id == c.ID && c.Mode == ModeLink || id == c.OldID &&
				c.OldMode == ModeLink {
				clear = append(clear, c.Path)
			} else {
				odd = append(odd, c.Path)
			}
		default:
			odd = append(odd, c.Path)
		}
	}
	ids, err := r.clean(ctx, files)
	if err != nil {
		return nil, nil, err
	}
	for i, c := range files {
		if ids[i] == c.ID || ids[i] == c.OldID {
			clear = append(clear, c.Path)
		} else {
			odd = append(odd, c.Path)
		}
	}
	return odd, clear, nil
}

// clean returns the object IDs of files as the user's git would commit them.
func (r *Repo) clean(ctx context.Context, files []Change) ([]OID, error) {
	if len(files) == 0 {
		return nil, nil
	}
	var paths bytes.Buffer
	for _, c := range files {
		paths.Write(append(quote(c.Path), '\n'))
	}
	out, err := r.private(ctx, call{args: []string{"hash-object", "--stdin-paths"}, stdin: &paths})
	if err != nil {
		return nil, err
	}
	var ids []OID
	for l := range strings.Lines(string(out)) {
		ids = append(ids, OID(strings.TrimSpace(l)))
	}
	if len(ids) != len(files) {
		return nil, fault.New(fault.Internal, "git hashed %d of %d files", len(ids), len(files))
	}
	return ids, nil
}

// save moves files out of the work tree, into a new directory of the git directory.
func (r *Repo) save(tree *os.Root, paths []string) (string, error) {
	dir, err := os.MkdirTemp(r.Dir, savedName+"-")
	if err != nil {
		return "", err
	}
	for _, p := range paths {
		to := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return dir, err
		}
		if err := os.Rename(filepath.Join(tree.Name(), p), to); err != nil {
			return dir, err
		}
	}
	return dir, nil
}

// remove removes a file, and its parents that become empty.
func remove(tree *os.Root, p string) error {
	if info, err := at(tree, p); err != nil || info == nil {
		return err
	}
	if err := tree.Remove(p); err != nil {
		return err
	}
	dir := path.Dir(p)
	for dir != "." && tree.Remove(dir) == nil {
		dir = path.Dir(dir)
	}
	return nil
}
