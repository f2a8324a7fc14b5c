package repo

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

const (
	largeFiles   = 100_000
	largeCommits = 10_000
)

// large makes a user's repository with 100,000 files and 10,000 commits, and a sandbox with ten commits that
// change a hundred files each.
func large(b *testing.B) (l *lab, r *Repo, dir string) {
	b.Helper()
	l = newLab(b, SHA1)
	var in bytes.Buffer
	w := bufio.NewWriter(&in)
	name := func(i int) string { return fmt.Sprintf("d%02d/e%02d/f%d.txt", i%50, i/50%40, i) }
	content := func(i, v int) string {
		var t bytes.Buffer
		for line := range 10 {
			fmt.Fprintf(&t, "line %d of file %d, version %d\n", line, i, v)
		}
		return t.String()
	}
	put := func(i, v int) {
		c := content(i, v)
		fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", name(i), len(c), c)
	}
	for c := range largeCommits {
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter U <u@x> %d +0000\ndata 2\nc\n\n", 1_700_000_000+c)
		if c == 0 {
			fmt.Fprintf(w, "from refs/heads/main^0\n")
			for i := range largeFiles {
				put(i, 0)
			}
			continue
		}
		put(c*7%largeFiles, c)
	}
	fmt.Fprintf(w, "done\n")
	w.Flush()
	if out, err := l.try(l.top, in.Bytes(), "fast-import", "--quiet", "--done"); err != nil {
		b.Fatal(out)
	}
	l.run(l.top, "reset", "-q", "--hard")
	r, dir = l.open(), l.sandbox()
	for c := range 10 {
		for i := range 100 {
			n := (c*100 + i) * 97 % largeFiles
			l.file(dir, name(n), content(n, -c-1))
		}
		l.commit(dir, "work")
	}
	// The user's own commit on top makes a real merge necessary.
	l.file(l.top, "dir/b.txt", "theirs\n")
	l.commit(l.top, "theirs")
	return l, r, dir
}

// BenchmarkLarge compares operations on a sandbox of a large repository with similar git commands: go test
// ./internal/repo -run - -bench Large -benchtime 5x
func BenchmarkLarge(b *testing.B) {
	l, r, dir := large(b)
	base := r.Head.Commit
	bundle := l.bundle(dir, "coppice/fix", "^"+string(base))
	file := filepath.Join(l.home, "work.bundle")
	if err := os.WriteFile(file, bundle, 0o600); err != nil {
		b.Fatal(err)
	}
	each := func(name string, before, do func()) {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				before()
				b.StartTimer()
				do()
			}
		})
	}
	forget := func() {
		_, _ = l.try(l.top, nil, "update-ref", "-d", string(fix))
		l.run(l.top, "repack", "-adq", "--window=0")
		l.run(l.top, "prune-packed")
	}
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	forget()
	l.run(l.top, "prune", "--expire=now")
	var got Accepted
	each("accept", forget, func() {
		var err error
		got, err = r.Accept(ctx, Accept{Bundle: bytes.NewReader(bundle), Ref: fix, Base: base, To: fix, Message: "m"})
		must(err)
	})
	each("git-fetch", forget,
		func() { l.run(l.top, "-c", "fetch.fsckObjects=true", "fetch", "-q", file, "coppice/fix:coppice/fix") })
	nothing := func() {}
	o := DiffOptions{From: base, To: got.Tip, Renames: true, Stat: true}
	each("diff", nothing, func() { _, err := r.Diff(ctx, o); must(err) })
	each("git-diff", nothing, func() { l.run(l.top, "diff", "-M", "--raw", "--numstat", string(base), string(got.Tip)) })
	back := func() { l.run(l.top, "reset", "-q", "--hard", "main@{upstream}") }
	l.run(l.top, "branch", "start")
	l.run(l.top, "branch", "-q", "--set-upstream-to=start")
	for _, way := range []Way{Squash, Merge, Rebase} {
		each("apply-"+string(way), back, func() {
			_, err := r.Apply(ctx, Apply{Base: base, Tip: got.Tip, Way: way, Message: "m"})
			must(err)
		})
	}
	each("git-merge", back, func() { l.run(l.top, "merge", "-q", "--no-ff", "-m", "m", string(got.Tip)) })
	back()
	for i := range 100 {
		l.file(dir, fmt.Sprintf("d00/new%d", i), "new\n")
	}
	var paths []string
	for i := range 100 {
		paths = append(paths, fmt.Sprintf("d00/new%d", i))
	}
	unset := func() { _, _ = l.try(l.top, nil, "update-ref", "-d", string(state)) }
	snap := func(paths []string) func() {
		return func() {
			tree, err := os.OpenRoot(dir)
			must(err)
			defer tree.Close()
			_, err = r.Snapshot(ctx,
				Snapshot{Base: base, Tree: tree, Paths: paths, Author: Person{"a", "a@b"}, Message: "m", To: state})
			must(err)
		}
	}
	each("snapshot-100-paths", unset, snap(paths))
	each("snapshot-all", unset, snap(nil))
	each("git-add-commit", func() { l.run(dir, "reset", "-q", "HEAD~0") },
		func() { l.run(dir, "add", "-A"); l.run(dir, "write-tree") })
	each("git-worktree-add", func() { os.RemoveAll(l.home + "/wt"); l.run(l.top, "worktree", "prune") },
		func() { l.run(l.top, "worktree", "add", "-q", "--detach", l.home+"/wt") })
}
