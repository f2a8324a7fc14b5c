package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Snapshot is the uncommitted state of a sandbox's work tree.
type Snapshot struct {
	Base OID      // the commit that the work tree is compared with
	Tree *os.Root // the work tree, written by the sandbox; nothing in it is followed or run
	// Paths are the possibly changed paths: files, and directories with everything below them. An empty list
	// means all. A path that no commit can have is skipped.
	Paths []string
	// Submodules are the submodules of Base, by path, whose files are committed as plain files. All others stay
	// as they are in Base.
	Submodules []string

	Author  Person
	Message string
	To      Ref // the reference that is set to the commit
	// Old is the expected value of To; "" means that To must not exist. If Old has the same state on the same
	// Base, the result is Old: an unchanged state results in the same commit.
	Old OID
}

// Skipped is a path of a work tree that no commit can hold, or that is ignored.
type Skipped struct{ Path, Why string }

// Snapshotted is the result of Repo.Snapshot.
type Snapshotted struct {
	Commit  OID // Base, if nothing differs
	Changed int // paths that differ from Base
	Skipped []Skipped
}

// Snapshot makes a commit of a work tree, on top of Base, without an index, filters, hooks or attributes: contents
// are the files' bytes, links are links, and .git in any spelling is left out. The work tree should not change
// meanwhile; Conflict: a file did.
//
// A path that Base does not have is left out if the ignore rules of Base, or those now in the work tree, or the
// user's own, match it. So the sandbox can add to the rules (what it hides is not in the commit, and never applied)
// but not weaken them: what the user excludes from commits, such as a file of secrets, is never committed.
func (r *Repo) Snapshot(ctx context.Context, s Snapshot) (got Snapshotted, err error) {
	if why := s.Author.bad(); why != "" {
		return got, fault.New(fault.Invalid, "invalid author: %s", why)
	}
	if err := r.sane(ctx, s.Base); err != nil {
		return got, err
	}
	if err := r.settable(ctx, s.To, s.Old); err != nil {
		return got, err
	}
	d, err := r.desk()
	if err != nil {
		return got, err
	}
	defer d.close(&err)
	base, err := d.list(ctx, s.Base)
	if err != nil {
		return got, err
	}
	rules, err := r.ignoreRules(ctx, d, base)
	if err != nil {
		return got, err
	}
	defer rules.close(&err)
	tree, err := s.Tree.Open(".")
	if err != nil {
		return got, fault.Wrap(err, "read the work tree")
	}
	defer tree.Close()
	w := &walk{tree: tree, base: base, dirs: base.dirs(), format: r.Format, rules: rules, limits: r.opt.Limits,
		plain: set(s.Submodules), seen: map[string]bool{}, decided: map[string]bool{}}
	if err := w.all(ctx, s.Paths); err != nil {
		return got, fault.Wrap(err, "read the work tree")
	}
	got = Snapshotted{Commit: s.Base, Changed: len(w.found), Skipped: w.skipped}
	if len(w.found) > 0 {
		if got.Commit, err = d.importFiles(ctx, s, tree, w.found, r.opt.Now().Unix()); err != nil {
			return got, err
		}
		if s.Old != "" && d.same(ctx, s.Old, got.Commit) {
			got.Commit = s.Old
		} else if err := r.keep(ctx, d, got.Commit, []OID{s.Base}); err != nil {
			return got, err
		}
	}
	return got, r.setRef(ctx, s.To, got.Commit, s.Old, "coppice: snapshot")
}

// same reports whether two commits have the same parents, tree and message.
func (d *desk) same(ctx context.Context, a, b OID) bool {
	var said [2][]byte
	for i, c := range []OID{a, b} {
		var err error
		if said[i], err = d.run(ctx,
			call{args: []string{"log", "-1", "--format=%T %P%n%B", "--end-of-options", string(c)}}); err != nil {
			return false
		}
	}
	return bytes.Equal(said[0], said[1])
}

func set(list []string) map[string]bool {
	m := map[string]bool{}
	for _, s := range list {
		m[s] = true
	}
	return m
}

// entry is one file of a tree.
type entry struct {
	mode Mode
	id   OID
}

// listing is the content of a tree, by path.
type listing map[string]entry

// list lists a tree.
func (d *desk) list(ctx context.Context, of OID) (listing, error) {
	all := listing{}
	err := d.records(ctx, call{args: []string{"ls-tree", "-r", "-z", "--full-tree", string(of)}, most: 16 << 30}, 0,
		func(s string) error {
			head, path, ok := strings.Cut(s, "\t")
			f := strings.Fields(head)
			if !ok || len(f) != 3 {
				return fault.New(fault.Internal, "unexpected output %q of git for a tree", clip(s))
			}
			mode, ok := parseMode(f[0])
			if !ok {
				mode = ModeFile // old histories have other permission bits
			}
			all[path] = entry{mode, OID(f[2])}
			return nil
		})
	return all, err
}

// dirs returns the directories of a listing.
func (l listing) dirs() map[string]bool {
	dirs := map[string]bool{}
	for p := range l {
		for at := up(p); at != "" && !dirs[at]; at = up(at) {
			dirs[at] = true
		}
	}
	return dirs
}

// up returns the parent of a clean path; "" is the top. Unlike path.Dir it reads only the last name, so that walking
// up a path is linear in its length.
func up(p string) string { return p[:max(strings.LastIndexByte(p, '/'), 0)] }

// found is one path that differs from the base.
type found struct {
	path string
	mode Mode   // 0: deleted
	size int64  // of a file
	link string // the target of a link
}

// importFiles creates the commit with git fast-import, which reads contents from the files into a pack.
func (d *desk) importFiles(ctx context.Context, s Snapshot, tree *os.File, changes []found, now int64) (OID, error) {
	pr, pw := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := writeImport(ctx, pw, s, tree, changes, now)
		pw.CloseWithError(err)
		wrote <- err
	}()
	_, err := d.run(ctx, call{args: []string{"fast-import", "--quiet", "--done", "--date-format=raw"}, stdin: pr})
	pr.CloseWithError(io.ErrClosedPipe)
	werr := <-wrote
	if k := fault.KindOf(werr); k != "" && k != fault.Internal {
		return "", werr
	}
	if err = errors.Join(err, werr); err != nil {
		return "", fault.Wrap(err, "commit the work tree")
	}
	return d.oid(ctx, call{args: []string{"rev-parse", "-q", "--verify", "refs/heads/snapshot"}})
}

// writeImport writes the input of fast-import: deletions first, so that a directory can replace a file.
func writeImport(ctx context.Context, w io.Writer, s Snapshot, tree *os.File, changes []found, now int64) error {
	var head bytes.Buffer
	fmt.Fprintf(&head, "commit refs/heads/snapshot\nauthor %s <%s> %d +0000\ncommitter %s <%s> %d +0000\n", s.Author.Name,
		s.Author.Email, now, s.Author.Name, s.Author.Email, now)
	message := strings.TrimSpace(strings.ReplaceAll(s.Message, "\x00", "")) + "\n"
	fmt.Fprintf(&head, "data %d\n%s\nfrom %s\n", len(message), message, s.Base)
	for _, c := range changes {
		if c.mode == 0 {
			fmt.Fprintf(&head, "D %s\n", quote(c.path))
		}
	}
	if _, err := w.Write(head.Bytes()); err != nil {
		return err
	}
	for _, c := range changes {
		if err := writeFile(ctx, w, tree, c); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "done\n")
	return err
}

// writeFile writes one file, with the size that it had when it was examined.
func writeFile(ctx context.Context, w io.Writer, tree *os.File, c found) error {
	switch c.mode {
	case 0:
		return nil
	case ModeLink:
		_, err := fmt.Fprintf(w, "M 120000 inline %s\ndata %d\n%s\n", quote(c.path), len(c.link), c.link)
		return err
	}
	f, err := openFile(tree, c.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fmt.Fprintf(w, "M %o inline %s\ndata %d\n", c.mode, quote(c.path), c.size); err != nil {
		return err
	}
	n, err := io.Copy(w, reader{ctx, io.LimitReader(f, c.size)})
	if err != nil {
		return err
	}
	if n < c.size {
		return changing(c.path)
	}
	_, err = io.WriteString(w, "\n")
	return err
}

// changing is the error for a file that changed while it was read.
func changing(path string) error {
	return fault.New(fault.Conflict, "%q changed while it was read", clip(path)).
		WithHint("stop the sandbox, or use one of its snapshots")
}
