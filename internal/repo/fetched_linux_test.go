package repo

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// fetched makes the user's git fetch a branch of another user's repository, without git's own checks.
func (l *lab) fetched(dir, branch string) OID {
	l.t.Helper()
	l.run(l.top, "-c", "transfer.fsckObjects=false", "fetch", "-q", "--no-tags", dir,
		"+"+branch+":refs/coppice/staging/origin/fix/heads")
	return OID(l.run(l.top, "rev-parse", "refs/coppice/staging/origin/fix/heads"))
}

func TestExamine_CountsFetchedCommits(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{SHA1, SHA256} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, f)
			r, dir := l.open(), l.sandbox()
			l.file(dir, "a.txt", "changed\n")
			l.commit(dir, "one")
			l.file(dir, "dir/new.txt", "new\n")
			tip := l.commit(dir, "two")
			if got := l.fetched(dir, "coppice/fix"); got != tip {
				t.Fatalf("fetched %s", got)
			}
			got, err := r.Examine(ctx, r.Head.Commit, tip)
			if err != nil || got.Tip != tip || got.Commits != 2 || got.Objects != 7 {
				t.Errorf("%+v, %v", got, err)
			}
			if got, err := r.Examine(ctx, tip, tip); err != nil || got.Commits != 0 {
				t.Errorf("the same commit: %+v, %v", got, err)
			}
			if got, err := r.Examine(ctx, tip, r.Head.Commit); err != nil || got.Commits != 0 {
				t.Errorf("an ancestor: %+v, %v", got, err)
			}
			l.sound()
		})
	}
}

func TestExamine_RefusesHostileObjects(t *testing.T) {
	t.Parallel()
	blob := func(l *lab, dir string) OID { return l.hostileObject(dir, "blob", []byte("[core]\n")) }
	for name, c := range map[string]struct {
		limits Limits
		tree   func(l *lab, dir string) []byte
	}{
		"a .git in it": {tree: func(l *lab, dir string) []byte { return treeOf(treeEntry{"100644", ".git", blob(l, dir)}) }},
		"a .GIT in it": {tree: func(l *lab, dir string) []byte { return treeOf(treeEntry{"100644", ".GiT", blob(l, dir)}) }},
		"a link called .gitmodules": {tree: func(l *lab, dir string) []byte {
			return treeOf(treeEntry{"120000", ".gitmodules", l.hostileObject(dir, "blob", []byte("/etc/passwd"))})
		}},
		"a path upwards": {tree: func(l *lab, dir string) []byte { return treeOf(treeEntry{"100644", "..", blob(l, dir)}) }},
		"a file twice": {tree: func(l *lab, dir string) []byte {
			return treeOf(treeEntry{"100644", "a", blob(l, dir)}, treeEntry{"100644", "a", blob(l, dir)})
		}},
		"a huge file": {limits: Limits{Object: 1 << 10}, tree: func(l *lab, dir string) []byte {
			return treeOf(treeEntry{"100644", "a", l.hostileObject(dir, "blob", make([]byte, 1<<11))})
		}},
		"too many files": {limits: Limits{Changes: 3}, tree: func(l *lab, dir string) []byte {
			var all []treeEntry
			for i := range 9 {
				all = append(all, treeEntry{"100644", fmt.Sprintf("f%d", i), blob(l, dir)})
			}
			return treeOf(all...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, SHA1)
			dir := l.sandbox()
			r, err := Open(ctx, l.git, l.top, Options{Scratch: l.scratch, Limits: c.limits})
			if err != nil {
				t.Fatal(err)
			}
			tree := l.hostileObject(dir, "tree", c.tree(l, dir))
			tip := l.hostileObject(dir, "commit",
				fmt.Appendf(nil, "tree %s\nparent %s\nauthor E <e@e> 0 +0000\ncommitter E <e@e> 0 +0000\n\nhi\n", tree,
					r.Head.Commit))
			l.run(dir, "update-ref", "refs/heads/evil", string(tip))
			if got := l.fetched(dir, "evil"); got != tip {
				t.Fatal(got)
			}
			if _, err := r.Examine(ctx, r.Head.Commit, tip); !fault.Is(err, fault.Invalid) {
				t.Errorf("%v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(l.scratch, "*")); len(left) > 0 {
				t.Errorf("left in scratch: %q", left)
			}
		})
	}
}

// TestExamine_RefusesMissingObjects covers a clone that lacks objects: it is reported as damaged.
func TestExamine_RefusesMissingObjects(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "a.txt", "changed\n")
	tip := l.commit(dir, "one")
	blob := l.run(dir, "rev-parse", "HEAD:a.txt")
	for _, id := range []string{string(tip), l.run(dir, "rev-parse", "HEAD^{tree}")} {
		kind := l.run(dir, "cat-file", "-t", id)
		content, err := l.try(dir, nil, "cat-file", kind, id)
		if err != nil {
			t.Fatal(err)
		}
		l.hostileObject(l.top, kind, []byte(content))
	}
	if _, err := r.Examine(ctx, r.Head.Commit, tip); !fault.Is(err, fault.Invalid) {
		t.Errorf("without %s: %v", blob, err)
	}
}

func TestOwn_ReportsCommitsOnUserBranches(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	foreign := l.commit(dir, "foreign")
	l.fetched(dir, "coppice/fix")
	own := func(c OID, want bool, why string) {
		t.Helper()
		if got, err := r.Own(ctx, c); err != nil || got != want {
			t.Errorf("%s: %v, %v", why, got, err)
		}
	}
	own(r.Head.Commit, true, "HEAD")
	own(foreign, false, "what was fetched by us alone")
	l.run(l.top, "update-ref", "refs/heads/coppice/fix", string(foreign))
	own(foreign, false, "a branch of ours")
	l.run(l.top, "update-ref", "refs/remotes/origin/coppice/fix", string(foreign))
	own(foreign, false, "a branch that git fetched of ours")
	l.run(l.top, "update-ref", "refs/remotes/origin/topic", string(foreign))
	own(foreign, true, "a branch that was fetched")
	if _, err := r.Own(ctx, OID(strings.Repeat("1", 40))); !fault.Is(err, fault.NotFound) {
		t.Errorf("a missing commit: %v", err)
	}
}

func TestMoveRefs_IsAtomic(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	first := r.Head.Commit
	second := l.commit(l.top, "second")
	a, b := Ref("refs/coppice/remotes/origin/heads/fix"), Ref("refs/coppice/remotes/origin/proposals/fix")
	if err := r.MoveRefs(ctx, "pulled", RefMove{a, first, ""}, RefMove{b, second, ""}); err != nil {
		t.Fatal(err)
	}
	before := l.state()
	for name, moves := range map[string][]RefMove{
		"one is other": {{a, second, first}, {b, first, first}},
		"one is there": {{a, second, first}, {b, first, ""}},
		"no name":      {{a, second, first}, {"refs/../x", first, ""}},
		"no commit":    {{a, second, first}, {b, OID(strings.Repeat("1", 40)), second}},
	} {
		if err := r.MoveRefs(ctx, "x", moves...); !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if l.state() != before {
			t.Errorf("%s: a reference was set", name)
		}
	}
	if err := r.MoveRefs(ctx, "pulled again", RefMove{a, second, first}, RefMove{b, second, second}); err != nil {
		t.Fatal(err)
	}
	if log := l.run(l.top, "log", "-g", "--format=%gs", string(a)); log != "pulled again\npulled" {
		t.Errorf("the reflog is %q", log)
	}
	l.sound()
}
