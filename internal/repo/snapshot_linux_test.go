package repo

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

const state = Ref("refs/coppice/fix/state")

// snapshot takes a snapshot of a directory.
func (l *lab) snapshot(r *Repo, dir string, change func(*Snapshot)) (Snapshotted, error) {
	l.t.Helper()
	tree, err := os.OpenRoot(dir)
	if err != nil {
		l.t.Fatal(err)
	}
	defer tree.Close()
	old, err := r.tip(ctx, state)
	if err != nil {
		l.t.Fatal(err)
	}
	s := Snapshot{Base: r.Head.Commit, Tree: tree, Author: Person{"Agent", "agent@example.org"}, Message: "what it left",
		To: state, Old: old}
	if change != nil {
		change(&s)
	}
	return r.Snapshot(ctx, s)
}

func (l *lab) mustSnapshot(r *Repo, dir string, change func(*Snapshot)) Snapshotted {
	l.t.Helper()
	got, err := l.snapshot(r, dir, change)
	if err != nil {
		l.t.Fatal(err)
	}
	return got
}

// tree lists the paths of a commit, with their modes.
func (l *lab) tree(of OID) string {
	l.t.Helper()
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSuffix(l.run(l.top, "ls-tree", "-r", "-z", string(of)), "\x00"),
		"\x00") {
		head, path, _ := strings.Cut(line, "\t")
		fmt.Fprintf(&b, "%s %q\n", head[:6], path)
	}
	return b.String()
}

func TestSnapshot_MatchesWorktree(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "a.txt", "changed\n")
	os.Remove(filepath.Join(dir, "dir/b.txt"))
	l.file(dir, "dir/\xff \"quoted\"\n-tab\t", "strange name")
	l.program(dir, "run.sh", "#!/bin/sh\n")
	os.Symlink("/etc/passwd", filepath.Join(dir, "link"))
	l.file(dir, "empty", "")
	l.file(dir, ".git/config", "[core]\n\tfsmonitor = /bin/false\n")
	got := l.mustSnapshot(r, dir, nil)
	want := "100644 \".gitignore\"\n100644 \"a.txt\"\n100644 \"dir/\\xff \\\"quoted\\\"\\n-tab\\t\"\n100644 " +
		"\"empty\"\n120000 \"link\"\n100755 \"run.sh\"\n"
	if tree := l.tree(got.Commit); tree != want {
		t.Errorf("the tree is\n%s\nwant\n%s", tree, want)
	}
	if s := l.run(l.top, "cat-file", "blob", string(got.Commit)+":link"); s != "/etc/passwd" {
		t.Errorf("the link leads to %q", s)
	}
	if s := l.run(l.top, "log", "-1", "--format=%an %ae %P %s", string(got.Commit)); s != "Agent agent@example.org "+
		string(r.Head.Commit)+" what it left" {
		t.Errorf("the commit is %q", s)
	}
	if got.Changed != 6 || len(got.Skipped) != 0 {
		t.Errorf("%+v", got)
	}
	l.sound()
}

func TestSnapshot_WithoutChangesIsBase(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA256)
	r, dir := l.open(), l.sandbox()
	if got := l.mustSnapshot(r, dir, nil); got.Commit != r.Head.Commit || got.Changed != 0 {
		t.Errorf("%+v", got)
	}
	l.sound()
}

// TestSnapshot_SandboxOnlyAddsIgnoreRules checks that the sandbox can hide files from the commit, but cannot add
// files that the user ignores.
func TestSnapshot_SandboxOnlyAddsIgnoreRules(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	l.file(l.home, ".config/git/ignore", "*.mine\n")
	l.file(l.top, ".git/info/exclude", "*.local\n")
	l.file(l.top, "kept.o", "tracked although ignored\n")
	l.run(l.top, "add", "-f", "kept.o")
	l.commit(l.top, "second")
	r, dir := l.open(), l.sandbox()
	l.file(dir, ".gitignore", "!*.o\n!secret/\n!*.mine\nnode_modules/\n*.hidden\n!kept.hidden\n")
	for _, f := range []string{"x.o", "secret/key", "x.mine", "x.local", "node_modules/p/index.js", "dir/x.hidden",
		"dir/kept.hidden", "dir/seen"} {
		l.file(dir, f, f)
	}
	l.file(dir, "dir/.gitignore", "/deep\n")
	l.file(dir, "dir/deep/x", "x")
	l.file(dir, "kept.o", "changed\n")
	os.MkdirAll(filepath.Join(dir, "odd"), 0o755)
	os.Symlink("/etc/passwd", filepath.Join(dir, "odd/.gitignore"))
	want := "100644 \".gitignore\"\n100644 \"a.txt\"\n100644 \"dir/.gitignore\"\n100644 \"dir/b.txt\"\n100644 " +
		"\"dir/kept.hidden\"\n100644 \"dir/seen\"\n100644 \"kept.o\"\n120000 \"odd/.gitignore\"\n"
	all := l.mustSnapshot(r, dir, nil)
	if tree := l.tree(all.Commit); tree != want {
		t.Errorf("the tree is\n%s\nwant\n%s", tree, want)
	}
	named := l.mustSnapshot(r, dir, func(s *Snapshot) {
		s.Paths = []string{".gitignore", "x.o", "secret/key", "x.mine", "x.local", "node_modules/p/index.js", "dir/x.hidden",
			"dir/kept.hidden", "dir/seen", "dir/.gitignore", "dir/deep/x", "kept.o", "odd", "odd/.gitignore", "no/such"}
	})
	if l.tree(named.Commit) != want {
		t.Errorf("with the path given, the tree is\n%s", l.tree(named.Commit))
	}
	l.sound()
}

func TestSnapshot_ReportsSkippedEntries(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)
	unix.Mkfifo(filepath.Join(dir, "dir/fifo"), 0o666)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(here, filepath.Join(dir, "s"))
	if err != nil || unix.Bind(fd, &unix.SockaddrUnix{Name: rel}) != nil {
		t.Log("no socket:", err)
	}
	l.file(dir, "nested/.git/config", "[core]\n")
	l.file(dir, "nested/file", "x")
	l.file(dir, "gitfile/.git", "gitdir: /home/user/.git\n")
	l.file(dir, "dir/.GIT/config", "x")
	l.file(dir, "dir/git~1/config", "x")
	l.file(dir, "dir/.g\u200cit", "x")
	l.file(dir, "ok", "x")
	got := l.mustSnapshot(r, dir, nil)
	if got.Changed != 1 {
		t.Errorf("%d paths changed:\n%s", got.Changed, l.tree(got.Commit))
	}
	var paths []string
	for _, s := range got.Skipped {
		if s.Path != "s" {
			paths = append(paths, s.Path)
		}
	}
	slices.Sort(paths)
	if want := []string{"dir/.GIT", "dir/.g\u200cit", "dir/fifo", "dir/git~1", "fifo", "gitfile",
		"nested"}; !slices.Equal(paths, want) {
		t.Errorf("skipped %q, want %q", paths, want)
	}
	l.sound()
}

func TestSnapshot_FollowsNoLink(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	outside := t.TempDir()
	l.file(outside, "b.txt", "from outside")
	os.RemoveAll(filepath.Join(dir, "dir"))
	os.Symlink(outside, filepath.Join(dir, "dir"))
	os.Symlink("dir", filepath.Join(dir, "other"))
	for _, paths := range [][]string{nil, {"dir/b.txt", "dir", "other"}, {"dir/b.txt"}} {
		got := l.mustSnapshot(r, dir, func(s *Snapshot) { s.Paths = paths })
		want := "100644 \".gitignore\"\n100644 \"a.txt\"\n120000 \"dir\"\n120000 \"other\"\n"
		if len(paths) == 1 {
			want = "100644 \".gitignore\"\n100644 \"a.txt\"\n"
		}
		if tree := l.tree(got.Commit); tree != want {
			t.Errorf("with %q the tree is\n%s", paths, tree)
		}
	}
	l.sound()
}

func TestSnapshot_KeepsSubmodulesOfBase(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	other := t.TempDir()
	l.run(other, "init", "-q")
	l.file(other, "f", "f")
	l.commit(other, "sub")
	l.run(l.top, "submodule", "add", "-q", other, "sub")
	l.commit(l.top, "with a submodule")
	r := l.open()
	dir := l.sandbox() // a clone in which the submodule is not checked out
	l.file(dir, "sub/f", "changed")
	l.file(dir, "ok", "x")
	got := l.mustSnapshot(r, dir, nil)
	if tree := l.tree(got.Commit); !strings.Contains(tree, "160000 \"sub\"") || got.Changed != 1 {
		t.Errorf("%+v\n%s", got, tree)
	}
	os.RemoveAll(filepath.Join(dir, "sub"))
	got = l.mustSnapshot(r, dir, nil)
	if tree := l.tree(got.Commit); !strings.Contains(tree, "160000 \"sub\"") {
		t.Errorf("without its directory: %+v\n%s", got, tree)
	}
	l.file(dir, "sub/f", "plain")
	got = l.mustSnapshot(r, dir, func(s *Snapshot) { s.Submodules = []string{"sub"} })
	if tree := l.tree(got.Commit); !strings.Contains(tree, "100644 \"sub/f\"") {
		t.Errorf("as files: %+v\n%s", got, tree)
	}
	l.sound()
}

func TestSnapshot_ShrinkingFileIsConflict(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	_, dir := l.open(), l.sandbox()
	tree, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	var out strings.Builder
	if err := writeFile(ctx, &out, tree,
		found{path: "a.txt", mode: ModeFile, size: 1000}); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
	os.Remove(filepath.Join(dir, "a.txt"))
	os.Symlink("dir/b.txt", filepath.Join(dir, "a.txt"))
	unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)
	for _, p := range []string{"fifo", "gone", "dir"} {
		if err := writeFile(ctx, &out, tree, found{path: p, mode: ModeFile, size: 1}); !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// TestSnapshot_MatchesGit checks that the commit of any changes in a sandbox is what git itself would commit,
// whether all files are compared or only the changed paths.
func TestSnapshot_MatchesGit(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	names := []string{"a", "b", "a b", "-x", "ä", "x\ny", "\xfe", "*.c", ":y", "\"q"}
	r, dir, checks := l.open(), l.sandbox(), 0
	rapid.Check(t, func(t *rapid.T) {
		if checks++; checks > 30 {
			return // each check starts forty git processes
		}
		l.run(dir, "reset", "-q", "--hard")
		l.run(dir, "clean", "-qffdx")
		tree, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		changed := map[string]bool{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			var parts []string
			for range rapid.IntRange(1, 3).Draw(t, "depth") {
				parts = append(parts, rapid.SampledFrom(append(names, "dir", "a.txt", "b.txt")).Draw(t, "name"))
			}
			p, up := filepath.Join(parts...), filepath.Dir(filepath.Join(parts...))
			// os.Root ensures that no link that the test created leads out of the directory.
			if tree.MkdirAll(up, 0o755); up != "." {
				if info, err := at(tree, up); err != nil || info == nil || !info.IsDir() {
					continue
				}
			}
			changed[parts[0]] = true
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				tree.RemoveAll(p)
			case 1:
				tree.Symlink(rapid.SampledFrom([]string{"a", "/", "..", "dir"}).Draw(t, "target"), p)
			case 2:
				if info, err := tree.Lstat(p); err == nil && info.Mode().IsRegular() {
					tree.Chmod(p, 0o755)
				}
			default:
				tree.RemoveAll(p)
				tree.WriteFile(p, rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "content"), 0o644)
			}
		}
		if out, err := l.try(dir, nil, "add", "-A"); err != nil {
			t.Fatal(out)
		}
		want := l.run(dir, "write-tree")
		for _, paths := range [][]string{nil, slices.Collect(maps.Keys(changed))} {
			got, err := l.snapshot(r, dir, func(s *Snapshot) { s.Paths = paths })
			if err != nil {
				t.Fatal(err)
			}
			if tree := l.run(l.top, "rev-parse", string(got.Commit)+"^{tree}"); tree != want {
				t.Fatalf("with %q the tree is\n%s\nwant\n%s", paths, l.tree(got.Commit), l.run(dir, "ls-files", "-s"))
			}
		}
	})
}

func TestSnapshot_EnforcesLimits(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	for i := range 20 {
		l.file(dir, fmt.Sprintf("many/%d", i), strings.Repeat("x", 100*i))
	}
	for name, limits := range map[string]Limits{"object": {Object: 1000}, "changes": {Changes: 10},
		"objects": {Objects: 15}} {
		r.opt.Limits = limits.or(DefaultLimits)
		for _, paths := range [][]string{nil, {"many"}} {
			if _, err := l.snapshot(r, dir, func(s *Snapshot) { s.Paths = paths }); !fault.Is(err, fault.TooLarge) {
				t.Errorf("%s, %q: %v", name, paths, err)
			}
		}
	}
	r.opt.Limits = DefaultLimits
	got, err := l.snapshot(r, dir, func(s *Snapshot) { s.Paths = []string{"../x", "dir/.GIT/config"} })
	if err != nil || len(got.Skipped) != 2 || got.Changed != 0 {
		t.Errorf("paths that no commit can have: %+v, %v", got, err)
	}
	l.sound()
}
