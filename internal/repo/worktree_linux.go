package repo

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// WorkTree commits, on top of HEAD, the uncommitted changes in the user's own work tree: what `git add -A` would
// add, with the user's filters and ignore rules. The user's index and files do not change. The commit's objects
// are in the repository, on disk, but unreferenced: the caller sets a reference. The result is HEAD's commit if
// nothing differs. Nested repositories, which git does not track, are left out and returned as Skipped.
//
// An index with an unresolved conflict is a Conflict.
func (r *Repo) WorkTree(ctx context.Context) (_ OID, _ []Skipped, err error) {
	if err := r.resolved(ctx); err != nil {
		return "", nil, err
	}
	head, err := r.commit(ctx, "HEAD")
	if err != nil {
		return "", nil, err
	}
	d, err := r.desk()
	if err != nil {
		return "", nil, err
	}
	defer d.close(&err)
	if err := r.indexAside(d); err != nil {
		return "", nil, fault.Wrap(err, "copy the index of %s", r.Top)
	}
	skipped, err := r.stage(ctx, d)
	if err != nil {
		return "", nil, fault.Wrap(err, "find the uncommitted changes in %s", r.Top)
	}
	tree, err := r.aside(ctx, d, call{args: []string{"write-tree"}})
	if err != nil {
		return "", nil, fault.Wrap(err, "create a tree of the uncommitted changes in %s", r.Top)
	}
	was, err := r.treeOf(ctx, head)
	if err != nil || strings.TrimSpace(string(tree)) == string(was) {
		return head, skipped, err
	}
	who := signature(Person{"coppice", "coppice@localhost"}, r.opt.Now().Unix())
	commit, err := d.hold(ctx, "commit",
		commitObject(OID(strings.TrimSpace(string(tree))), []OID{head}, who, who, "Uncommitted changes\n"))
	if err != nil {
		return "", nil, err
	}
	return commit, skipped, r.keep(ctx, d, commit, []OID{head})
}

// resolved returns a Conflict if the index has an unresolved conflict.
func (r *Repo) resolved(ctx context.Context) error {
	out, err := r.user(ctx, call{args: []string{"ls-files", "-z", "--unmerged"}})
	if err != nil {
		return fault.Wrap(err, "read the index of %s", r.Top)
	}
	if len(out) == 0 {
		return nil
	}
	_, path, _ := strings.Cut(before(string(out), "\x00"), "\t")
	return fault.New(fault.Conflict, "%s has unresolved conflicts: %q", r.Top, clip(path)).
		WithHint("resolve them and `git add` the files, or start from the commit: drop --dirty")
}

// aside runs the user's git on a copy of the index, with new objects at the desk.
func (r *Repo) aside(ctx context.Context, d *desk, c call) ([]byte, error) {
	// git would write a shared index into the user's repository.
	c.args = append([]string{"-c", "core.splitIndex=false", "-c", "core.untrackedCache=false", "-c", "core.fsync=none"},
		c.args...)
	c.env = append(c.env, "GIT_INDEX_FILE="+filepath.Join(d.dir, "index"),
		"GIT_OBJECT_DIRECTORY="+filepath.Join(d.dir, "objects"))
	return r.user(ctx, c)
}

// indexAside copies the user's index to the desk, with its time: git compares that with the entries to find those
// that it cannot trust.
func (r *Repo) indexAside(d *desk) error {
	in, err := os.Open(filepath.Join(r.Dir, "index"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	name := filepath.Join(d.dir, "index")
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Chtimes(name, info.ModTime(), info.ModTime())
}

// stage adds uncommitted changes to the copy of the index.
func (r *Repo) stage(ctx context.Context, d *desk) (skipped []Skipped, err error) {
	if _, err := r.aside(ctx, d, call{args: []string{"add", "--update", "--", "."}}); err != nil {
		return nil, err
	}
	out, err := r.aside(ctx, d,
		call{args: []string{"ls-files", "-z", "--others", "--exclude-standard"}, most: most(r.opt.Limits.Changes, 4<<10)})
	if err != nil {
		return nil, err
	}
	var add strings.Builder
	for p := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		switch {
		case p == "":
		case strings.HasSuffix(p, "/"):
			skipped = append(skipped, Skipped{strings.TrimSuffix(p, "/"), "it is a nested repository"})
		default:
			add.WriteString(p + "\x00")
		}
	}
	if add.Len() == 0 {
		return skipped, nil
	}
	_, err = r.aside(ctx, d,
		call{args: []string{"update-index", "--add", "--remove", "--replace", "-z", "--stdin"},
			stdin: strings.NewReader(add.String())})
	return skipped, err
}
