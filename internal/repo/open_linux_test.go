package repo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestOpen_FromSubdirectory(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	strange := filepath.Join(l.top, "dir", "a\nb \xff")
	if err := os.Mkdir(strange, 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := Open(ctx, l.git, strange, Options{Scratch: l.scratch})
	if err != nil {
		t.Fatal(err)
	}
	if r.Top != l.top || r.Dir != filepath.Join(l.top, ".git") || r.Common != r.Dir || r.Linked || r.Submodule ||
		r.Shallow || r.Format != SHA1 {
		t.Errorf("%+v", r)
	}
	if r.Head.Branch != "refs/heads/main" || string(r.Head.Commit) != l.run(l.top, "rev-parse", "HEAD") {
		t.Errorf("%+v", r.Head)
	}
	for rev, want := range map[string]bool{"main": true, "HEAD~0": true, "nothing": false, "-h": false, "--git-dir": false,
		"HEAD^{tree}": false} {
		if _, err := r.Commit(ctx, rev); (err == nil) != want || err != nil && !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %v", rev, err)
		}
	}
	linked := filepath.Join(t.TempDir(), "linked\nwith a line")
	l.run(l.top, "worktree", "add", "-q", "--detach", linked)
	r, err = Open(ctx, l.git, linked, Options{Scratch: l.scratch})
	if err != nil || !r.Linked || r.Top != linked || r.Common != filepath.Join(l.top, ".git") || r.Head.Branch != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestOpen_RefusesUnusableRepositories(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	dir := t.TempDir()
	l.run(dir, "init", "-q", "--bare", "bare")
	l.run(dir, "init", "-q", "unborn")
	l.run(dir, "clone", "-q", "--filter=blob:none", "--no-checkout", "file://"+l.top, "partial")
	l.file(dir, "plain/x", "x")
	l.file(dir, "broken/.git", "gitdir: /nowhere\n")
	l.run(l.top, "init", "-q", "--bare", "within")
	for name, kind := range map[string]fault.Kind{
		"bare": fault.Unsupported, "unborn": fault.Unsupported, "partial": fault.Unsupported, "plain": fault.NotFound,
		"broken":        fault.NotFound,
		l.top + "/.git": fault.Unsupported, l.top + "/within": fault.Unsupported,
	} {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		_, err := Open(ctx, l.git, name, Options{Scratch: l.scratch})
		if !fault.Is(err, kind) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (%s), hint %q", name, err, fault.KindOf(err), fault.HintOf(err))
		}
	}
	if os.Getuid() == 0 {
		if err := os.Chown(l.top, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(ctx, l.git, l.top, Options{Scratch: l.scratch}); !fault.Is(err, fault.Denied) ||
			!strings.Contains(fault.HintOf(err), "safe.directory") {
			t.Errorf("a repository of another user: %v", err)
		}
	}
}

// TestOpen_SubmoduleAndLinkedWorktree checks that a submodule, whose git directory is elsewhere, can be used like
// any other repository.
func TestOpen_SubmoduleAndLinkedWorktree(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	super := t.TempDir()
	l.run(super, "init", "-q")
	l.run(super, "submodule", "--quiet", "add", l.top, "sub")
	linked := filepath.Join(t.TempDir(), "linked")
	l.run(l.top, "worktree", "add", "-q", "-b", "side", linked)
	for _, top := range []string{filepath.Join(super, "sub"), linked} {
		at := *l
		at.top = top
		r := at.open()
		if r.Submodule == r.Linked {
			t.Errorf("%+v", r)
		}
		work := at.work(r)
		if _, err := r.Apply(ctx, Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}); err != nil {
			t.Fatal(err)
		}
		if s := at.run(top, "status", "--porcelain") + at.run(top, "show", "HEAD:new/file.txt"); s != "new" {
			t.Errorf("%q", s)
		}
		if s := at.run(top, "log", "-g", "-1", "--format=%gs"); s != "coppice: apply (squash)" {
			t.Errorf("the reflog says %q", s)
		}
		at.run(top, "update-ref", "-d", string(fix))
	}
}

func TestFindGit_RefusesOldVersions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &lab{t: t}
	for version, ok := range map[string]bool{
		"git version 2.37.9": false, "git version 2.38.0": true, "git version 3.0.0-rc1": true,
		"git version 2.39.5 (Apple Git-154)": true,
		"git version 1.99.0":                 false, "git version two": false, "": false,
	} {
		p := l.program(dir, "git", "#!/bin/sh\necho '"+version+"'\n")
		if _, err := Find(ctx, "", Env{Path: "relative::" + dir}); (err == nil) != ok || err != nil &&
			!fault.Is(err, fault.Unsupported) {
			t.Errorf("%q: %v", version, err)
		}
		os.Remove(p)
	}
	if _, err := Find(ctx, "", Env{Path: dir}); !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
}

// TestGit_IsBoundedAndCancellable checks that the output of git is limited, and that a cancelled git is killed
// with all processes that it started.
func TestGit_IsBoundedAndCancellable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &lab{t: t}
	pid := filepath.Join(dir, "pid")
	g := &Git{program: l.program(dir, "git",
		"#!/bin/sh\ncase $1 in flood) while :; do echo xxxxxxxxxxxxxxxx; done;; hang) sleep 1000 & echo $! >"+pid+".new; mv "+
			pid+".new "+pid+"; wait;; "+
			"limits) ulimit -d; ulimit -t; ulimit -c;; env) env;; say) printf 'a\\033[31mb\\nc' >&2; exit 3;; esac\n")}
	if _, err := g.run(ctx, call{args: []string{"flood"}, most: 1000, env: cleanEnv()}); !fault.Is(err, fault.Invalid) {
		t.Errorf("unlimited output: %v", err)
	}
	c, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() { _, err := g.run(c, call{args: []string{"hang"}, env: cleanEnv()}); done <- err }()
	for {
		if _, err := os.Stat(pid); err == nil {
			break
		}
	}
	cancel()
	if err := <-done; !fault.Is(err, fault.Cancelled) {
		t.Errorf("cancelled: %v", err)
	}
	child, _ := os.ReadFile(pid)
	for { // it was killed, and exits as soon as it is scheduled
		b, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
		if err != nil || bytes.Contains(b, []byte(") Z")) {
			break
		}
	}
	out, err := g.run(ctx,
		call{args: []string{"limits"}, env: cleanEnv(), memory: 1 << 30, cpu: 7, stdin: strings.NewReader("")})
	if err != nil {
		t.Fatal(err)
	}
	_ = out // the limits are set right after the start, so a program that does not read its input may see none
	_, err = g.run(ctx, call{args: []string{"say"}, env: cleanEnv()})
	var ge *GitError
	if !errors.As(err, &ge) || ge.Code != 3 || ge.Stderr != "a?[31mb c" {
		t.Errorf("%+v", ge)
	}
	if out, err = g.run(ctx, call{args: []string{"env"}, env: deskEnv("/desk")}); err != nil ||
		bytes.Contains(out, []byte(os.Getenv("HOME")+"\n")) {
		t.Errorf("%s %v", out, err)
	}
}

// TestGit_IsKilledAtCPULimit checks that a looping git process is killed at its limit of CPU time.
func TestGit_IsKilledAtCPULimit(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r := l.open()
	r.opt.Limits.Work = time.Second
	r.git = &Git{program: l.program(t.TempDir(), "git", "#!/bin/sh\nwhile :; do :; done\n"), user: r.git.user}
	d, err := r.desk()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close(&err)
	_, err = d.changes(ctx, DiffOptions{From: r.Head.Commit, To: r.Head.Commit})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("%v, want invalid", err)
	}
}

// TestAccept_RefusesBombWithinLimits checks that git gets its limits before its input, so that a pack that
// expands too much makes it fail.
func TestAccept_RefusesBombWithinLimits(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	r.opt.Limits.Memory = 128 << 20
	// A delta whose result is declared as 8 GB.
	blob := bytes.Repeat([]byte("x"), 100)
	base := l.hostileObject(dir, "blob", blob)
	l.commit(dir, "harmless")
	delta := append([]byte{100}, 0x80, 0x80, 0x80, 0x80, 0x20)
	for range 300 {
		delta = append(delta, 0x90, 100)
	}
	b := l.bundle(dir, "coppice/fix", "^main")
	at := bytes.Index(b, []byte("PACK"))
	pack := append([]byte(nil), b[at:len(b)-20]...)
	pack[11] += 2
	pack = append(pack, 0x30|0x80|4, 100>>4)
	pack = append(pack, deflate(blob)...)
	pack = append(pack, 0x70|0x80|byte(len(delta)&15), byte(len(delta)>>4&0x7f))
	pack[len(pack)-1] = byte(len(delta) >> 4)
	for i := 0; i < len(base); i += 2 {
		pack = append(pack, unhex(base[i])<<4|unhex(base[i+1]))
	}
	pack = append(pack, deflate(delta)...)
	_, err := r.Accept(ctx,
		Accept{Bundle: bytes.NewReader(append(b[:at:at], append(pack, sha1sum(pack)...)...)), Ref: fix,
			Base: r.Head.Commit, To: fix})
	if !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	t.Log(err)
	l.sound()
}

func unhex(c byte) byte { return byte(strings.IndexByte("0123456789abcdef", c)) }

func TestDifferences(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "a.txt", "one\ntwo\nTHREE\nfour\n")
	l.run(dir, "mv", "dir/b.txt", "dir/c \t\n.txt")
	l.file(dir, "binary", "a\x00b")
	os.Symlink("a.txt", filepath.Join(dir, "link"))
	l.program(dir, "run", "x")
	l.file(dir, ".gitattributes", "a.txt -diff\nbinary diff\n")
	l.commit(dir, "changes")
	got := l.accept(r, dir)
	changes, err := r.Diff(ctx, DiffOptions{From: r.Head.Commit, To: got.Tip, Renames: true, Stat: true})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, c := range changes {
		b.WriteString(strings.Join([]string{string(c.Status), c.OldMode.String(), c.Mode.String(), c.OldPath, c.Path}, " "))
		if c.Binary {
			b.WriteString(" binary")
		}
		b.WriteString(" " + string(rune('0'+c.Added)) + string(rune('0'+c.Deleted)) + ";")
	}
	want := "A 000000 100644  .gitattributes 20;M 100644 100644  a.txt 21;A 000000 100644  binary binary 00;R 100644 " +
		"100644 dir/b.txt dir/c \t\n.txt 00;A 000000 120000  link 10;A 000000 100755  run 10;"
	if b.String() != want {
		t.Errorf("the changes are\n%q\nwant\n%q", b.String(), want)
	}
	only, err := r.Diff(ctx, DiffOptions{From: r.Head.Commit, To: got.Tip, Paths: []string{"dir", "*"}})
	if err != nil || len(only) != 2 {
		t.Errorf("%+v %v", only, err)
	}
	var patch bytes.Buffer
	if err := r.Patch(ctx, DiffOptions{From: r.Head.Commit, To: got.Tip}, &patch); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(patch.String(), "+THREE") || strings.Contains(patch.String(), "c \t\n") {
		t.Errorf("the patch is\n%s", patch.String())
	}
	if out, err := l.try(l.top, patch.Bytes(), "apply", "--index"); err != nil {
		t.Error(out)
	}
	if tree := l.run(l.top, "write-tree"); tree != l.run(l.top, "rev-parse", string(got.Tip)+"^{tree}") {
		t.Error("the patch does not produce the tip's tree")
	}
	r.opt.Limits.Patch = 100
	if err := r.Patch(ctx, DiffOptions{From: r.Head.Commit, To: got.Tip}, io.Discard); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	if _, err := r.Diff(ctx, DiffOptions{From: OID("--output=/tmp/x"), To: got.Tip}); err == nil {
		t.Error("an option was accepted as a commit")
	}
}

func TestDiffPending_LeavesOutWhatTheBranchHas(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	r, dir := l.open(), l.sandbox()
	l.file(dir, "a.txt", "one\ntwo\nTHREE\nfour\n")
	l.run(dir, "mv", "dir/b.txt", "dir/c.txt")
	l.file(dir, "new", "new\n")
	l.program(dir, "run", "x")
	l.commit(dir, "changes")
	got := l.accept(r, dir)
	all := DiffOptions{From: r.Head.Commit, To: got.Tip}
	pending := func(have OID, paths ...string) (list string, had int) {
		t.Helper()
		o := all
		o.Have, o.Paths = have, paths
		changes, had, err := r.DiffPending(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range changes {
			names = append(names, string(c.Status)+" "+c.Path)
		}
		return strings.Join(names, ", "), had
	}
	if list, had := pending(r.Head.Commit); list != "M a.txt, D dir/b.txt, A dir/c.txt, A new, A run" || had != 0 {
		t.Errorf("%s; %d", list, had)
	}
	if list, had := pending(got.Tip); list != "" || had != 5 {
		t.Errorf("%s; %d", list, had)
	}
	// The branch gets half of a rename, another content, another mode, and a file of its own.
	l.run(l.top, "rm", "-q", "dir/b.txt")
	l.file(l.top, "a.txt", "one\ntwo\nTHREE\nfour\nfive\n")
	l.file(l.top, "new", "new\n")
	l.file(l.top, "run", "x")
	l.file(l.top, "mine", "mine\n")
	have := l.commit(l.top, "some")
	if list, had := pending(have); list != "M a.txt, A dir/c.txt, A run" || had != 2 {
		t.Errorf("%s; %d", list, had)
	}
	if list, had := pending(have, "new", "run"); list != "A run" || had != 1 {
		t.Errorf("%s; %d", list, had)
	}
	all.Have = have
	var patch bytes.Buffer
	if err := r.Patch(ctx, all, &patch); err != nil || !strings.Contains(patch.String(), "-three") ||
		strings.Contains(patch.String(), "b/new") {
		t.Errorf("%v\n%s", err, &patch)
	}
}

// TestOpen_StrangePath covers a path with a newline, a quote and an invalid byte: git must find the objects of
// the user's repository there.
func TestOpen_StrangePath(t *testing.T) {
	t.Parallel()
	l := newLab(t, SHA1)
	strange := filepath.Join(filepath.Dir(l.top), "#a\n\"b\\\xff: c")
	if err := os.Rename(l.top, strange); err != nil {
		t.Fatal(err)
	}
	l.top = strange
	r := l.open()
	work := l.work(r)
	if _, err := r.Apply(ctx, Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Squash, Message: "m"}); err != nil {
		t.Fatal(err)
	}
	l.sound()
}

// TestGit_IgnoresEnvironment sets variables that would change what git does.
func TestGit_IgnoresEnvironment(t *testing.T) {
	for _, kv := range []string{"GIT_DIR=/nowhere", "GIT_INDEX_FILE=/nowhere", "GIT_OBJECT_DIRECTORY=/nowhere",
		"GIT_EXEC_PATH=/nowhere", "GIT_EXTERNAL_DIFF=false", "GIT_TRACE=1", "GIT_CONFIG_PARAMETERS='core.bare'='true'",
		"GIT_NAMESPACE=x", "GIT_DIFF_OPTS=-u0", "GIT_REPLACE_REF_BASE=refs/x", "GIT_PAGER=false"} {
		k, v, _ := strings.Cut(kv, "=")
		t.Setenv(k, v)
	}
	l := newLab(t, SHA1)
	r := l.open()
	work := l.work(r)
	if _, err := r.Apply(ctx, Apply{Base: r.Head.Commit, Tip: work.Tip, Way: Merge, Message: "m"}); err != nil {
		t.Fatal(err)
	}
	l.sound()
}
