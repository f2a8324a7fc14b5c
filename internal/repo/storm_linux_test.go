package repo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// nest creates nested directories below dir, with a file in each. It returns the paths of the files, except those
// longer than limit.TreePath.
func nest(t *testing.T, dir string, depth int) (files []string) {
	t.Helper()
	cur, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { unix.Close(cur) }()
	at := ""
	for range depth {
		if err := unix.Mkdirat(cur, "n", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(cur, "n", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(cur)
		if err != nil {
			t.Fatal(err)
		}
		f, err := unix.Openat(next, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(f)
		at += "n/"
		if cur = next; len(at) < limit.TreePath {
			files = append(files, at+"f")
		}
	}
	return files
}

// walked walks over a directory as a snapshot does.
func (l *lab) walked(r *Repo, dir string, paths []string) (*walk, error) {
	l.t.Helper()
	d, err := r.desk()
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.close(&err)
	rules, err := r.ignoreRules(ctx, d, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	defer rules.close(&err)
	tree, err := os.Open(dir)
	if err != nil {
		l.t.Fatal(err)
	}
	defer tree.Close()
	w := &walk{tree: tree, base: listing{}, dirs: map[string]bool{}, format: r.Format, rules: rules, limits: r.opt.Limits,
		seen: map[string]bool{}, decided: map[string]bool{}}
	return w, w.all(ctx, paths)
}

// TestWalk_OpensEachDirectoryOnce covers 300 nested directories. They took 42 seconds when the walk opened each
// of them, and all its parents, from the top.
func TestWalk_OpensEachDirectoryOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	for _, depth := range []int{50, 300, 1500} {
		dir := t.TempDir()
		files := nest(t, dir, depth)
		for name, paths := range map[string][]string{"all": nil, "by name": files} {
			w, err := l.walked(r, dir, paths)
			if err != nil || len(w.found) != depth {
				t.Fatalf("%s, %d deep: %d files, %v", name, depth, len(w.found), err)
			}
			if most := 8 * depth; w.calls > most+8 {
				t.Errorf("%s, %d deep: %d calls, more than %d", name, depth, w.calls, most)
			}
		}
	}
}

func TestTops_DropNestedPaths(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ paths, want []string }{
		{[]string{"a/x", "a", "a-b", "a.b/c", "a.b", "ab/c", "a/b/c", "a-b/x"}, []string{"a", "a-b", "a.b", "ab/c"}},
		{[]string{"b", "b/.git/x", "/c", "b/c/d"}, []string{"b"}},
		{[]string{"a/b/c", "a/b", "a/bc"}, []string{"a/b", "a/bc"}},
	} {
		got, err := new(walk).tops(t.Context(), tc.paths)
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("the tops of %q: %q, %v", tc.paths, got, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := new(walk).tops(ended, []string{"a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := (&walk{base: listing{"a/b": {}}, dirs: map[string]bool{"a": true}, seen: map[string]bool{}}).
		gone(ended, []string{"a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("missing files, with a context that has ended: %v", err)
	}
}

func TestSnapshot_IncludesDeepDirectories(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	nest(t, dir, 300)
	got := l.mustSnapshot(r, dir, nil)
	if got.Changed != 300 || strings.Count(l.tree(got.Commit), "n/f") != 300 {
		t.Errorf("%d paths changed", got.Changed)
	}
	l.sound()
}

// TestSnapshot_SkipsPathsBeyondPathMax checks that nested directories beyond the maximum path length are skipped
// and reported, so that a partial change never looks complete.
func TestSnapshot_SkipsPathsBeyondPathMax(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	files := nest(t, dir, 2500)
	got := l.mustSnapshot(r, dir, nil)
	if len(got.Skipped) == 0 || len(got.Skipped) > 3 || got.Changed < len(files)-2 {
		t.Fatalf("%d of %d files, %d skipped", got.Changed, len(files), len(got.Skipped))
	}
	for _, s := range got.Skipped {
		if s.Why != "too long" {
			t.Errorf("%d bytes: %s", len(s.Path), s.Why)
		}
	}
}

func TestSnapshot_BoundsPaths(t *testing.T) {
	t.Parallel()
	w := &walk{limits: DefaultLimits, seen: map[string]bool{}}
	long := strings.Repeat("n", limit.TreePath-10)
	var err error
	n := 0
	for ; err == nil && n < limit.TreePaths; n++ {
		if n%2 == 0 {
			err = w.differs(found{path: fmt.Sprint(n) + long, mode: ModeFile})
		} else {
			err = w.skip(fmt.Sprint(n)+long, "not a file, directory or symbolic link")
		}
	}
	if !fault.Is(err, fault.TooLarge) || n > limit.TreePaths/len(long)+1 {
		t.Errorf("after %d paths: %v", n, err)
	}
}

// TestSnapshot_ReadsRulesOnlyFromFiles checks that .gitignore, .gitmodules and .gitattributes are opened only if
// they are regular files, and read only if they are not too large.
func TestSnapshot_ReadsRulesOnlyFromFiles(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	outside := t.TempDir()
	l.file(outside, "rules", "*\n")
	for i, name := range []string{".gitignore", ".gitmodules", ".gitattributes"} {
		at := filepath.Join(dir, fmt.Sprint(i))
		for _, kind := range []string{"fifo", "link", "zero", "dir", "socket"} {
			l.file(at, kind+"/f", "x")
		}
		p := func(kind string) string { return filepath.Join(at, kind, name) }
		if err := errors.Join(unix.Mkfifo(p("fifo"), 0o666), os.Symlink(filepath.Join(outside, "rules"), p("link")),
			os.Symlink("/dev/zero", p("zero")), os.Mkdir(p("dir"), 0o755),
			unix.Mknod(p("socket"), unix.S_IFSOCK|0o666, 0)); err != nil {
			t.Fatal(err)
		}
	}
	l.file(dir, "huge/f", "x")
	f, err := os.Create(filepath.Join(dir, "huge/.gitignore"))
	if err == nil {
		_, err = f.WriteString("*\n")
		err = errors.Join(err, f.Truncate(1<<30), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := l.walked(r, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range w.found {
		got = append(got, f.path)
	}
	for i := range 3 {
		for _, kind := range []string{"fifo", "link", "zero", "dir", "socket"} {
			if p := fmt.Sprintf("%d/%s/f", i, kind); !strings.Contains(strings.Join(got, "\n"), p) {
				t.Errorf("%s is missing from the changes", p)
			}
		}
	}
	if !strings.Contains(strings.Join(got, "\n"), "huge/f") {
		t.Error("a .gitignore of a gigabyte was read")
	}
	if len(w.skipped) != 6 {
		t.Errorf("skipped: %+v", w.skipped)
	}
}

func TestSnapshot_BoundsIgnoreRules(t *testing.T) {
	t.Parallel()
	for name, have := range map[string]ignoreRules{"files": {files: limit.RuleFiles}, "bytes": {bytes: limit.RuleBytes}} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, ignoreFile), []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		have.carried = map[string]bool{}
		if err := have.carry(f, "d"); !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
		f.Close()
	}
}

// TestSnapshot_BoundsTheWorkOfIgnoreRules covers 200,000 rules and many paths. Matching each path against each
// rule would take hours.
func TestSnapshot_BoundsTheWorkOfIgnoreRules(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "s/.gitignore", strings.Repeat("*q*b\n", limit.RuleFile/5))
	for i := range 2000 {
		l.file(dir, fmt.Sprintf("s/%s%d", strings.Repeat("a", 200), i), "x")
	}
	r.opt.Limits.Work = 1e9
	if _, err := l.snapshot(r, dir, nil); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	l.sound()
}

// TestSnapshot_AppliesRulesOfNewDirectory checks that the rules of a directory that the base lacks apply, even if
// no other directory is looked up in between.
func TestSnapshot_AppliesRulesOfNewDirectory(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "new/.gitignore", "hidden\n")
	l.file(dir, "new/hidden", "x")
	l.file(dir, "new/seen", "x")
	for name, paths := range map[string][]string{"all": nil, "by name": {"new/hidden", "new/seen", "new/.gitignore"}} {
		if got := l.mustSnapshot(r, dir,
			func(s *Snapshot) { s.Paths = paths }); strings.Contains(l.tree(got.Commit), "hidden") || got.Changed != 2 {
			t.Errorf("%s: %s", name, l.tree(got.Commit))
		}
	}
	l.sound()
}

func TestSnapshot_ReportsNestedRepositoriesOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	var paths []string
	at := "r"
	for range 50 {
		l.file(dir, at+"/.git/config", "[core]\n")
		l.file(dir, at+"/f", "x")
		paths = append(paths, at+"/f")
		at += "/r"
	}
	for name, p := range map[string][]string{"all": nil, "by name": paths} {
		got := l.mustSnapshot(r, dir, func(s *Snapshot) { s.Paths = p })
		if got.Changed != 0 || len(got.Skipped) != 1 || got.Skipped[0].Path != "r" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	l.sound()
}

func TestSnapshot_StopsOnCancel(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	nest(t, dir, 100)
	over, cancel := context.WithCancel(ctx)
	cancel()
	w := &walk{base: listing{}, dirs: map[string]bool{}, format: r.Format, limits: r.opt.Limits, seen: map[string]bool{},
		decided: map[string]bool{}}
	tree, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	w.tree, w.rules = tree, &ignoreRules{carried: map[string]bool{"": true}}
	if err := w.all(over, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	f, err := dirfd.OpenFile(tree, "n/f", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(io.Discard, reader{over, f}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
