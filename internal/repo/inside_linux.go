package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Inside is the .git of a sandbox: a separate repository that borrows the user's objects and has the user's current
// branches, tags and remotes, including those of initialised submodules.
//
// Its configuration is written from an allow list of settings about contents and workflow. It contains no
// credentials, headers, helpers or commands, and no passwords in addresses. The user's hooks are included: they run
// inside only. The index is not written.
type Inside struct {
	Branch Ref // the branch of HEAD
	Commit OID // its commit
	// Objects maps each directory of ObjectDirs to its path inside; one without a path is not borrowed.
	Objects map[string]string
	// Moved means that files inside do not have the inodes and owners that the index records (copied trees, mapped
	// IDs). Git then compares only size and modification time.
	Moved bool
	// Identity writes the user's configured name and address, even if they are not set in this repository, because
	// the sandbox does not see the user's home.
	Identity bool
	To       *os.Root // .git: empty, or with an index
}

// Inside writes the .git. Nothing is flushed.
func (r *Repo) Inside(ctx context.Context, i Inside) error {
	return fault.Wrap(r.inside(ctx, i), "create the git directory of the sandbox")
}

func (r *Repo) inside(ctx context.Context, i Inside) error {
	if _, err := ParseRef(string(i.Branch)); err != nil {
		return err
	}
	lines, err := r.config(ctx, r.Dir)
	if err != nil {
		return err
	}
	refs, err := r.insideRefs(ctx, r.Dir)
	if err != nil {
		return err
	}
	refs = refs.with(i.Branch, i.Commit)
	w := &gitDir{to: i.To}
	w.skeleton("ref: "+string(i.Branch)+"\n", configText(r.Format, i.Moved, allowed(lines, i.Identity)), refs)
	w.borrow(filepath.Join(r.Common, "objects"), i.Objects)
	w.carry(r.Common)
	entry := fmt.Sprintf("%s %s coppice <coppice@localhost> %d +0000\tcoppice: the sandbox begins here\n", OID("").
		orNull(r.Format), i.Commit, r.opt.Now().Unix())
	w.file("logs/HEAD", entry, 0o644)
	w.file("logs/"+string(i.Branch), entry, 0o644)
	if w.err != nil {
		return w.err
	}
	return r.insideModules(ctx, i)
}

// insideModules writes the repositories of submodules.
func (r *Repo) insideModules(ctx context.Context, i Inside) error {
	for _, m := range r.modules() {
		lines, err := r.config(ctx, m.dir)
		if err != nil {
			return err
		}
		refs, err := r.insideRefs(ctx, m.dir)
		if err != nil {
			return err
		}
		head := "ref: refs/heads/main\n"
		out, err := r.at(ctx, m.dir, "rev-parse", "-q", "--verify", "HEAD^{commit}")
		if err == nil {
			head = string(out)
		} else if code(err) < 0 {
			return err
		}
		if err := mkdirAll(i.To, m.name); err != nil {
			return err
		}
		to, err := i.To.OpenRoot(m.name)
		if err != nil {
			return err
		}
		w := &gitDir{to: to}
		w.skeleton(head, configText(formatOf(lines), i.Moved, allowed(lines, i.Identity)), refs)
		w.borrow(filepath.Join(m.dir, "objects"), i.Objects)
		w.carry(m.dir)
		if err := errors.Join(w.err, to.Close()); err != nil {
			return fault.Wrap(err, "submodule %s", m.name)
		}
	}
	return nil
}

// at runs the user's git in another git directory of the repository.
func (r *Repo) at(ctx context.Context, gitDir string, args ...string) ([]byte, error) {
	return r.user(ctx, call{args: args, env: []string{"GIT_DIR=" + gitDir, "GIT_WORK_TREE=" + gitDir}})
}

// config reads the configuration of a git directory, with its includes and the user's own.
func (r *Repo) config(ctx context.Context, gitDir string) ([]configLine, error) {
	out, err := r.at(ctx, gitDir, "config", "--includes", "--show-scope", "--list", "-z")
	if err != nil {
		return nil, fault.Wrap(err, "read the configuration of %s", gitDir)
	}
	parts := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(parts)%2 != 0 {
		return nil, fault.New(fault.Internal, "malformed configuration in the output of git")
	}
	var lines []configLine
	for i := 0; i < len(parts); i += 2 {
		key, value, valued := strings.Cut(parts[i+1], "\n")
		lines = append(lines, configLine{scope: parts[i], key: key, value: value, bare: !valued})
	}
	return lines, nil
}

// insideRefs are the initial references of a sandbox.
type insideRefs struct {
	ids  map[Ref]OID
	syms map[Ref]Ref // symbolic references
}

func (r *Repo) insideRefs(ctx context.Context, gitDir string) (insideRefs, error) {
	all := insideRefs{map[Ref]OID{}, map[Ref]Ref{}}
	out, err := r.at(ctx, gitDir, "for-each-ref", "--format=%(objectname) %(refname) %(symref)", "refs/heads/",
		"refs/tags/", "refs/remotes/")
	if err != nil {
		return all, fault.Wrap(err, "list the references of %s", gitDir)
	}
	for l := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(l, "\n"), " ")
		if len(f) != 3 {
			return all, fault.New(fault.Internal, "unexpected output %q of git for a reference", clip(l))
		}
		if f[2] != "" {
			all.syms[Ref(f[1])] = Ref(f[2])
			continue
		}
		if all.ids[Ref(f[1])], err = ParseOID(f[0]); err != nil {
			return all, err
		}
	}
	return all, nil
}

// with adds a branch. A conflicting branch of the user is left out, such as "coppice" for "coppice/fix".
func (s insideRefs) with(branch Ref, at OID) insideRefs {
	clash := func(r Ref) bool {
		return strings.HasPrefix(string(branch), string(r)+"/") || strings.HasPrefix(string(r), string(branch)+"/")
	}
	for r := range s.ids {
		if clash(r) {
			delete(s.ids, r)
		}
	}
	for r := range s.syms {
		if clash(r) || r == branch {
			delete(s.syms, r)
		}
	}
	s.ids[branch] = at
	return s
}

// packed returns the content of packed-refs.
func (s insideRefs) packed() string {
	var names []Ref
	for r := range s.ids {
		names = append(names, r)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("# pack-refs with: sorted \n")
	for _, r := range names {
		b.WriteString(string(s.ids[r]) + " " + string(r) + "\n")
	}
	return b.String()
}

// gitDir writes a git directory. After an error, its methods do nothing.
type gitDir struct {
	to  *os.Root
	err error
}

// skeleton writes the files by which git recognizes a repository, and the references.
func (w *gitDir) skeleton(head, config string, refs insideRefs) {
	for _, d := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "hooks", "info", "logs"} {
		w.dir(d)
	}
	w.file("HEAD", head, 0o644)
	w.file("config", config, 0o644)
	w.file("packed-refs", refs.packed(), 0o644)
	for r, to := range refs.syms {
		w.file(string(r), "ref: "+string(to)+"\n", 0o644)
	}
}

// borrow writes the alternates: the object directories of a repository, and those that it borrows.
func (w *gitDir) borrow(objects string, at map[string]string) {
	var lines []byte
	for _, dir := range borrowed(objects) {
		if inside := at[dir]; inside != "" {
			lines = append(append(lines, alternate(inside)...), '\n')
		}
	}
	w.file("objects/info/alternates", string(lines), 0o644)
}

// maxHook is the size of the largest hook that is copied, in bytes.
const maxHook = 1 << 20

// carry copies the files of a repository other than configuration, references and objects: the boundary of a
// shallow history, its own ignore rules and attributes, and its hooks.
func (w *gitDir) carry(from string) {
	for _, name := range []string{"shallow", "info/exclude", "info/attributes"} {
		w.copy(from, name, 0o644)
	}
	hooks, err := os.ReadDir(filepath.Join(from, "hooks"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.fail(err)
	}
	for _, h := range hooks {
		name := path.Join("hooks", h.Name())
		info, err := h.Info()
		switch {
		case err != nil, strings.HasSuffix(h.Name(), ".sample"):
		case info.Mode().IsRegular() && info.Size() <= maxHook:
			w.copy(from, name, 0o644|info.Mode().Perm()&0o111)
		case info.Mode()&fs.ModeSymlink != 0:
			if to, err := os.Readlink(filepath.Join(from, name)); err == nil {
				w.fail(w.to.Symlink(to, name))
			}
		}
	}
}

// copy copies a file if it exists.
func (w *gitDir) copy(from, name string, mode fs.FileMode) {
	text, err := os.ReadFile(filepath.Join(from, name))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	w.fail(err)
	w.file(name, string(text), mode)
}

func (w *gitDir) fail(err error) { w.err = errors.Join(w.err, err) }

func (w *gitDir) dir(name string) {
	if w.err == nil {
		w.fail(mkdirAll(w.to, name))
	}
}

// file writes a new file, and creates its directories.
func (w *gitDir) file(name, text string, mode fs.FileMode) {
	w.dir(path.Dir(name))
	if w.err != nil {
		return
	}
	f, err := w.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		w.fail(err)
		return
	}
	_, err = f.WriteString(text)
	w.fail(errors.Join(err, f.Chmod(mode), f.Close()))
}

// mkdirAll creates a directory and its parents, with mode 0755 whatever the umask is.
func mkdirAll(root *os.Root, name string) error {
	if name == "." {
		return nil
	}
	err := root.Mkdir(name, 0o755)
	switch {
	case err == nil:
		return root.Chmod(name, 0o755)
	case errors.Is(err, fs.ErrExist):
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := mkdirAll(root, path.Dir(name)); err != nil {
		return err
	}
	return mkdirAll(root, name)
}
