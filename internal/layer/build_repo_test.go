package layer

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// gitLab is a user's repository whose commits become layers of a world.
type gitLab struct {
	*world
	home, top string
	r         *repo.Repo
	index     []byte
	last      repo.OID
}

// newGitLab makes the repository.
func newGitLab(t tb, dir string) *gitLab {
	g := &gitLab{world: &world{t: t}, home: filepath.Join(dir, "home"), top: filepath.Join(dir, "repo")}
	for _, d := range []string{g.home, filepath.Join(dir, "scratch")} {
		g.must(os.MkdirAll(d, 0o700))
	}
	g.git(dir, "init", "-q", "-b", "main", g.top)
	g.must(os.WriteFile(filepath.Join(g.home, ".gitconfig"),
		[]byte("[user]\n\tname = U\n\temail = u@x\n[gc]\n\tauto = 0\n"), 0o600))
	g.git(g.top, "commit", "-q", "--allow-empty", "-m", "first")
	git, err := repo.Find(context.Background(), "", repo.Env{Home: g.home, Path: os.Getenv("PATH")})
	g.must(err)
	g.r, err = repo.Open(context.Background(), git, g.top, repo.Options{Scratch: filepath.Join(dir, "scratch")})
	g.must(err)
	return g
}

func (g *gitLab) git(dir string, args ...string) string {
	g.t.Helper()
	return g.feed(dir, nil, args...)
}

func (g *gitLab) feed(dir string, stdin []byte, args ...string) string {
	g.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
	cmd.Env = []string{"HOME=" + g.home, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// fresh returns a lab with a new world and the same repository.
func (g *gitLab) fresh(t tb, dir string) *gitLab {
	return &gitLab{world: newWorld(t, dir, false), home: g.home, top: g.top, r: g.r}
}

// lay makes the layer of a commit: all of it, or its differences from the commit below.
func (g *gitLab) lay(commit repo.OID) {
	g.t.Helper()
	ctx := context.Background()
	dirs, err := g.r.ObjectDirs(ctx)
	g.must(err)
	objects := map[string]string{}
	for _, d := range dirs {
		objects[d] = d
	}
	g.built(func(b *Builder) error {
		g.must(b.Root().Mkdir("repo", 0o755))
		to, err := b.Root().OpenRoot("repo")
		g.must(err)
		defer to.Close()
		at := func(do func(string) error) func(string) error {
			return func(p string) error { return do(path.Join("repo", p)) }
		}
		got, err := g.r.Checkout(ctx,
			repo.Checkout{Commit: commit, From: g.last, To: to, Remove: at(b.Whiteout), Hide: at(b.Opaque)})
		g.must(err)
		g.must(b.Dir("repo/.git", DirMeta{Mode: 0o755}))
		g.must(b.Opaque("repo/.git"))
		dot, err := to.OpenRoot(".git")
		g.must(err)
		defer dot.Close()
		g.must(g.r.Index(ctx, repo.Index{Written: got, Before: g.index, To: dot}))
		g.index, err = dot.ReadFile("index")
		g.must(err)
		return g.r.Inside(ctx, repo.Inside{Branch: "refs/heads/coppice/x", Commit: commit, Objects: objects, To: dot})
	})
	g.last = commit
}

// TestCommitsAsLayers checks that mounted layers of commits are what git checks out, and that git finds them clean
// without reading a file; also after they were merged, by hard links.
func TestCommitsAsLayers(t *testing.T) {
	needOverlay(t)
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git: ", err)
	}
	lab, worlds := newGitLab(t, t.TempDir()), t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(worlds, "")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		g := lab.fresh(rt, dir)
		defer g.close()
		g.base(func(src string) {})
		for i := range rapid.IntRange(2, 3).Draw(rt, "commits") {
			g.lay(g.madeUp(rt, i))
		}
		g.agree()
		if n := len(g.stack) - 1; n > 1 {
			merged := g.id()
			g.must(g.s.Merge(context.Background(), merged, g.stack[:n]))
			g.stack = append([]timeline.LayerID{merged}, g.stack[n:]...)
			g.agree()
		}
	})
}

// madeUp commits a tree in which directories and files replace each other.
func (g *gitLab) madeUp(t *rapid.T, n int) repo.OID {
	files := map[string]string{}
	name := rapid.SampledFrom([]string{"a", "b", "c", "a.d"})
	for range rapid.IntRange(1, 8).Draw(t, "files") {
		p := path.Join(rapid.SliceOfN(name, 1, 3).Draw(t, "path")...)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(files)),
			func(q string) bool { return strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") }) {
			files[p] = rapid.SampledFrom([]string{"100644 one", "100644 two", "100755 two", "120000 a"}).Draw(t, "content")
		}
	}
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/madeup\ncommitter U <u@x> %d +0000\ndata 1\nc\ndeleteall\n", 1_600_000_000+n)
	for p, c := range files {
		mode, text, _ := strings.Cut(c, " ")
		fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", mode, p, len(text), text)
	}
	in.WriteString("done\n")
	g.feed(g.top, in.Bytes(), "fast-import", "--quiet", "--done", "--force")
	return repo.OID(g.git(g.top, "rev-parse", "refs/heads/madeup"))
}

// agree compares a mount of the layers with git's own view.
func (g *gitLab) agree() {
	g.t.Helper()
	g.present()
	defer g.unmount()
	inside := filepath.Join(g.live, "repo")
	if s := g.git(inside, "diff-files") + g.git(inside, "status", "--porcelain"); s != "" {
		g.t.Fatalf("git inside reports\n%s", s)
	}
	own := filepath.Join(g.home, "own")
	g.must(os.Mkdir(own, 0o755))
	g.git(own, "--git-dir="+filepath.Join(g.top, ".git"), "--work-tree=.", "read-tree", "-u", "--reset",
		"--index-output="+filepath.Join(g.home, "index"), string(g.last))
	want, got := pictureOf(g.t, own), pictureOf(g.t, inside)
	g.must(os.RemoveAll(own))
	g.same("mount", want, got)
	// Changes that only a reader of the file would see, made below the mount.
	g.unmount()
	view := g.s.View(g.dirs(g.stack))
	for p := range want {
		g.deceive(view, path.Join("/repo", p))
	}
	g.present()
	if s := g.git(filepath.Join(g.live, "repo"), "status", "--porcelain"); s != "" {
		g.t.Fatalf("git inside read files: it reports\n%s", s)
	}
	g.unmount()
	for p := range want {
		g.deceive(view, path.Join("/repo", p)) // and back
	}
}

// pictureOf returns kinds, modes and contents of a work tree, without .git.
func pictureOf(t tb, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for p, l := range picture(t, dir) {
		if p == "/" || p == "/.git" || strings.HasPrefix(p, "/.git/") {
			continue
		}
		f := strings.SplitN(l, " ", 5)
		out[p] = f[0] + " " + f[4]
		if strings.HasPrefix(f[0], "4") {
			out[p] = f[0]
		}
	}
	return out
}

// deceive inverts each bit of a file of a layer, and restores its time.
func (g *gitLab) deceive(v *View, p string) {
	g.t.Helper()
	e, err := v.Lookup(p)
	g.must(err)
	if e.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	f := filepath.Join(g.s.Dir(g.stack[e.Layer]), p)
	b, err := os.ReadFile(f)
	g.must(err)
	for i := range b {
		b[i] = ^b[i]
	}
	w, err := os.OpenFile(f, os.O_WRONLY, 0)
	g.must(err)
	_, err = w.Write(b)
	g.must(err)
	g.must(w.Close())
	g.must(unix.UtimesNanoAt(unix.AT_FDCWD, f, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(e.Mtime)}, 0))
}
