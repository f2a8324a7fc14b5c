package repo

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestIndex_MatchesGit checks that an index without stat data equals git's own index of the same tree, to the
// byte.
func TestIndex_MatchesGit(t *testing.T) {
	t.Parallel()
	labs := []*lab{newLab(t, SHA1), newLab(t, SHA256)}
	repos := []*Repo{labs[0].open(), labs[1].open()}
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 1).Draw(rt, "format")
		x, last := &index{}, OID("")
		for range rapid.IntRange(1, 3).Draw(rt, "commits") {
			commit := labs[n].madeUp(drawTree(rt), 1)
			x = labs[n].likeGit(rt, repos[n], x, last, commit)
			last = commit
		}
	})
}

// likeGit computes the index of a commit from that of another, compares it with git's own, and returns the parsed
// result.
func (l *lab) likeGit(t *rapid.T, r *Repo, x *index, last, commit OID) *index {
	changes, err := r.treeChanges(ctx, last, commit)
	if err != nil {
		t.Fatal(err)
	}
	top, err := r.treeOf(ctx, commit)
	if err != nil {
		t.Fatal(err)
	}
	if x, err = x.apply(ctx, changes, top, 7, 8); err != nil {
		t.Fatal(err)
	}
	got, err := x.encode(ctx, l.format)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(l.home, "index")
	l.run(l.top, "-c", "index.version=2", "read-tree", "--index-output="+name, string(commit))
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("the index is\n%q\nwant\n%q", got, want)
	}
	back, err := parseIndex(ctx, l.format, got)
	if err != nil || !slices.Equal(back.entries, x.entries) || !maps.Equal(back.trees, x.trees) {
		t.Fatalf("cannot parse the encoded index: %v", err)
	}
	return back
}

// TestIndex_TreeWithoutEntries checks that a tree that contains an empty tree, which has no entry in an index, is
// not recorded as known.
func TestIndex_TreeWithoutEntries(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	empty, err := l.try(l.top, nil, "mktree")
	if err != nil {
		t.Fatal(empty)
	}
	blob := l.run(l.top, "rev-parse", "HEAD:a.txt")
	within := l.rawTree("40000 "+strings.TrimSpace(empty)+" e", "100644 "+blob+" f")
	commit := l.rawTree("40000 "+l.run(l.top, "rev-parse", string(within)+"^{tree}")+" d",
		"40000 "+l.run(l.top, "rev-parse", "HEAD:dir")+" k")
	b := l.begin(r, commit)
	b.clean()
	plain := l.rawTree("40000 "+l.run(l.top, "rev-parse", string(l.rawTree("100644 "+blob+" f"))+"^{tree}")+" d",
		"40000 "+l.run(l.top, "rev-parse", "HEAD:dir")+" k")
	if got := b.sh("write-tree"); got != l.run(l.top, "rev-parse", string(plain)+"^{tree}") {
		t.Error("git does not write the tree of the files from the index")
	}
}

func FuzzIndex(f *testing.F) {
	x := &index{trees: map[string]OID{"": SHA1.emptyTree(), "d": SHA1.emptyTree()}, entries: []indexEntry{
		{path: "a", mode: ModeFile, id: SHA1.emptyTree(), stat: stat{1, 2, 3, 4, 5}, uid: 6, gid: 7},
		{path: "d/b", mode: ModeLink, id: SHA1.emptyTree()}}}
	seed, err := x.encode(ctx, SHA1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed[:len(seed)-20])
	f.Add([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00TREE\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := SHA1.sum()
		sum.Write(body)
		in := sum.Sum(slices.Clone(body))
		x, err := parseIndex(ctx, SHA1, in)
		if err != nil {
			return
		}
		out, err := x.encode(ctx, SHA1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseIndex(ctx, SHA1, out); err != nil {
			t.Fatalf("parsed an index, but not its encoding: %v", err)
		}
	})
}

func FuzzAlternates(f *testing.F) {
	f.Add("/a\n#b\n\"c\\n\\377\"\n../d\n")
	f.Fuzz(func(t *testing.T, p string) {
		parseAlternates(p)
		if p == "" || strings.IndexByte(p, 0) >= 0 {
			return
		}
		if got := parseAlternates(string(alternate(p)) + "\n"); len(got) != 1 || got[0] != p {
			t.Errorf("%q comes back as %q", p, got)
		}
		if got, ok := unquote(string(quote(p))); !ok || got != p {
			t.Errorf("%q comes back as %q", p, got)
		}
	})
}

// FuzzAddress checks that no address that is copied into a sandbox contains a password.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"https://u:p@h/x?y#z", "git@h:x", "ext::x", "ssh://u:p@h/", "https://[::1]/x", "C:\\x",
		"file:///x::y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out, ok := address(s)
		if !ok {
			return
		}
		if again, ok := address(out); !ok || again != out {
			t.Errorf("%q becomes %q and then %q", s, out, again)
		}
		if rest, is := strings.CutPrefix(strings.ToLower(out), "https://"); is && strings.Contains(before(rest, "/"), "@") {
			t.Errorf("%q has user information", out)
		}
	})
}
