package repo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lab is a user with a repository, and a sandbox that has a copy of it.
type lab struct {
	t       testing.TB
	home    string
	top     string // the user's work tree
	scratch string
	git     *Git
	format  Format
}

var ctx = context.Background()

// newLab creates a user with a repository that has one commit. The test is skipped if a required program is
// missing.
func newLab(t testing.TB, format Format) *lab {
	t.Helper()
	dir := t.TempDir()
	l := &lab{t: t, home: filepath.Join(dir, "home"), top: filepath.Join(dir, "repo"),
		scratch: filepath.Join(dir, "scratch"), format: format}
	for _, d := range []string{l.home, l.top, l.scratch} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.file(l.home, ".gitconfig",
		"[user]\n\tname = User\n\temail = user@example.org\n[init]\n\tdefaultBranch = main\n[protocol \"file\"]\n\tallow "+
			"= always\n[gc]\n\tauto = 0\n")
	g, err := Find(ctx, "", Env{Home: l.home, Path: os.Getenv("PATH")})
	if err != nil {
		t.Skip("needs git: ", err)
	}
	l.git = g
	l.run(l.top, "init", "-q", "--object-format="+string(format))
	l.file(l.top, "a.txt", "one\ntwo\nthree\n")
	l.file(l.top, "dir/b.txt", "b\n")
	l.file(l.top, ".gitignore", "*.o\nsecret/\n")
	l.commit(l.top, "first")
	return l
}

// run runs plain git in a directory, without Coppice's settings.
func (l *lab) run(dir string, args ...string) string {
	l.t.Helper()
	out, err := l.try(dir, nil, args...)
	if err != nil {
		l.t.Fatalf("git %q in %s: %v\n%s", args, dir, err, out)
	}
	return strings.TrimSuffix(out, "\n")
}

func (l *lab) try(dir string, stdin []byte, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
	cmd.Env = append(
		[]string{"HOME=" + l.home, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C",
			"GIT_AUTHOR_DATE=1700000000 +0000", "GIT_COMMITTER_DATE=1700000000 +0000"}, moreEnv...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		return out.String() + said.String(), err
	}
	return out.String(), nil
}

var moreEnv []string

// file writes a file, and creates its directories.
func (l *lab) file(dir, name, text string) {
	l.t.Helper()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// program writes an executable file. It holds ForkLock, so that no other test forks a child meanwhile: the child
// would have the file open for writing until its execve(2), and executing the file would fail (ETXTBSY).
func (l *lab) program(dir, name, text string) string {
	l.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l.file(dir, name, text)
	name = filepath.Join(dir, name)
	if err := os.Chmod(name, 0o755); err != nil {
		l.t.Fatal(err)
	}
	return name
}

// commit commits all changes.
func (l *lab) commit(dir, text string) OID {
	l.t.Helper()
	l.run(dir, "add", "-A")
	l.run(dir, "commit", "-q", "--allow-empty", "-m", text)
	return OID(l.run(dir, "rev-parse", "HEAD"))
}

// open opens the user's repository.
func (l *lab) open() *Repo {
	l.t.Helper()
	r, err := Open(ctx, l.git, l.top,
		Options{Scratch: l.scratch, Now: func() time.Time { return time.Unix(1_700_000_000, 0) }})
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

// sandbox returns a clone of the repository, on its own branch.
func (l *lab) sandbox() string {
	l.t.Helper()
	dir := filepath.Join(l.t.TempDir(), "inside")
	l.run(l.top, "clone", "-q", ".", dir)
	l.run(dir, "checkout", "-q", "-b", "coppice/fix")
	return dir
}

const fix = Ref("refs/heads/coppice/fix")

// bundle makes the sandbox's git write a bundle.
func (l *lab) bundle(dir string, args ...string) []byte {
	l.t.Helper()
	out, err := l.try(dir, nil, append([]string{"bundle", "create", "-q", "-"}, args...)...)
	if err != nil {
		l.t.Fatal(err, out)
	}
	return []byte(out)
}

// accept accepts the sandbox's branch.
func (l *lab) accept(r *Repo, dir string) Accepted {
	l.t.Helper()
	base := r.Head.Commit
	old, err := r.tip(ctx, fix)
	if err != nil {
		l.t.Fatal(err)
	}
	got, err := r.Accept(ctx,
		Accept{Bundle: bytes.NewReader(l.bundle(dir, "coppice/fix", "^"+string(base))), Ref: fix, Base: base, To: fix,
			Old: old, Message: "accept"})
	if err != nil {
		l.t.Fatal(err)
	}
	return got
}

// sound is the last check of a test that changes the repository: git finds no errors, and no files of Coppice and
// no desks are left.
func (l *lab) sound() {
	l.t.Helper()
	if out, err := l.try(l.top, nil, "fsck", "--full", "--strict", "--no-dangling"); err != nil {
		l.t.Errorf("fsck: %v\n%s", err, out)
	}
	left, err := filepath.Glob(filepath.Join(l.scratch, "*"))
	if err != nil || len(left) > 0 {
		l.t.Errorf("left in scratch: %q %v", left, err)
	}
	for _, pattern := range []string{"coppice-*", "index.lock", "objects/pack/tmp_*"} {
		if left, _ = filepath.Glob(filepath.Join(l.top, ".git", pattern)); len(left) > 0 {
			l.t.Errorf("left in the repository: %q", left)
		}
	}
}

// state returns what must not change when something is refused: references, index, files.
func (l *lab) state() string {
	l.t.Helper()
	var b strings.Builder
	b.WriteString(l.run(l.top, "for-each-ref") + l.run(l.top, "ls-files", "-s") +
		l.run(l.top, "status", "--porcelain", "--ignored") + l.run(l.top, "rev-parse", "HEAD"))
	packs, err := filepath.Glob(filepath.Join(l.top, ".git/objects/pack/*"))
	if err != nil {
		l.t.Fatal(err)
	}
	return b.String() + strings.Join(packs, "\n")
}

// conflictPaths returns the paths of a Conflict.
func conflictPaths(err error) []string {
	var c *Conflicts
	if errors.As(err, &c) {
		return c.Paths
	}
	return nil
}
