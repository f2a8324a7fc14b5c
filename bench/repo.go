//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// repos compares a sandbox in a large git repository with a git work tree: creating it, viewing its changes, and
// merging them. It measures commands as they are typed.
func (b *bench) repos(scale int) (err error) {
	// Not in /tmp: a sandbox has its own.
	dir, err := os.MkdirTemp("/var/tmp", "coppice-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := large{
		bench: b, top: filepath.Join(dir, "repo"), tree: filepath.Join(dir, "tree"),
		files: 100_000 / scale, commits: 10_000 / scale, n: max(3, 20/scale),
	}
	r.how = fmt.Sprintf("%d files, %d commits", r.files, r.commits)
	if err := r.make(); err != nil {
		return err
	}
	if err := r.creates(); err != nil {
		return err
	}
	if err := r.changes(); err != nil {
		return err
	}
	if err := r.looks(); err != nil {
		return err
	}
	if err := r.merges(); err != nil {
		return err
	}
	return r.coppice("rm", "--force", "work")
}

// creates measures the time until there is a work tree. Afterwards the sandbox work exists, and the git work tree
// does not.
func (r large) creates() error {
	tree, err := timed(3, func(int) error {
		return r.git("worktree", "add", "-q", "-B", "other", r.tree)
	}, func(int) error { return r.git("worktree", "remove", "--force", r.tree) })
	if err != nil {
		return err
	}
	first, err := timed(1, func(int) error { return r.coppice("create", "work", "--repo", r.top) }, nil)
	if err != nil {
		return err
	}
	r.add("create in a repository, the first time", r.how, first, "", "git worktree add", tree)
	later, err := timed(r.n, func(int) error {
		return r.coppice("create", "later", "--repo", r.top)
	}, func(int) error { return r.coppice("rm", "--force", "later") })
	if err != nil {
		return err
	}
	r.add("create in a repository, later", r.how, later, "50 ms", "git worktree add", tree)
	return nil
}

// changes makes the same changes in the sandbox and in a work tree: 100 files in a commit, and ten uncommitted
// files.
func (r large) changes() error {
	if err := r.git("worktree", "add", "-q", "-B", "other", r.tree); err != nil {
		return err
	}
	const commit = `for f in d00/e*/f?.txt d01/e*/f?*.txt; do
	echo changed >>"$f"; n=$((n+1)); [ $n = 100 ] && break
done
git add -A && git -c user.name=A -c user.email=a@example.com commit -qm changed
for i in 0 1 2 3 4 5 6 7 8 9; do echo new >"new$i"; done`
	if err := r.in(r.tree, "bash", "-ec", commit); err != nil {
		return err
	}
	return r.coppice("exec", "work", "--", "bash", "-ec", commit)
}

// looks measures the time to view the changes.
func (r large) looks() error {
	status, err := timed(r.n, func(int) error {
		return r.coppice("exec", "work", "--", "git", "status", "--porcelain")
	}, nil)
	if err != nil {
		return err
	}
	plain, err := timed(r.n, func(int) error { return r.in(r.tree, "git", "status", "--porcelain") }, nil)
	if err != nil {
		return err
	}
	r.add("git status in the sandbox", r.how, status, "", "git status", plain)

	touch := func(i int) error {
		return r.coppice("exec", "work", "--", "sh", "-c", fmt.Sprintf("echo %d >>new0", i))
	}
	diff, err := timed(r.n, func(int) error { return r.coppice("diff", "work", "--stat") }, touch)
	if err != nil {
		return err
	}
	same, err := timed(r.n, func(int) error { return r.coppice("diff", "work", "--stat") }, nil)
	if err != nil {
		return err
	}
	plain, err = timed(r.n, func(int) error {
		return r.in(r.tree, "sh", "-c", "git add -A -n . && git diff --stat HEAD~1")
	}, func(i int) error { return r.in(r.tree, "sh", "-c", fmt.Sprintf("echo %d >>new0", i)) })
	if err != nil {
		return err
	}
	r.add("diff, after a change", r.how, diff, "", "git add -n, git diff", plain)
	r.add("diff again", r.how, same, "", "git add -n, git diff", plain)
	return nil
}

// merges measures the time to merge the changes.
func (r large) merges() error {
	// A commit on the user's branch makes a real merge necessary.
	const theirs = "echo theirs >theirs; git add theirs; " +
		"git -c user.name=A -c user.email=a@example.com commit -qm theirs; git branch -f here"
	if err := r.in(r.top, "sh", "-ec", theirs); err != nil {
		return err
	}
	const rest = "git add -A; git -c user.name=A -c user.email=a@example.com commit -qm rest"
	if err := r.coppice("exec", "work", "--", "sh", "-ec", rest); err != nil {
		return err
	}
	if err := r.in(r.tree, "sh", "-ec", rest); err != nil {
		return err
	}
	back := func(int) error { return r.git("reset", "-q", "--hard", "here") }
	apply, err := timed(r.n, func(int) error {
		return r.coppice("git", "apply", "work", "--merge", "-m", "m", "--trust-all")
	}, back)
	if err != nil {
		return err
	}
	merge, err := timed(r.n, func(int) error {
		return r.git("-c", "user.name=A", "-c", "user.email=a@example.com",
			"merge", "-q", "--no-ff", "-m", "m", "other")
	}, back)
	if err != nil {
		return err
	}
	r.add("apply --merge", r.how, apply, "", "git merge", merge)
	return nil
}

// timed is times, with an uncounted function after each run; nil means none.
func timed(n int, fn, after func(i int) error) (stat, error) {
	ds := make([]time.Duration, n)
	for i := range ds {
		t := time.Now()
		if err := fn(i); err != nil {
			return stat{}, err
		}
		ds[i] = time.Since(t)
		if after == nil {
			continue
		}
		if err := after(i); err != nil {
			return stat{}, err
		}
	}
	return statOf(ds), nil
}

// large is a repository, with the path for a work tree of it.
type large struct {
	*bench
	top, tree      string
	files, commits int
	how            string // description for the table
	n              int    // number of measurements of each
}

// make fills the repository: all files in the first commit, one changed file in each further one.
func (r large) make() error {
	if err := r.host("git", "init", "-q", "-b", "main", r.top); err != nil {
		return err
	}
	var in bytes.Buffer
	w := bufio.NewWriter(&in)
	put := func(i, v int) {
		var text bytes.Buffer
		for line := range 10 {
			fmt.Fprintf(&text, "line %d of file %d, version %d\n", line, i, v)
		}
		fmt.Fprintf(w, "M 100644 inline d%02d/e%02d/f%d.txt\ndata %d\n%s\n", i%50, i/50%40, i, text.Len(), text.Bytes())
	}
	for c := range r.commits {
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter A <a@example.com> %d +0000\ndata 2\nc\n\n", 1_700_000_000+c)
		if c > 0 {
			put(c*7%r.files, c)
			continue
		}
		for i := range r.files {
			put(i, 0)
		}
	}
	fmt.Fprintln(w, "done")
	if err := w.Flush(); err != nil {
		return err
	}
	cmd := exec.CommandContext(r.ctx, "git", "-C", r.top, "fast-import", "--quiet", "--done")
	cmd.Stdin = &in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git fast-import: %w: %s", err, out)
	}
	return r.git("reset", "-q", "--hard")
}

func (r large) git(args ...string) error {
	return r.host(append([]string{"git", "-C", r.top}, args...)...)
}

// coppice runs a command in the repository.
func (r large) coppice(args ...string) error { return r.in(r.top, append([]string{r.bin}, args...)...) }

func (r large) in(dir string, cmd ...string) error {
	c := exec.CommandContext(r.ctx, cmd[0], cmd[1:]...)
	c.Dir, c.Env = dir, append(os.Environ(), "COPPICE_HOME="+filepath.Join(r.dir, "home"))
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", cmd, err, out)
	}
	return nil
}
