package repo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Options configures a Repo.
type Options struct {
	// Scratch is an existing directory, used only by Coppice, for desks. No sandbox can access it. Leftovers of a
	// killed process may be deleted when no other process uses it.
	Scratch string
	Limits  Limits
	Now     func() time.Time // nil: time.Now
	FS      vfs.FS           // for the journal and the lock of an apply; nil: the real file system
}

// Limits are the limits on data from a sandbox. The zero value is DefaultLimits.
type Limits struct {
	Input   int64         // bytes of a bundle
	Objects int           // maximum number of objects
	Object  int64         // bytes of the largest one, unpacked
	Total   int64         // bytes of all, unpacked
	Changes int           // paths that differ from the base
	Patch   int64         // bytes of a patch
	Memory  uint64        // bytes that a git process that reads it may allocate
	Work    time.Duration // processor time of one such git process
}

// DefaultLimits are the default limits.
var DefaultLimits = Limits{
	Input: limit.BundleBytes, Objects: limit.TreeEntries, Object: limit.ObjectBytes, Total: limit.ObjectsBytes,
	Changes: limit.TreeChanges,
	Patch:   limit.DeltaBytes, Memory: limit.GitMemory, Work: limit.GitSeconds * time.Second,
}

func (l Limits) or(d Limits) Limits {
	fill(&l.Input, d.Input)
	fill(&l.Objects, d.Objects)
	fill(&l.Object, d.Object)
	fill(&l.Total, d.Total)
	fill(&l.Changes, d.Changes)
	fill(&l.Patch, d.Patch)
	fill(&l.Memory, d.Memory)
	fill(&l.Work, d.Work)
	return l
}

// cpu is Work in the kernel's unit, seconds.
func (l Limits) cpu() uint64 { return uint64(max(l.Work/time.Second, 1)) }

func fill[T comparable](to *T, with T) {
	var zero T
	if *to == zero {
		*to = with
	}
}

// Head is the HEAD of a repository.
type Head struct {
	Branch Ref // "" if HEAD is detached
	Commit OID
}

// Repo is a repository of the user, with the work tree that it was found from. Its methods are safe for
// concurrent use. Errors carry a fault.Kind.
type Repo struct {
	Top       string // the top of the work tree, absolute, without links
	Dir       string // its git directory; a linked work tree has its own
	Common    string // the git directory that all its work trees share
	Format    Format
	Head      Head
	Linked    bool // the work tree was created by `git worktree add`
	Submodule bool // the repository is a submodule of another one
	Shallow   bool // the history is shallow; missing commits are not requested

	git  *Git
	opt  Options
	step func(string) // called between the steps of land; a test kills the process there

	mu   sync.Mutex
	held *os.File // the lock of applies, while one runs; guarded by mu
}

// Open finds the repository that contains dir, as the user's git does, including the user's safe.directory. It
// runs nothing in the repository. Errors: dir is in no repository (NotFound); the repository belongs to another
// user (Denied); it is bare, a partial clone, or has no commit (Unsupported).
func Open(ctx context.Context, g *Git, dir string, opt Options) (*Repo, error) {
	opt.Limits = opt.Limits.or(DefaultLimits)
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.FS == nil {
		opt.FS = vfs.OS()
	}
	r := &Repo{git: g, opt: opt, step: func(string) {}}
	if err := r.find(ctx, dir); err != nil {
		return nil, err
	}
	if err := r.refusePartial(ctx); err != nil {
		return nil, err
	}
	head, err := r.head(ctx)
	r.Head = head
	return r, err
}

// find asks git for the paths and properties of the repository: with one command, or, if newlines in paths make
// its output ambiguous, one by one.
func (r *Repo) find(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fault.Wrap(err, "find the repository")
	}
	ask := func(args ...string) (string, error) {
		out, err := r.git.run(ctx, call{args: append([]string{"rev-parse", "--path-format=absolute"}, args...), dir: dir,
			env: append(r.git.userEnv(), "GIT_DISCOVERY_ACROSS_FILESYSTEM=0")})
		return strings.TrimSuffix(string(out), "\n"), err
	}
	known := []string{"--is-bare-repository", "--is-inside-work-tree", "--is-shallow-repository", "--show-object-format"}
	if all, err := ask(
		append(slices.Clip(known), "--show-toplevel", "--absolute-git-dir", "--git-common-dir",
			"--show-superproject-working-tree")...); err == nil {
		// A superproject, and a newline in any path, add lines.
		if l := strings.Split(all, "\n"); len(l) == 7 && l[0] == "false" && l[1] == "true" &&
			(Format(l[3]) == SHA1 || Format(l[3]) == SHA256) {
			r.Shallow, r.Format = l[2] == "true", Format(l[3])
			r.Top, r.Dir, r.Common = l[4], l[5], l[6]
			r.Linked = r.Dir != r.Common
			return nil
		}
	}
	facts, err := ask(known...)
	if err != nil {
		return notFound(dir, err)
	}
	f := strings.Fields(facts)
	switch {
	case len(f) != 4:
		return fault.New(fault.Internal, "unexpected output %q of git for %s", clip(facts), dir)
	case f[0] == "true" || f[1] != "true":
		return fault.New(fault.Unsupported,
			"%s is not in a work tree: it is in a bare repository or a git directory", dir).
			WithHint("work in a clone: git clone %s", dir)
	case Format(f[3]) != SHA1 && Format(f[3]) != SHA256:
		return fault.New(fault.Unsupported, "%s has unsupported object format %q", dir, clip(f[3]))
	}
	r.Shallow, r.Format = f[2] == "true", Format(f[3])
	var super string
	for _, w := range []struct {
		to   *string
		flag string
	}{{&r.Top, "--show-toplevel"}, {&r.Dir, "--absolute-git-dir"}, {&r.Common, "--git-common-dir"},
		{&super, "--show-superproject-working-tree"}} {
		if *w.to, err = ask(w.flag); err != nil {
			return fault.Wrap(err, "find the repository of %s", dir)
		}
	}
	r.Linked, r.Submodule = r.Dir != r.Common, super != ""
	return nil
}

// notFound describes why there is no repository.
func notFound(dir string, err error) error {
	var ge *GitError
	switch {
	case !errors.As(err, &ge):
		return fault.Wrap(err, "find the repository of %s", dir)
	case strings.Contains(ge.Stderr, "dubious ownership"):
		return fault.New(fault.Denied, "the repository of %s belongs to another user", dir).Because(err).
			WithHint("if you trust its owner: git config --global --add safe.directory %s", dir)
	case strings.Contains(ge.Stderr, "not a git repository"):
		return fault.New(fault.NotFound, "%s is not in a git repository", dir).WithHint("create one: git init %s", dir)
	}
	return fault.New(fault.Invalid, "git cannot read the repository of %s", dir).Because(err)
}

// refusePartial refuses a partial clone: missing objects would have to be fetched, and Coppice fetches nothing.
func (r *Repo) refusePartial(ctx context.Context) error {
	out, err := r.user(ctx,
		call{args: []string{"config", "--get-regexp", `^(extensions\.partialclone|remote\..*\.promisor)$`}})
	if code(err) == 1 && len(out) == 0 {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "read the configuration of %s", r.Top)
	}
	return fault.New(fault.Unsupported, "cannot use the partial clone %s: it lacks objects", r.Top).
		WithHint("clone it without a filter: git clone URL")
}

// head returns the HEAD of the work tree.
func (r *Repo) head(ctx context.Context) (h Head, err error) {
	out, err := r.user(ctx, call{args: []string{"symbolic-ref", "-q", "HEAD"}})
	if err != nil && code(err) != 1 {
		return h, fault.Wrap(err, "read HEAD of %s", r.Top)
	}
	if err == nil {
		h.Branch = Ref(strings.TrimSuffix(string(out), "\n"))
	}
	h.Commit, err = r.commit(ctx, "HEAD")
	if fault.Is(err, fault.NotFound) {
		return h, fault.New(fault.Unsupported, "%s has no commits", r.Top).
			WithHint("create one: git commit --allow-empty -m first")
	}
	return h, err
}

// Onto reads the branch that is checked out in the work tree, "" if HEAD is detached, and its commit.
func (r *Repo) Onto(ctx context.Context) (Ref, OID, error) {
	h, err := r.head(ctx)
	return h.Branch, h.Commit, err
}

// commit returns the commit that a revision names; NotFound if there is none. Errors quote the user's text.
func (r *Repo) commit(ctx context.Context, rev string) (OID, error) {
	out, err := r.user(ctx, call{args: []string{"rev-parse", "-q", "--verify", "--end-of-options", rev + "^{commit}"}})
	if code(err) > 0 {
		return "", fault.New(fault.NotFound, "commit %q not found in %s", clip(rev), r.Top).
			WithHint("list the branches: git branch -a")
	}
	if err != nil {
		return "", fault.Wrap(err, "resolve %q", clip(rev))
	}
	return ParseOID(strings.TrimSpace(string(out)))
}

// Commit returns the commit that a revision names, as the user wrote it; NotFound if there is none.
func (r *Repo) Commit(ctx context.Context, rev string) (OID, error) { return r.commit(ctx, rev) }

// user runs git in the user's repository with the user's configuration, except for the settings always.
func (r *Repo) user(ctx context.Context, c call) ([]byte, error) {
	c.env = append(append(r.git.userEnv(), "GIT_DIR="+r.Dir, "GIT_WORK_TREE="+r.Top), c.env...)
	c.dir = r.Top
	return r.git.run(ctx, c)
}

// code returns git's exit code for err, 0 for nil, and -1 for other errors.
func code(err error) int {
	var ge *GitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ge):
		return ge.Code
	}
	return -1
}

// tip returns the commit that a reference names now, or "".
func (r *Repo) tip(ctx context.Context, ref Ref) (OID, error) {
	out, err := r.user(ctx, call{args: []string{"rev-parse", "-q", "--verify", "--end-of-options", string(ref)}})
	if code(err) > 0 {
		return "", nil
	}
	if err != nil {
		return "", fault.Wrap(err, "inspect %s", ref)
	}
	return ParseOID(strings.TrimSpace(string(out)))
}
