package repo

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// uncommitted commits the uncommitted changes, and checks that the user's files do not change.
func (l *lab) uncommitted(r *Repo) (OID, []Skipped) {
	l.t.Helper()
	look := func() string {
		index, err := os.ReadFile(filepath.Join(r.Dir, "index"))
		if err != nil && !os.IsNotExist(err) {
			l.t.Fatal(err)
		}
		refs, _ := l.try(r.Top, nil, "for-each-ref")
		list, err := os.ReadDir(r.Dir)
		if err != nil {
			l.t.Fatal(err)
		}
		var names []string
		for _, d := range list {
			names = append(names, d.Name())
		}
		return string(index) + refs + strings.Join(names, " ")
	}
	before, files := look(), l.picture(r.Top)
	id, skipped, err := r.WorkTree(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	if look() != before {
		l.t.Error("the user's index or references changed")
	}
	if now := l.picture(r.Top); len(now) != len(files) {
		l.t.Error("the user's files changed")
	}
	l.sound()
	return id, skipped
}

// TestUncommitted_MatchesGitAdd compares the uncommitted changes with those that `git add -A` adds, for files in
// any state.
func TestUncommitted_MatchesGitAdd(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{SHA1, SHA256} {
		l := newLab(t, f)
		l.file(l.top, "gone", "gone")
		l.file(l.top, "swap/x", "x")
		l.file(l.top, "file", "x")
		l.file(l.top, "forced.o", "tracked, and ignored")
		l.run(l.top, "add", "-f", "forced.o")
		head := l.commit(l.top, "second")
		r := l.open()
		if id, skipped := l.uncommitted(r); id != head || skipped != nil {
			t.Errorf("of a clean tree: %s %v", id, skipped)
		}
		l.file(l.top, "a.txt", "changed\n")
		l.file(l.top, "dir/b.txt", "staged\n")
		l.run(l.top, "add", "dir/b.txt")
		l.file(l.top, "dir/b.txt", "and changed again\n")
		l.file(l.top, "forced.o", "changed")
		l.file(l.top, "x.o", "ignored")
		l.file(l.top, "secret/key", "ignored")
		l.file(l.top, "new/deep/\"odd\"\n\xff", "new\n")
		l.program(l.top, "run", "x")
		l.file(l.top, "intent", "to add")
		l.run(l.top, "add", "-N", "intent")
		for _, err := range []error{
			os.Remove(filepath.Join(l.top, "gone")), os.RemoveAll(filepath.Join(l.top, "swap")),
			os.Remove(filepath.Join(l.top, "file")),
			os.Symlink("dir", filepath.Join(l.top, "swap")), os.Mkdir(filepath.Join(l.top, "file"), 0o755),
			exec.Command("mkfifo", filepath.Join(l.top, "fifo")).Run(),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		l.file(l.top, "file/in", "x")
		l.run(l.top, "init", "-q", "within")
		l.file(l.top, "within/x", "not ours")
		l.run(l.top, "init", "-q", "begun")
		l.commit(filepath.Join(l.top, "begun"), "m")
		id, skipped := l.uncommitted(r)
		if len(skipped) != 2 || skipped[0].Path != "begun" || skipped[1].Path != "within" {
			t.Errorf("skipped %+v", skipped)
		}
		if p := l.run(l.top, "rev-parse", string(id)+"^"); p != string(head) {
			t.Errorf("its parent is %s", p)
		}
		os.RemoveAll(filepath.Join(l.top, "begun"))
		os.RemoveAll(filepath.Join(l.top, "within"))
		l.run(l.top, "add", "-A")
		if tree := l.run(l.top, "rev-parse", string(id)+"^{tree}"); tree != l.run(l.top, "write-tree") {
			t.Errorf("it differs from git add -A:\n%s", l.run(l.top, "diff", "--stat", tree, "--"))
		}
	}
}

// TestUncommitted_RunsFiltersNotHooks checks that the user's filters run, as on commit, and that hooks do not.
func TestUncommitted_RunsFiltersNotHooks(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	l.run(l.top, "config", "filter.up.clean", "tr a-z A-Z")
	l.run(l.top, "config", "core.splitIndex", "true")
	l.run(l.top, "config", "core.untrackedCache", "true")
	l.run(l.top, "config", "core.fsmonitor", l.program(l.home, "monitor", "#!/bin/sh\ntouch "+l.home+"/ran\n"))
	l.file(l.top, ".gitattributes", "*.up filter=up\n*.crlf text eol=crlf\n")
	l.commit(l.top, "attributes")
	os.Remove(filepath.Join(l.home, "ran"))
	r := l.open()
	l.program(l.top, ".git/hooks/post-index-change", "#!/bin/sh\ntouch "+l.home+"/ran\n")
	l.file(l.top, "x.up", "loud\n")
	l.file(l.top, "x.crlf", "line\r\n")
	id, _, err := r.WorkTree(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.run(l.top, "show", string(id)+":x.up") + l.run(l.top, "show", string(id)+":x.crlf"); got != "LOUDline" {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(filepath.Join(l.home, "ran")); err == nil {
		t.Error("a hook or a monitor ran")
	}
}

func TestUncommitted_RefusesConflict(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	l.run(l.top, "checkout", "-q", "-b", "side")
	l.file(l.top, "a.txt", "side\n")
	l.commit(l.top, "side")
	l.run(l.top, "checkout", "-q", "main")
	l.file(l.top, "a.txt", "main\n")
	l.commit(l.top, "main")
	if out, err := l.try(l.top, nil, "merge", "side"); err == nil {
		t.Fatal(out)
	}
	if _, _, err := l.open().WorkTree(ctx); !fault.Is(err, fault.Conflict) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

// TestUncommitted_ExcludesOtherWorktrees checks that changes in a linked work tree or a submodule are not counted
// as changes of this one.
func TestUncommitted_ExcludesOtherWorktrees(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	super, linked := filepath.Join(t.TempDir(), "super"), filepath.Join(t.TempDir(), "linked")
	l.run(l.top, "init", "-q", super)
	l.run(super, "submodule", "--quiet", "add", l.top, "sub")
	l.commit(super, "sub")
	l.run(l.top, "worktree", "add", "-q", linked)
	for _, top := range []string{linked, filepath.Join(super, "sub")} {
		at := *l
		at.top = top
		l.file(top, "new", "new\n")
		id, _, err := at.open().WorkTree(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.run(top, "show", string(id)+":new"); got != "new" {
			t.Errorf("%q", got)
		}
		l.commit(top, "new")
	}
	at := *l
	at.top = super
	id, _, err := at.open().WorkTree(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.run(super, "rev-parse",
		string(id)+":sub"); got != l.run(filepath.Join(super, "sub"), "rev-parse", "HEAD") {
		t.Errorf("the submodule is at %s", got)
	}
}
