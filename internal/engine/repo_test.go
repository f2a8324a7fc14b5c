//go:build linux

package engine

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/vfs"
	"github.com/coppice-dev/coppice/internal/worktree"
)

// project is a home with a user's repository to make sandboxes from.
type project struct {
	*home
	top  string
	base string // the rest of the sandboxes' root
	user string // the user's HOME
}

// Open implements Repos.
func (p *project) Open(ctx context.Context, dir string) (*repo.Repo, error) {
	g, err := repo.Find(ctx, "", repo.Env{Home: p.user})
	if err != nil {
		return nil, err
	}
	return repo.Open(ctx, g, dir, repo.Options{Scratch: p.Scratch()})
}

// Scratch implements Repos.
func (p *project) Scratch() string { return filepath.Join(p.user, "scratch") }

func newProject(t *testing.T) *project { return newProjectOn(t, vfs.OS()) }

func newProjectOn(t *testing.T, layers vfs.FS) *project {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git: for repositories")
	}
	out, err := os.MkdirTemp("/var/tmp", "engine-repo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(out) })
	p := &project{top: filepath.Join(out, "r"), base: filepath.Join(out, "base"), user: filepath.Join(out, "me")}
	for _, dir := range []string{p.top, p.base + "/etc", p.Scratch()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.home = &home{t: t}
	p.git("init", "-q", "-b", "main")
	p.commit("one", map[string]string{"a": "1", "dir/b": "2", "gone": "3"})
	h := newHomeOn(t, layers)
	h.close()
	h.repos = p
	h.open()
	p.home = h
	return p
}

// git runs git in the repository as the user does.
func (p *project) git(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("git",
		append([]string{"-C", p.top, "-c", "user.name=U", "-c", "user.email=u@example.com"}, args...)...)
	cmd.Env = []string{"HOME=" + p.user, "PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit writes files, removes those with the text "", and commits.
func (p *project) commit(msg string, files map[string]string) string {
	p.t.Helper()
	for name, text := range files {
		at := filepath.Join(p.top, name)
		if text == "" {
			if err := os.RemoveAll(at); err != nil {
				p.t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			p.t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
	p.git("add", "-A")
	p.git("commit", "-q", "-m", msg)
	return p.git("rev-parse", "HEAD")
}

func (p *project) make(name string, req wire.RepoRequest) (wire.Sandbox, error) {
	if req.Dir == "" {
		req.Dir = p.top
	}
	return p.Create(p.t.Context(),
		wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceDir, Path: p.base}, Repo: &req},
		func(wire.Progress) {})
}

func (p *project) mustMake(name string, req wire.RepoRequest) wire.Sandbox {
	p.t.Helper()
	sb, err := p.make(name, req)
	if err != nil {
		p.t.Fatal(err)
	}
	return sb
}

func (p *project) refs() []string {
	return strings.Fields(p.git("for-each-ref", "--format=%(refname)", "refs/coppice"))
}

// inside runs git in a sandbox's live root, with the objects of the repository.
func (p *project) inside(name string, args ...string) string {
	p.t.Helper()
	cmd := exec.Command("git",
		append([]string{"-C", filepath.Join(p.box(name).root, p.top), "-c", "safe.directory=*"}, args...)...)
	cmd.Env = []string{"HOME=" + p.user, "PATH=" + os.Getenv("PATH"), "LC_ALL=C",
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + p.top + "/.git/objects"}
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("git %q in %s: %v", args, name, err)
	}
	return strings.TrimSpace(string(out))
}

func (p *project) files(name string) map[string]string {
	p.t.Helper()
	out := readTree(p.t, filepath.Join(p.box(name).root, p.top))
	for at := range out {
		if at == ".git/" || strings.HasPrefix(at, ".git/") {
			delete(out, at)
		}
	}
	return out
}

func TestRepo_SharesCommitTrees(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	first := p.git("rev-parse", "HEAD")
	a := p.mustMake("a", wire.RepoRequest{})
	layers := func() int {
		ids, err := p.Layers.List(p.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(ids)
	}
	if a.Repo == nil || a.Repo.Base != first || a.Repo.From != "main" || a.Repo.Branch != "coppice/a" {
		t.Errorf("the sandbox works on %+v", a.Repo)
	}
	if got := p.inside("a", "status", "--porcelain", "--branch"); got != "## coppice/a" {
		t.Errorf("git status inside: %q", got)
	}
	// On another base the same commit is another tree; the source is imported again for each.
	second := p.commit("two", map[string]string{"a": "changed", "gone": "", "dir": "", "new/c": "4"})
	rec, err := p.DB.Sandbox(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	w, _, err := p.trees.Find(t.Context(), &wire.CreateRequest{Repo: &wire.RepoRequest{Dir: p.top}})
	if err != nil {
		t.Fatal(err)
	}
	parent, _, err := p.DB.Ground(t.Context(), rec.Head)
	if err != nil {
		t.Fatal(err)
	}
	below, _, err := p.DB.Ground(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	tree := &worktree.Tree{Repo: w.Repo, At: p.top, Base: w.Base, Start: w.Base, Below: below}
	n := layers()
	b, err := p.trees.Import(t.Context(), tree, func(wire.Progress) {})
	if err != nil || len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "differs from "+first[:12]) {
		t.Fatalf("the second commit: %v, %v", b.Notes, err)
	}
	again, err := p.trees.Import(t.Context(), tree, func(wire.Progress) {})
	if err != nil || again.ID != b.ID || len(again.Notes) > 0 || layers() != n+1 {
		t.Errorf("the second import is %v, %v, with %d more layers", again, err, layers()-n)
	}
	// A sandbox with the second commit shows only its files.
	rec.ID, rec.Name, rec.Base = "0123456789ab", "b", b.ID
	rec.Repo = &meta.Repo{Top: p.top, Common: w.Common, Dir: p.top, Branch: "coppice/b", Base: second, Start: second}
	held, err := p.Engine.refs.Hold(t.Context(), w.Repo, &rec)
	if err == nil {
		err = p.trees.Record(t.Context(), w, tree, &rec, b, held)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Engine.refs.Made(held)
	if got := p.files("b"); len(got) != 3 || got["a"] != "changed" || got["new/c"] != "4" {
		t.Errorf("the second commit shows %q", got)
	}
	if got := p.inside("b", "status", "--porcelain", "--branch"); got != "## coppice/b" {
		t.Errorf("git status inside: %q", got)
	}
	if got := p.files("a"); got["a"] != "1" || got["gone"] != "3" {
		t.Errorf("the first commit shows %q", got)
	}
}

func TestRepo_CopiesUncommittedFiles(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	for name, text := range map[string]string{"a": "dirty", "new": "n", ".gitignore": "secret\n", "secret": "s"} {
		if err := os.WriteFile(filepath.Join(p.top, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := p.git("status", "--porcelain")
	sb := p.mustMake("wet", wire.RepoRequest{Dirty: true})
	if sb.Repo.Start == "" || sb.Repo.Start == sb.Repo.Base {
		t.Errorf("the sandbox started with %+v", sb.Repo)
	}
	if got := p.inside("wet", "status", "--porcelain"); got != before {
		t.Errorf("status inside\n%s\nand outside\n%s", got, before)
	}
	if _, there := p.files("wet")["secret"]; there {
		t.Error("an ignored file was copied")
	}
	if got := p.git("status", "--porcelain"); got != before {
		t.Errorf("status outside is now\n%s", got)
	}
	var want []string
	for _, c := range []string{sb.Repo.Base, sb.Repo.Start} {
		ref, err := p.Engine.refs.Base(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, string(ref))
	}
	slices.Sort(want)
	if got := p.refs(); !slices.Equal(got, want) {
		t.Errorf("references: %q", got)
	}
}

// TestRepo_ReleasesReferences checks that a reference exists exactly as long as a sandbox that started with its
// commit, whichever process is killed, and when.
func TestRepo_ReleasesReferences(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.mustMake("a", wire.RepoRequest{})
	p.mustMake("b", wire.RepoRequest{})
	if got := p.refs(); len(got) != 1 {
		t.Fatalf("references: %q", got)
	}
	if _, err := p.Remove(t.Context(), []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	if got := p.refs(); len(got) != 1 {
		t.Fatalf("references with one sandbox left: %q", got)
	}

	t.Run("another home's", func(t *testing.T) {
		other := newHome(t)
		other.close()
		other.repos = p
		other.open()
		q := *p
		q.home = other
		q.mustMake("a", wire.RepoRequest{})
		if got := p.refs(); len(got) != 2 {
			t.Errorf("references with a sandbox in another home: %q", got)
		}
		if _, err := q.Remove(t.Context(), []string{"a"}, true); err != nil {
			t.Fatal(err)
		}
		if got := p.refs(); len(got) != 1 {
			t.Errorf("references: %q", got)
		}
	})
	t.Run("killed while it was made", func(t *testing.T) {
		p.commit("half", map[string]string{"half": "x"})
		w, _, err := p.trees.Find(t.Context(), &wire.CreateRequest{Repo: &wire.RepoRequest{Dir: p.top}})
		if err != nil {
			t.Fatal(err)
		}
		rec := meta.Sandbox{ID: "00000000000a", Name: "half"}
		rec.Repo = &meta.Repo{Top: p.top, Common: w.Common, Base: string(w.Base), Start: string(w.Base)}
		if _, err := p.Engine.refs.Hold(t.Context(), w.Repo, &rec); err != nil {
			t.Fatal(err)
		}
		if err := p.Engine.refs.Sweep(t.Context()); err != nil || len(p.refs()) != 2 {
			t.Fatalf("the reference of a sandbox being made was removed: %q, %v", p.refs(), err)
		}
		p.close()
		p.open()
		if err := p.Engine.refs.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.refs(); len(got) != 1 {
			t.Errorf("references: %q", got)
		}
	})
	t.Run("refused", func(t *testing.T) {
		p.commit("fails", map[string]string{"fails": "x"})
		if _, err := p.make("b", wire.RepoRequest{}); !fault.Is(err, fault.Exists) {
			t.Fatalf("a name that is taken: %v", err)
		}
		if got := p.refs(); len(got) != 1 {
			t.Errorf("references: %q", got)
		}
	})
	t.Run("out of reach when it was removed", func(t *testing.T) {
		if err := os.Rename(p.top+"/.git", p.top+"/elsewhere"); err != nil {
			t.Fatal(err)
		}
		// A broken repository, which may be repaired.
		if err := os.WriteFile(p.top+"/.git", []byte("gitdir: nowhere"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Remove(t.Context(), []string{"b"}, true); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(p.top+"/elsewhere", p.top+"/.git.back"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(p.top + "/.git"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(p.top+"/.git.back", p.top+"/.git"); err != nil {
			t.Fatal(err)
		}
		if _, err := p.GC(t.Context(), wire.GCRequest{}, func(wire.Progress) {}); err != nil {
			t.Fatal(err)
		}
		if got := p.refs(); len(got) != 0 {
			t.Errorf("references: %q", got)
		}
	})
	if ints, err := p.DB.Intents(t.Context()); err != nil || len(ints) > 0 {
		t.Errorf("open intents: %v, %v", ints, err)
	}
}

// TestCreateWithRepo_FailureLeavesNothing fails each write of a layer in turn. Either the sandbox is complete or
// nothing is left: no reference, no intent, no layer without a record, no base that is trusted.
func TestCreateWithRepo_FailureLeavesNothing(t *testing.T) {
	t.Parallel()
	disk := &vfs.Faulty{FS: vfs.OS()}
	p := newProjectOn(t, disk)
	first, step := looptest.Sample(t, 5)
	for k := 1 + first; ; k += step {
		name := "s" + itoa(k)
		disk.FailAt(k, unix.EIO, false)
		_, err := p.make(name, wire.RepoRequest{})
		reached := disk.Failed()
		disk.FailAt(0, 0, false)
		if err != nil {
			if got := p.refs(); len(got) != 0 {
				t.Fatalf("write %d failed (%v), and left references %q", k, err, got)
			}
			if _, err := p.DB.Sandbox(t.Context(), name); !fault.Is(err, fault.NotFound) {
				t.Fatalf("write %d failed, and left a sandbox: %v", k, err)
			}
		} else {
			if got := p.inside(name, "status", "--porcelain", "--branch"); got != "## coppice/"+name {
				t.Fatalf("write %d failed, and git status inside: %q", k, got)
			}
			if _, err := p.Remove(t.Context(), []string{name}, true); err != nil {
				t.Fatal(err)
			}
		}
		if ints, err := p.DB.Intents(t.Context()); err != nil || len(ints) > 0 {
			t.Fatalf("write %d failed, and left intents %v, %v", k, ints, err)
		}
		if !reached {
			return
		}
	}
}

// TestRepo_ReimportsTornTree simulates a power loss before the tree is finalized: the next sandbox imports it again.
func TestRepo_ReimportsTornTree(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.mustMake("a", wire.RepoRequest{})
	p.close()
	p.boot = "boot-2"
	p.open()
	p.mustMake("b", wire.RepoRequest{})
	if got := p.files("b"); got["a"] != "1" || len(got) != 4 {
		t.Errorf("the sandbox shows %q", got)
	}
}

func TestGC_FreesUnusedCommitTrees(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	p.mustMake("a", wire.RepoRequest{})
	if _, err := p.Remove(t.Context(), []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	gc := func() int {
		t.Helper()
		if _, err := p.GC(t.Context(), wire.GCRequest{}, func(wire.Progress) {}); err != nil {
			t.Fatal(err)
		}
		ids, err := p.Layers.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(ids)
	}
	if n := gc(); n != 2 {
		t.Errorf("%d layers are kept for the next sandbox, want the tree and its base", n)
	}
	now := time.Now()
	p.Now = func() time.Time { return now.Add(worktree.KeepUnused + time.Hour) }
	if n := gc(); n != 0 {
		t.Errorf("%d layers are left", n)
	}
}

func TestRepository_UnusableIsRefused(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	for name, req := range map[string]wire.RepoRequest{
		"a..b": {}, "b": {At: "nowhere"}, "c": {Dir: p.base}, "d": {Dir: "r"}, "e": {Dir: p.top + "/.git"},
	} {
		if _, err := p.make(name, req); err == nil || fault.Is(err, fault.Internal) {
			t.Errorf("%+v: %v", req, err)
		}
		req.Maybe = true
		if sb, err := p.make(name, req); err != nil || sb.Repo != nil ||
			!slices.ContainsFunc(sb.Warnings, func(w string) bool { return strings.Contains(w, "has no repository") }) {
			t.Errorf("%+v: %+v, %v", req, sb.Warnings, err)
		}
	}
	if got := p.refs(); len(got) != 0 {
		t.Errorf("references: %q", got)
	}
}
