package repo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// File is a file of a Record.
type File struct {
	Name    string    // in the top directory: letters, digits, dots, dashes
	Content io.Reader // must never block: a file or a buffer
}

// Record is a commit of Coppice's own files, which no work tree contains.
type Record struct {
	Files   []File
	Parents []OID
	Author  Person // zero uses the user's configuration
	Message string

	To  Ref // the reference that is set to the commit
	Old OID // expected value of To; "" means that To must not exist
}

// Record writes the commit and sets its reference, durably. Conflict: the reference does not have its expected
// value.
func (r *Repo) Record(ctx context.Context, rec Record) (id OID, err error) {
	if err := r.settable(ctx, rec.To, rec.Old); err != nil {
		return "", err
	}
	text, err := message(rec.Message, nil)
	if err != nil {
		return "", err
	}
	if rec.Author == (Person{}) {
		if rec.Author, err = r.User(ctx); err != nil {
			return "", err
		}
	}
	if why := rec.Author.bad(); why != "" {
		return "", fault.New(fault.Invalid, "invalid author of a record: %s", why)
	}
	d, err := r.desk()
	if err != nil {
		return "", err
	}
	defer d.close(&err)
	tree, err := d.files(ctx, rec.Files)
	if err != nil {
		return "", err
	}
	by := signature(rec.Author, r.opt.Now().Unix())
	if id, err = d.hold(ctx, "commit", commitObject(tree, rec.Parents, by, by, text)); err != nil {
		return "", err
	}
	if err := r.keep(ctx, d, id, rec.Parents); err != nil {
		return "", err
	}
	return id, r.setRef(ctx, rec.To, id, rec.Old, "coppice: record")
}

// files writes files and their tree.
func (d *desk) files(ctx context.Context, files []File) (OID, error) {
	files = slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	var tree bytes.Buffer
	for i, f := range files {
		if badPath(f.Name) != "" || strings.Contains(f.Name, "/") || i > 0 && files[i-1].Name == f.Name {
			return "", fault.New(fault.Invalid, "invalid file name %q in a record", clip(f.Name))
		}
		id, err := d.oid(ctx, call{args: []string{"hash-object", "-t", "blob", "-w", "--stdin"}, stdin: f.Content})
		if err != nil {
			return "", fault.Wrap(err, "write %s", f.Name)
		}
		fmt.Fprintf(&tree, "%s blob %s\t%s\x00", ModeFile, id, f.Name)
	}
	id, err := d.oid(ctx, call{args: []string{"mktree", "-z"}, stdin: &tree})
	return id, fault.Wrap(err, "write a tree")
}

// ReadRecord returns the names and sizes of the files of a record's commit, which is untrusted. Invalid: Record did
// not write such a commit.
func (r *Repo) ReadRecord(ctx context.Context, commit OID) (sizes map[string]int64, err error) {
	d, err := r.desk()
	if err != nil {
		return nil, err
	}
	defer d.close(&err)
	sizes = map[string]int64{}
	err = d.records(ctx, call{args: []string{"ls-tree", "-l", "-z", "--full-tree", string(commit)}, most: 64 << 10}, 0,
		func(s string) error {
			head, name, ok := strings.Cut(s, "\t")
			f := strings.Fields(head)
			if !ok || len(f) != 4 || f[0] != ModeFile.String() || badPath(name) != "" {
				return fault.New(fault.Invalid, "%s is not a record: it has entries other than plain files", commit)
			}
			n, err := strconv.ParseInt(f[3], 10, 64)
			if err != nil {
				return fault.New(fault.Invalid, "%s is not a record: a file of it is missing", commit)
			}
			sizes[name] = n
			return nil
		})
	if err != nil {
		return nil, hostile(err, "git cannot read the record")
	}
	return sizes, nil
}

// ReadFile writes a file of a commit's top directory to w, at most most bytes: Invalid if it is larger, NotFound if
// it does not exist.
func (r *Repo) ReadFile(ctx context.Context, commit OID, name string, most int64, w io.Writer) (err error) {
	if badPath(name) != "" {
		return fault.New(fault.Invalid, "invalid file path %q in a commit", clip(name))
	}
	d, err := r.desk()
	if err != nil {
		return err
	}
	defer d.close(&err)
	id, err := d.oid(ctx,
		call{args: []string{"rev-parse", "-q", "--verify", "--end-of-options", string(commit) + ":" + name}})
	if code(err) > 0 {
		return fault.New(fault.NotFound, "commit %s has no file %s", commit, name)
	}
	if err != nil {
		return err
	}
	_, err = d.run(ctx, call{args: []string{"cat-file", "blob", string(id)}, stdout: w, most: most})
	return fault.Wrap(hostile(err, "git cannot read the object"), "read %s of %s", name, commit)
}

// User returns the author that the user's git is configured with. Invalid if there is none.
func (r *Repo) User(ctx context.Context) (Person, error) {
	return r.committer(ctx, Apply{})
}

// Parents returns the parents of a commit.
func (r *Repo) Parents(ctx context.Context, commit OID) ([]OID, error) {
	out, err := r.user(ctx,
		call{args: []string{"rev-list", "--parents", "--max-count=1", "--end-of-options", string(commit), "--"}})
	if err != nil {
		return nil, fault.Wrap(err, "inspect %s", commit)
	}
	var ids []OID
	for i, f := range strings.Fields(string(out)) {
		id, err := ParseOID(f)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Settable returns a Conflict if a reference does not have the value old ("" means missing), or is checked out in
// a work tree. SetRef checks again.
func (r *Repo) Settable(ctx context.Context, ref Ref, old OID) error {
	return r.settable(ctx, ref, old)
}
