package repo

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

// stack is a sandbox's view of stacked checkouts, in a plain directory. Each is written into its own directory,
// like a layer, and then moved on top.
type stack struct {
	l    *lab
	r    *Repo
	dir  string // the view
	last OID
}

func (l *lab) stack(r *Repo) *stack { return &stack{l: l, r: r, dir: l.t.TempDir()} }

// lay checks out a commit on top of the current state.
func (s *stack) lay(commit OID) CheckedOut {
	s.l.t.Helper()
	layer := s.l.t.TempDir()
	defer os.RemoveAll(layer)
	root := s.l.root(layer)
	gone, hidden := map[string]bool{}, map[string]bool{}
	got, err := s.r.Checkout(ctx, Checkout{Commit: commit, From: s.last, To: root,
		Remove: func(p string) error {
			if _, err := os.Lstat(filepath.Join(layer, p)); err == nil {
				s.l.t.Errorf("%q was removed, but is in the layer", p)
			}
			if i, err := os.Stat(filepath.Dir(filepath.Join(layer, p))); err != nil || !i.IsDir() {
				s.l.t.Errorf("%q was removed, but its directory does not exist in the layer", p)
			}
			gone[p] = true
			return nil
		},
		Hide: func(p string) error {
			if i, err := os.Stat(filepath.Join(layer, p)); err != nil || !i.IsDir() {
				s.l.t.Errorf("%q hides the layers below, but does not exist", p)
			}
			hidden[p] = true
			return nil
		}})
	if err != nil {
		s.l.t.Fatal(err)
	}
	for p := range gone {
		if err := os.RemoveAll(filepath.Join(s.dir, p)); err != nil {
			s.l.t.Fatal(err)
		}
	}
	s.l.layOn(layer, s.dir, hidden)
	s.last = commit
	return got
}

func (l *lab) root(dir string) *os.Root {
	l.t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { root.Close() })
	return root
}

// layOn moves the files of a layer over the state below, with the semantics of overlayfs.
func (l *lab) layOn(layer, below string, hidden map[string]bool) {
	l.t.Helper()
	err := filepath.WalkDir(layer, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(layer, p)
		to := filepath.Join(below, rel)
		was, there := os.Lstat(to)
		switch {
		case err != nil || rel == ".":
			return err
		case d.IsDir() && (hidden[rel] || there == nil && !was.IsDir()):
			if err := os.RemoveAll(to); err != nil {
				return err
			}
			fallthrough
		case d.IsDir():
			if err := os.Mkdir(to, 0o755); err != nil && !os.IsExist(err) {
				return err
			}
			return nil
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		return os.Rename(p, to)
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// picture returns everything that a checkout must reproduce: kinds, modes, contents, links.
func (l *lab) picture(dir string) map[string]string {
	l.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return err
		}
		if rel == ".git" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += " " + string(b)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			what += " " + to
		}
		all[rel] = what
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

// worktree returns the picture of git's own checkout.
func (l *lab) worktree(commit OID) map[string]string {
	l.t.Helper()
	dir := l.t.TempDir()
	defer os.RemoveAll(dir)
	l.run(dir, "--git-dir="+filepath.Join(l.top, ".git"), "--work-tree=.", "read-tree", "-u", "--reset",
		"--index-output="+filepath.Join(l.home, "index"), string(commit))
	return l.picture(dir)
}

// leaf is one entry of a synthetic tree.
type leaf struct {
	mode Mode
	text string
}

// madeUp commits a synthetic tree.
func (l *lab) madeUp(files map[string]leaf, date int64) OID {
	l.t.Helper()
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/madeup\ncommitter U <u@x> %d +0000\ndata 1\nc\ndeleteall\n", date)
	for _, p := range slices.Sorted(maps.Keys(files)) {
		f := files[p]
		if f.mode == ModeSubmodule {
			fmt.Fprintf(&in, "M 160000 %s %s\n", strings.Repeat(f.text, l.format.digits()), quote(p))
			continue
		}
		fmt.Fprintf(&in, "M %o inline %s\ndata %d\n%s\n", uint32(f.mode), quote(p), len(f.text), f.text)
	}
	in.WriteString("done\n")
	if out, err := l.try(l.top, in.Bytes(), "fast-import", "--quiet", "--done", "--force"); err != nil {
		l.t.Fatal(out)
	}
	return OID(l.run(l.top, "rev-parse", "refs/heads/madeup"))
}

// drawTree generates a tree. It has few names, so that directories replace files and vice versa, and names with
// special characters.
func drawTree(t *rapid.T) map[string]leaf {
	name := rapid.SampledFrom(
		[]string{"a", "b", "a-b", "a.c", "A", "new\nline", "\"quoted\" \\", "\xff\xfe", " ", "tab\t", "-q", ":(top)", "#",
			"git", strings.Repeat("n", 255)})
	files := map[string]leaf{}
	for range rapid.IntRange(0, 14).Draw(t, "files") {
		p := path.Join(rapid.SliceOfN(name, 1, 3).Draw(t, "path")...)
		clash := false
		for q := range files {
			clash = clash || strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/")
		}
		if clash {
			continue
		}
		f := leaf{mode: rapid.SampledFrom([]Mode{ModeFile, ModeFile, ModeFile, ModeExecutable, ModeLink, ModeSubmodule}).
			Draw(t, "mode")}
		switch f.mode {
		case ModeSubmodule:
			f.text = rapid.SampledFrom([]string{"1", "2"}).Draw(t, "commit")
		case ModeLink:
			f.text = rapid.SampledFrom([]string{"a", "../..", "/etc/passwd", "x\ny", "\xff", strings.Repeat("l/", 1000)}).
				Draw(t, "target")
		default:
			f.text = rapid.SampledFrom([]string{"", "one", "two", "line\r\n", strings.Repeat("0123456789abcdef", 70_000)}).
				Draw(t, "text")
		}
		files[p] = f
	}
	return files
}

// TestCheckout_MatchesGit checks out any two commits, the second on top of the first, and compares the result
// with git's checkout of the second.
func TestCheckout_MatchesGit(t *testing.T) {
	t.Parallel()
	labs := []*lab{newLab(t, SHA1), newLab(t, SHA256)}
	repos := []*Repo{labs[0].open(), labs[1].open()}
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 1).Draw(rt, "format")
		l, s := labs[n], labs[n].stack(repos[n])
		defer os.RemoveAll(s.dir)
		for i := range rapid.IntRange(2, 3).Draw(rt, "commits") {
			commit := l.madeUp(drawTree(rt), 1_600_000_000+int64(i))
			got := s.lay(commit)
			want := l.worktree(commit)
			if now := l.picture(s.dir); !maps.Equal(now, want) {
				rt.Fatalf("%d: got\n%q\nwant\n%q", i, now, want)
			}
			if got.Time.Unix() != 1_600_000_000+int64(i) {
				rt.Fatalf("the time is %s", got.Time)
			}
		}
	})
}

// TestCheckout_TimesAndModes checks that all files have the time of the commit and git's modes, whatever the
// umask is.
func TestCheckout_TimesAndModes(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	l := newLab(t, SHA1)
	r := l.open()
	for _, date := range []int64{0, 1, 1_600_000_000, 1_699_999_999, 1_700_000_000, 5_000_000_000} {
		commit := l.madeUp(
			map[string]leaf{"d/e/f": {ModeFile, "f"}, "d/x": {ModeExecutable, "x"}, "l": {ModeLink, "d"},
				"m": {ModeSubmodule, "1"}}, date)
		dir := t.TempDir()
		got, err := r.Checkout(ctx, Checkout{Commit: commit, To: l.root(dir)})
		if err != nil {
			t.Fatal(err)
		}
		want := time.Unix(max(1, min(date, 1_700_000_000-2)), 0)
		if !got.Time.Equal(want) || got.Files != 3 || got.Bytes != 3 || !slices.Equal(got.Submodules, []string{"m"}) {
			t.Errorf("%+v, want the time %d", got, want.Unix())
		}
		for name, mode := range map[string]fs.FileMode{"d": fs.ModeDir | 0o755, "d/e": fs.ModeDir | 0o755, "d/e/f": 0o644,
			"d/x": 0o755, "m": fs.ModeDir | 0o755, "l": fs.ModeSymlink | 0o777} {
			info, err := os.Lstat(filepath.Join(dir, name))
			if err != nil || info.Mode() != mode || !info.ModTime().Equal(want) {
				t.Errorf("%s: %v %v %v", name, info.Mode(), info.ModTime(), err)
			}
		}
	}
}

// rawTree writes a tree object as given, even if git would not write it.
func (l *lab) rawTree(entries ...string) OID {
	l.t.Helper()
	var raw []byte
	for _, e := range entries {
		f := strings.SplitN(e, " ", 3) // mode, object, name
		raw = append(raw, f[0]+" "+f[2]+"\x00"...)
		for i := 0; i < len(f[1]); i += 2 {
			raw = append(raw, unhex(f[1][i])<<4|unhex(f[1][i+1]))
		}
	}
	out, err := l.try(l.top, raw, "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	if err != nil {
		l.t.Fatal(out)
	}
	commit, err := l.try(l.top, nil, "commit-tree", "-m", "m", strings.TrimSpace(out))
	if err != nil {
		l.t.Fatal(commit)
	}
	return OID(strings.TrimSpace(commit))
}

// TestCheckout_RefusesHostileTrees checks that malicious trees are refused, and that nothing is written outside
// the top directory.
func TestCheckout_RefusesHostileTrees(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	blob := l.run(l.top, "rev-parse", "HEAD:a.txt")
	tree := l.run(l.top, "rev-parse", "HEAD:dir")
	link, err := l.try(l.top, []byte("/tmp"), "hash-object", "-w", "--stdin")
	if err != nil {
		t.Fatal(link)
	}
	link = strings.TrimSpace(link)
	nul, _ := l.try(l.top, []byte("a\x00b"), "hash-object", "-w", "--stdin")
	none, _ := l.try(l.top, nil, "hash-object", "-w", "--stdin")
	for name, commit := range map[string]OID{
		"dot dot":            l.rawTree("100644 " + blob + " .."),
		"a directory dotdot": l.rawTree("40000 " + tree + " .."),
		"dot":                l.rawTree("40000 " + tree + " ."),
		".git":               l.rawTree("40000 " + tree + " .git"),
		".GIT":               l.rawTree("100644 " + blob + " .GIT"),
		"git~1":              l.rawTree("100644 " + blob + " git~1"),
		"a slash":            l.rawTree("100644 " + blob + " a/../../b"),
		"a path":             l.rawTree("100644 " + blob + " /etc/x"),
		"twice":              l.rawTree("100644 "+blob+" a", "100644 "+blob+" a"),
		"link and directory": l.rawTree("120000 "+link+" d", "40000 "+tree+" d"),
		"two links":          l.rawTree("120000 "+link+" d", "120000 "+link+" d"),
		"a NUL in a link":    l.rawTree("120000 " + strings.TrimSpace(nul) + " l"),
		"an empty link":      l.rawTree("120000 " + strings.TrimSpace(none) + " l"),
		"a tree as a file":   l.rawTree("100644 " + tree + " a"),
		"no such object":     l.rawTree("100644 " + strings.Repeat("12", 20) + " a"),
	} {
		dir := filepath.Join(t.TempDir(), "within")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := r.Checkout(ctx, Checkout{Commit: commit, To: l.root(dir)})
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v (%s)", name, err, fault.KindOf(err))
		}
		if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
			t.Errorf("%s: files outside the top directory: %v", name, left)
		}
	}
}

// TestCheckout_NormalizesOldModes covers trees of old histories, with modes that git no longer writes. They are
// read as git reads them.
func TestCheckout_NormalizesOldModes(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	blob := l.run(l.top, "rev-parse", "HEAD:a.txt")
	r := l.open()
	one := l.rawTree("100664 "+blob+" a", "100775 "+blob+" b", "100600 "+blob+" c")
	two := l.rawTree("100666 "+blob+" a", "100644 "+blob+" b", "100711 "+blob+" c", "100640 "+blob+" d")
	b := l.begin(r, one, two)
	if s := b.sh("diff-files") + b.sh("status", "--porcelain"); s != "" {
		t.Errorf("git inside prints\n%s", s)
	}
	want := l.worktree(two)
	if got := l.picture(b.dir); !maps.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}
