package repo

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// box is a sandbox's work tree, in plain directories.
type box struct {
	*lab
	dir string // its work tree
}

// begin creates a work tree of a commit with everything for git inside: files, index, .git.
func (l *lab) begin(r *Repo, commits ...OID) *box {
	l.t.Helper()
	s := l.stack(r)
	var index []byte
	git := l.t.TempDir()
	for _, c := range commits {
		got := s.lay(c)
		dir := l.t.TempDir()
		if err := r.Index(ctx,
			Index{Written: got, Before: index, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
				To: l.root(dir)}); err != nil {
			l.t.Fatal(err)
		}
		var err error
		if index, err = os.ReadFile(filepath.Join(dir, "index")); err != nil {
			l.t.Fatal(err)
		}
		git = dir
	}
	l.inside(r, Inside{Branch: "refs/heads/coppice/fix", Commit: commits[len(commits)-1], To: l.root(git)})
	if err := os.Rename(git, filepath.Join(s.dir, ".git")); err != nil {
		l.t.Fatal(err)
	}
	return &box{l, s.dir}
}

// inside writes the .git of a sandbox in which object directories have the host's paths.
func (l *lab) inside(r *Repo, i Inside) {
	l.t.Helper()
	dirs, err := r.ObjectDirs(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	i.Objects = map[string]string{}
	for _, d := range dirs {
		i.Objects[d] = d
	}
	if err := r.Inside(ctx, i); err != nil {
		l.t.Fatal(err)
	}
}

// sh runs a git command in the sandbox.
func (b *box) sh(args ...string) string { b.t.Helper(); return b.run(b.dir, args...) }

// clean checks that git inside reports no changes and no errors.
func (b *box) clean() {
	b.t.Helper()
	if s := b.sh("status", "--porcelain"); s != "" {
		b.t.Errorf("git inside prints\n%s", s)
	}
	if s := b.sh("diff-files"); s != "" {
		b.t.Errorf("files do not have the stat data of the index:\n%s", s)
	}
	if out, err := b.try(b.dir, nil, "fsck", "--no-dangling"); err != nil {
		b.t.Errorf("fsck: %v\n%s", err, out)
	}
}

// TestIndex_FreshStatusReadsNoFile checks that git status of a fresh tree reads only the index: changed contents
// are not detected.
func TestIndex_FreshStatusReadsNoFile(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{SHA1, SHA256} {
		l := newLab(t, f)
		r := l.open()
		one := l.madeUp(
			map[string]leaf{"a": {ModeFile, "one"}, "d/e/b": {ModeExecutable, "two"}, "d/c": {ModeFile, ""},
				"l": {ModeLink, "a"}, "g": {ModeFile, "goes"}, "m": {ModeSubmodule, "1"}}, 1_600_000_000)
		two := l.madeUp(
			map[string]leaf{"a": {ModeFile, "one"}, "d/e/b": {ModeExecutable, "new"}, "d/c": {ModeFile, ""},
				"l": {ModeLink, "d"}, "n": {ModeFile, "new"}, "m": {ModeSubmodule, "2"}}, 1_600_000_100)
		b := l.begin(r, one, two)
		b.clean()
		if tree := b.sh("write-tree"); tree != l.run(l.top, "rev-parse", string(two)+"^{tree}") {
			t.Error("the index is of another tree")
		}
		for name, text := range map[string]string{"a": "ONE", "d/e/b": "NEW", "n": "NEW"} {
			b.deceive(name, text)
		}
		b.clean()
		// A change without forged times is detected.
		l.file(b.dir, "a", "eno")
		if s := b.sh("status", "--porcelain"); s != " M a" {
			t.Errorf("after a change: %q", s)
		}
	}
}

// deceive changes a file in place, and keeps its size and time, so that only reading it reveals the change.
func (b *box) deceive(name, text string) {
	b.t.Helper()
	p := filepath.Join(b.dir, name)
	info, err := os.Stat(p)
	if err != nil || info.Size() != int64(len(text)) {
		b.t.Fatal(info, err)
	}
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err = f.WriteString(text); err == nil {
		err = os.Chtimes(p, info.ModTime(), info.ModTime())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		b.t.Fatal(err)
	}
}

// TestIndex_WithUncommittedChanges checks that with uncommitted changes the index is that of the commit below
// them, so that git shows the difference.
func TestIndex_WithUncommittedChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	base := l.madeUp(
		map[string]leaf{"a": {ModeFile, "one"}, "b": {ModeFile, "two"}, "g": {ModeFile, "goes"}, "d/x": {ModeFile, "x"}},
		1_600_000_000)
	start := l.madeUp(
		map[string]leaf{"a": {ModeFile, "eno"}, "b": {ModeFile, "two"}, "n": {ModeFile, "new"}, "d": {ModeFile, "x"}},
		1_600_000_000)
	for _, from := range []bool{false, true} {
		s := l.stack(r)
		i := Index{Commit: base, To: l.root(l.t.TempDir())}
		if from {
			first := Index{Written: s.lay(base), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), To: l.root(l.t.TempDir())}
			if err := r.Index(ctx, first); err != nil {
				t.Fatal(err)
			}
			var err error
			if i.Before, err = first.To.ReadFile("index"); err != nil {
				t.Fatal(err)
			}
		}
		i.Written, i.UID, i.GID = s.lay(start), uint32(os.Getuid()), uint32(os.Getgid())
		if err := r.Index(ctx, i); err != nil {
			t.Fatal(err)
		}
		l.inside(r, Inside{Branch: fix, Commit: base, To: i.To})
		if err := os.Rename(i.To.Name(), filepath.Join(s.dir, ".git")); err != nil {
			t.Fatal(err)
		}
		b := &box{l, s.dir}
		if s := b.sh("status", "--porcelain", "-uall"); s != " M a\n D d/x\n D g\n?? d\n?? n" {
			t.Errorf("git inside prints\n%s", s)
		}
		if tree := b.sh("write-tree"); tree != l.run(l.top, "rev-parse", string(base)+"^{tree}") {
			t.Error("the index is of another tree")
		}
	}
}

func TestIndex_RefusesIndexOfOtherTree(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	a := l.madeUp(map[string]leaf{"a": {ModeFile, "a"}}, 1_600_000_000)
	b := l.madeUp(map[string]leaf{"a": {ModeFile, "b"}, "b": {ModeFile, "b"}}, 1_600_000_000)
	c := l.madeUp(map[string]leaf{"a": {ModeFile, "c"}}, 1_600_000_000)
	s := l.stack(r)
	first := Index{Written: s.lay(a), To: l.root(t.TempDir())}
	if err := r.Index(ctx, first); err != nil {
		t.Fatal(err)
	}
	before, err := first.To.ReadFile("index")
	if err != nil {
		t.Fatal(err)
	}
	s.lay(b)
	for _, wrong := range [][]byte{nil, before[:len(before)-1],
		append(slices.Clone(before[:20]), before[21:]...), before} {
		if err := r.Index(ctx,
			Index{Written: s.again(c), Before: wrong, To: l.root(t.TempDir())}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v", err)
		}
	}
}

// again checks out a commit on top of the current state, without advancing the stack.
func (s *stack) again(commit OID) CheckedOut {
	last := s.last
	defer func() { s.last = last }()
	return s.lay(commit)
}

// TestGit_WorksInSandbox uses the common commands of git inside a sandbox, and checks that the
// user's repository is not changed.
func TestGit_WorksInSandbox(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{SHA1, SHA256} {
		l := newLab(t, f)
		l.run(l.top, "branch", "side")
		l.run(l.top, "tag", "-a", "-m", "t", "v1")
		l.run(l.top, "update-ref", "refs/coppice/base/x", "HEAD")
		l.run(l.top, "update-ref", "refs/remotes/origin/main", "HEAD")
		l.run(l.top, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
		l.file(l.top, "a.txt", "stashed\n")
		l.run(l.top, "stash", "-q")
		r := l.open()
		before := l.state()
		b := l.begin(r, r.Head.Commit)
		b.clean()
		if refs := b.sh("for-each-ref",
			"--format=%(refname)"); refs != "refs/heads/coppice/fix\nrefs/heads/main\nrefs/heads/side\nrefs/remotes/origin/HEAD\nrefs/remotes/origin/main\nrefs/tags/v1" {
			t.Errorf("references inside:\n%s", refs)
		}
		if s := b.sh("symbolic-ref", "HEAD") + b.sh("log", "-g", "-1", "--format=%gs") + b.sh("describe") +
			b.sh("rev-parse", "--abbrev-ref",
				"origin"); s != "refs/heads/coppice/fixcoppice: the sandbox begins herev1origin/main" {
			t.Errorf("%q", s)
		}
		l.file(b.dir, "a.txt", "inside\n")
		b.sh("commit", "-qam", "inside")
		b.sh("checkout", "-q", "-b", "more", "side")
		l.file(b.dir, "dir/b.txt", "more\n")
		b.sh("commit", "-qam", "more")
		b.sh("rebase", "-q", "coppice/fix")
		b.sh("stash", "list")
		l.file(b.dir, "dir/b.txt", "stash\n")
		b.sh("stash", "-q")
		b.sh("stash", "pop", "-q")
		b.sh("worktree", "add", "-q", filepath.Join(t.TempDir(), "wt"), "side")
		b.sh("reset", "-q", "--hard")
		b.sh("gc", "-q", "--prune=now")
		b.clean()
		if l.state() != before {
			t.Error("the user's repository changed")
		}
		l.sound()
	}
}

// TestInside_FiltersConfig checks that secrets and private settings are left out of the configuration, and that
// required settings are kept.
func TestInside_FiltersConfig(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	secret := "s3cr3t"
	l.file(l.home, "included", "[remote \"inc\"]\n\turl = https://me:"+secret+"@h/inc\n[core]\n\teol = lf\n")
	for _, kv := range [][2]string{
		{"remote.origin.url", "https://" + secret + ":x-oauth@example.org/r.git?token=" + secret + "#" + secret},
		{"remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"},
		{"remote.origin.proxy", "http://" + secret + "@proxy"},
		{"remote.ssh.url", "ssh://git:" + secret + "@example.org/r.git"},
		{"remote.scp.url", "git@example.org:r.git"},
		{"remote.path.url", "/srv/a b\\\"c\".git"},
		{"remote.ext.url", "ext::sh -c " + secret},
		{"remote.vcs.vcs", secret},
		{"remote.bad.url", "https://user:" + secret + "@h:port/%zz"},
		{"remote.a.b \"x\\y\".url", "/x"},
		{"url.https://" + secret + "@h/.insteadOf", "h:"},
		{"http.extraHeader", "Authorization: " + secret},
		{"http.https://h/.extraHeader", secret},
		{"credential.helper", "!echo " + secret},
		{"alias.x", "!echo " + secret},
		{"core.hooksPath", ".husky"},
		{"core.sshCommand", secret},
		{"core.fsmonitor", secret},
		{"core.pager", secret},
		{"core.editor", secret},
		{"core.worktree", l.top},
		{"core.autocrlf", "input"},
		{"filter.x.clean", secret},
		{"diff.x.textconv", secret},
		{"diff.external", secret},
		{"diff.algorithm", "histogram"},
		{"merge.x.driver", secret},
		{"merge.conflictStyle", "diff3"},
		{"gpg.program", secret},
		{"user.signingKey", secret},
		{"user.email", "here@example.org"},
		{"submodule.m.url", "https://u:" + secret + "@h/m"},
		{"submodule.m.update", "!" + secret},
		{"submodule.n.update", "rebase"},
		{"branch.main.remote", "origin"},
		{"branch.main.merge", "refs/heads/main"},
		{"branch.main.description", "two\nlines\t\"and\\more\""},
		{"include.path", filepath.Join(l.home, "included")},
		{"core.gitProxy", secret}, {"pager.log", secret}, {"lfs.url", "https://u:" + secret + "@h"},
		{"sendemail.smtppass", secret},
	} {
		l.run(l.top, "config", "--add", kv[0], kv[1])
	}
	r := l.open()
	b := l.begin(r, r.Head.Commit)
	text, err := os.ReadFile(filepath.Join(b.dir, ".git/config"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), secret) {
		t.Errorf("a secret is in the configuration\n%s", text)
	}
	want := `core.repositoryformatversion=0 core.bare=false core.filemode=true core.logallrefupdates=true remote.origin.url=https://example.org/r.git remote.origin.fetch=+refs/heads/*:refs/remotes/origin/* ` +
		`remote.ssh.url=ssh://git@example.org/r.git remote.scp.url=git@example.org:r.git remote.path.url=/srv/a b\"c".git remote.a.b "x\y".url=/x core.hookspath=.husky core.autocrlf=input diff.algorithm=histogram ` +
		`merge.conflictstyle=diff3 user.email=here@example.org submodule.m.url=https://h/m submodule.n.update=rebase branch.main.remote=origin branch.main.merge=refs/heads/main branch.main.description=two
lines	"and\more" remote.inc.url=https://h/inc core.eol=lf core.trustctime=false`
	if got := strings.TrimSpace(strings.ReplaceAll(b.sh("config", "--local", "--list", "-z"), "\x00", " ")); normal(
		got) != normal(want) {
		t.Errorf("the configuration inside is\n%s\nwant\n%s", got, want)
	}
	dir := t.TempDir()
	l.inside(r, Inside{Branch: fix, Commit: r.Head.Commit, Moved: true, Identity: true, To: l.root(dir)})
	for key, want := range map[string]string{"core.checkStat": "minimal", "user.name": "User",
		"user.email": "here@example.org"} {
		if got := l.run(dir, "config", "--file", "config", "--get-all", key); got != want {
			t.Errorf("%s is %q", key, got)
		}
	}
}

// normal normalizes both forms in which git prints a setting.
func normal(s string) string {
	fields := strings.Fields(strings.NewReplacer("\n", " ", "=", " ").Replace(s))
	slices.Sort(fields)
	return strings.Join(fields, " ")
}

// TestInside_CopiesHooks checks that the user's hooks run inside, and that files that are not
// hooks are not copied.
func TestInside_CopiesHooks(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	l.program(l.top, ".git/hooks/pre-commit", "#!/bin/sh\necho ran >ran\n")
	l.file(l.top, ".git/hooks/not-run", "x")
	l.file(l.top, ".git/hooks/large", strings.Repeat("x", maxHook+1))
	l.file(l.top, ".git/hooks/dir/x", "x")
	l.file(l.top, ".git/info/exclude", "ran\n")
	if err := os.Symlink("../../hook.sh", filepath.Join(l.top, ".git/hooks/post-commit")); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("mkfifo", filepath.Join(l.top, ".git/hooks/fifo")).Run(); err != nil {
		t.Fatal(err)
	}
	l.program(l.top, "hook.sh", "#!/bin/sh\necho after >>ran\n")
	l.run(l.top, "add", "hook.sh")
	l.run(l.top, "-c", "core.hooksPath=/dev/null", "commit", "-qm", "hook")
	r := l.open()
	b := l.begin(r, r.Head.Commit)
	b.sh("commit", "-q", "--allow-empty", "-m", "m")
	b.clean()
	if got, err := os.ReadFile(filepath.Join(b.dir, "ran")); string(got) != "ran\nafter\n" {
		t.Errorf("%q %v", got, err)
	}
	list, err := os.ReadDir(filepath.Join(b.dir, ".git/hooks"))
	if err != nil || len(list) != 3 {
		t.Errorf("%v %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(l.top, "ran")); err == nil {
		t.Error("a hook ran on the host")
	}
}

// TestInside_SkipsConflictingBranch covers a branch of the user whose name conflicts with the sandbox's branch:
// it is left out.
func TestInside_SkipsConflictingBranch(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	l.run(l.top, "branch", "coppice")
	r := l.open()
	b := l.begin(r, r.Head.Commit)
	b.clean()
	if got := b.sh("branch", "--format=%(refname:short)"); got != "coppice/fix\nmain" {
		t.Errorf("%q", got)
	}
}

// TestRepositoriesOfOtherForms covers linked work trees, submodules, shallow clones, clones with alternates, and
// unusual locations.
func TestRepositoriesOfOtherForms(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{SHA1, SHA256} {
		l := newLab(t, f)
		l.file(l.top, "dir/b.txt", "second\n")
		l.commit(l.top, "second")
		dir := t.TempDir()
		linked, shallow, borrower, super := filepath.Join(dir, "linked"), filepath.Join(dir, "shallow"),
			filepath.Join(dir, "bor # \xffrower"), filepath.Join(dir, "super")
		l.run(l.top, "worktree", "add", "-q", "-b", "linked", linked)
		l.run(dir, "clone", "-q", "--depth=1", "file://"+l.top, shallow)
		l.run(dir, "clone", "-q", "--shared", l.top, borrower)
		again := filepath.Join(dir, "again")
		l.run(dir, "clone", "-q", "--shared", borrower, again)
		l.run(dir, "init", "-q", "--object-format="+string(f), super)
		l.run(super, "submodule", "--quiet", "add", l.top, "lib/sub")
		l.commit(super, "sub")
		for top, dirs := range map[string]int{linked: 1, shallow: 1, borrower: 2, again: 3, super: 2,
			filepath.Join(super, "lib/sub"): 1} {
			at := *l
			at.top = top
			r := at.open()
			got, err := r.ObjectDirs(ctx)
			if err != nil || len(got) != dirs {
				t.Errorf("%s: %q %v", top, got, err)
			}
			b := at.begin(r, r.Head.Commit)
			b.clean()
			l.file(b.dir, "new", "new\n")
			b.sh("add", "new")
			b.sh("commit", "-qm", "new")
			b.sh("gc", "-q")
			b.clean()
			if s := at.run(top, "status", "--porcelain"); s != "" {
				t.Errorf("%s changed: %s", top, s)
			}
		}
	}
}

// TestInside_ChecksOutSubmodules checks out submodules, and submodules of these, inside a
// sandbox without a network.
func TestInside_ChecksOutSubmodules(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	dir := t.TempDir()
	mid, super := filepath.Join(dir, "mid"), filepath.Join(dir, "super")
	for _, d := range []string{mid, super} {
		l.run(dir, "init", "-q", d)
	}
	l.run(mid, "submodule", "--quiet", "add", l.top, "low")
	l.commit(mid, "low")
	l.run(super, "submodule", "--quiet", "add", "--name", "a/mid", mid, "x/mid")
	l.commit(super, "mid")
	l.run(super, "submodule", "--quiet", "update", "--init", "--recursive")
	linked := filepath.Join(dir, "linked")
	l.run(super, "worktree", "add", "-q", linked)
	for _, gone := range []string{l.top, mid} { // nothing can be fetched
		if err := os.Rename(gone, gone+".away"); err != nil {
			t.Fatal(err)
		}
	}
	for _, top := range []string{super, linked} {
		at := *l
		at.top = top
		r := at.open()
		b := at.begin(r, r.Head.Commit)
		b.clean()
		b.sh("-c", "protocol.allow=never", "submodule", "--quiet", "update", "--init", "--recursive")
		b.clean()
		if got, err := os.ReadFile(filepath.Join(b.dir, "x/mid/low/a.txt")); err != nil ||
			string(got) != "one\ntwo\nthree\n" {
			t.Errorf("%q %v", got, err)
		}
		if s := b.sh("submodule", "status", "--recursive"); strings.Contains(s, "-") || strings.Contains(s, "+") {
			t.Errorf("%q", s)
		}
		l.file(b.dir, "x/mid/low/new", "new")
		l.commit(filepath.Join(b.dir, "x/mid/low"), "inside")
		if s := l.run(filepath.Join(super, "x/mid/low"), "log", "--format=%s", "--all"); strings.Contains(s, "inside") {
			t.Errorf("the user's submodule changed: %s", s)
		}
	}
}
