package repo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Env is what the user's git is told of the user's environment, and all of it.
type Env struct {
	Home   string // HOME: where the user's configuration is
	Config string // XDG_CONFIG_HOME, or ""
	Path   string // PATH: where the user's filters (LFS) are found; "" is /usr/bin:/bin
}

// Git is the git program of the host. It may be used by several goroutines at once.
type Git struct {
	program string
	user    Env
}

// oldest is the first version that has all we need: merge-tree --write-tree.
var oldest = [2]int{2, 38}

// Find looks at the program at path, or, where that is "", at the first git in user.Path.
// It is found once, here: nothing is looked up again later. A git older than 2.38 is
// Unsupported, as is none.
func Find(ctx context.Context, path string, user Env) (*Git, error) {
	if user.Path == "" {
		user.Path = "/usr/bin:/bin"
	}
	if path == "" {
		path = look(user.Path)
	}
	if !filepath.IsAbs(path) {
		return nil, fault.New(fault.Unsupported, "git is not installed").WithHint("install git 2.38 or newer: sudo apt-get install git")
	}
	g := &Git{program: path, user: user}
	out, err := g.run(ctx, call{args: []string{"version"}, env: cleanEnv()})
	if err != nil {
		return nil, fault.Wrap(err, "ask %s for its version", path)
	}
	if v, ok := parseVersion(string(out)); !ok || v[0] < oldest[0] || v[0] == oldest[0] && v[1] < oldest[1] {
		return nil, fault.New(fault.Unsupported, "%s is %q, and 2.38 is the oldest that can be used", path, clip(strings.TrimSpace(string(out)))).
			WithHint("install a newer git")
	}
	return g, nil
}

// look finds git in the absolute directories of a PATH.
func look(path string) string {
	for _, dir := range filepath.SplitList(path) {
		name := filepath.Join(dir, "git")
		if info, err := os.Stat(name); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return name
		}
	}
	return ""
}

// parseVersion reads "git version 2.39.5 (...)".
func parseVersion(s string) (v [2]int, ok bool) {
	rest, found := strings.CutPrefix(s, "git version ")
	parts := strings.SplitN(rest, ".", 3)
	if !found || len(parts) < 2 {
		return v, false
	}
	for i := range v {
		n, err := strconv.Atoi(strings.TrimSpace(parts[i]))
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

// setting is one line of configuration that every git that we start is given, above all
// files, with the reason.
type setting struct{ key, value, why string }

// always is set wherever git runs, also in the user's own repository.
var always = []setting{
	{"core.hooksPath", "/dev/null", "no hook runs, whoever wrote it"},
	{"core.fsmonitor", "false", "a program that git starts to ask what changed"},
	{"core.untrackedCache", "keep", "the index is not changed in passing"},
	{"core.alternateRefsCommand", "false", "a program"},
	{"core.protectHFS", "true", "names that are .git on other file systems are refused"},
	{"core.protectNTFS", "true", "the same"},
	{"core.fsync", "all", "what is acknowledged is on the disk"},
	{"core.fsyncMethod", "fsync", "the same"},
	{"protocol.allow", "never", "nothing is fetched or sent, by any transport"},
	{"gc.auto", "0", "nothing is started in the background"},
	{"maintenance.auto", "false", "the same"},
	{"submodule.recurse", "false", "repositories within are left alone"},
	{"fetch.recurseSubmodules", "false", "the same"},
	{"diff.external", "", "a program"},
	{"core.pager", "cat", "a program"},
	{"core.editor", "false", "a program"},
	{"core.askPass", "false", "a program"},
	{"core.sshCommand", "false", "a program"},
	{"credential.helper", "", "programs"},
	{"commit.gpgSign", "false", "a program"},
	{"log.showSignature", "false", "a program"},
	{"advice.graftFileDeprecated", "false", "only noise"},
}

// atDesk is set besides where git meets what a sandbox wrote. No configuration but this
// and the desk's own is read there.
var atDesk = []setting{
	{"core.attributesFile", "/dev/null", "no attributes, so no filter, textconv, diff or merge driver"},
	{"core.excludesFile", "/dev/null", "nothing is ignored that we did not ask for"},
	{"core.symlinks", "true", "links are links"},
	{"core.fileMode", "true", "modes are modes"},
	{"core.ignoreCase", "false", "names are bytes"},
	{"core.precomposeUnicode", "false", "the same"},
	{"core.autocrlf", "false", "content is bytes"},
	{"core.quotePath", "true", "names in patches have no control bytes"},
	{"core.bigFileThreshold", "32m", "large files are streamed, never held"},
	{"core.packedGitWindowSize", "32m", "packs are mapped in pieces"},
	{"core.packedGitLimit", "512m", "and not many at a time"},
	{"pack.threads", "2", "bounded"},
	{"pack.windowMemory", "64m", "bounded"},
	{"core.deltaBaseCacheLimit", "64m", "bounded"},
	{"diff.renameLimit", "1000", "the work for renames is bounded"},
	{"merge.renameLimit", "1000", "the same"},
	{"merge.directoryRenames", "false", "nothing is put where nobody wrote it"},
	{"diff.noprefix", "false", "patches look the same for everybody"},
	{"diff.mnemonicPrefix", "false", "the same"},
	{"fastimport.unpackLimit", "1", "one pack, not many files"},
}

// cleanEnv is the environment that everything starts from: none of ours.
func cleanEnv() []string {
	return []string{
		"LC_ALL=C", "LANGUAGE=C", "TZ=UTC",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "PATH=/usr/bin:/bin",
	}
}

// commonEnv is what neither side does without: no prompts, no network, literal paths.
func commonEnv() []string {
	return []string{
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=false", "SSH_ASKPASS=false", "GIT_SSH_COMMAND=false", "GIT_EDITOR=false", "GIT_PAGER=cat",
		"GIT_ALLOW_PROTOCOL=none", "GIT_PROTOCOL_FROM_USER=0", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0",
		"GIT_LITERAL_PATHSPECS=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_ADVICE=0", "GIT_MERGE_AUTOEDIT=no",
	}
}

// settings gives lists of settings as an environment, which is above every file.
func settings(lists ...[]setting) []string {
	var env []string
	n := 0
	for _, list := range lists {
		for _, s := range list {
			env = append(env, "GIT_CONFIG_KEY_"+strconv.Itoa(n)+"="+s.key, "GIT_CONFIG_VALUE_"+strconv.Itoa(n)+"="+s.value)
			n++
		}
	}
	return append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(n))
}

// deskEnv is the environment of git at a desk.
func deskEnv(dir string, more ...setting) []string {
	return append(append(append(cleanEnv(), commonEnv()...), settings(always, atDesk, more)...), "GIT_DIR="+dir)
}

// userEnv is the environment of git in the user's repository: the user's configuration
// counts, but for what is in always.
func (g *Git) userEnv() []string {
	env := []string{"LC_ALL=C", "LANGUAGE=C", "HOME=" + g.user.Home, "PATH=" + g.user.Path}
	if g.user.Config != "" {
		env = append(env, "XDG_CONFIG_HOME="+g.user.Config)
	}
	return append(append(env, commonEnv()...), settings(always)...)
}

// call is one run of git.
type call struct {
	args   []string
	env    []string
	dir    string     // working directory; "" is /
	stdin  io.Reader  // nil: nothing; one that never blocks: a file or what is in memory
	stdout io.Writer  // nil: what it prints is given back
	most   int64      // bytes of output; 0 is maxOutput
	files  []*os.File // inherited, from descriptor 3 on
	memory uint64     // bytes that it may allocate; 0 is no limit of ours
	cpu    uint64     // seconds of processor time; 0 is no limit of ours
}

// maxOutput bounds the output of a call that says nothing else.
const maxOutput = 64 << 20

// GitError says that git ended with an error. It is the cause of errors of this package.
type GitError struct {
	Command string // the command of git's
	Code    int    // its exit code; -1 where a signal ended it
	Stderr  string // the beginning of what it said, without control bytes
}

// Error says what git said.
func (e *GitError) Error() string {
	if e.Stderr == "" {
		return "git " + e.Command + " ended with " + strconv.Itoa(e.Code)
	}
	return "git " + e.Command + ": " + e.Stderr
}

// run runs git to its end. When ctx ends, or more comes out than may, its whole process
// group is killed. An exit code that is not 0 is a *GitError, and the output is given
// all the same.
func (g *Git) run(ctx context.Context, c call) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := g.command(ctx, c)
	var kept bytes.Buffer
	most := c.most
	if most == 0 {
		most = maxOutput
	}
	out := &bounded{w: &kept, left: most, stop: func() { cancel(errTooMuch) }}
	if c.stdout != nil {
		out.w = c.stdout
	}
	said := &head{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, said
	fed, err := g.startAndFeed(cmd, c)
	if err != nil {
		return nil, err
	}
	err = cmd.Wait()
	fed()
	var exit *exec.ExitError
	switch {
	case out.err != nil:
		return nil, fault.Wrap(out.err, "read what git %s prints", c.args[0])
	case context.Cause(ctx) != nil:
		return nil, fault.Wrap(context.Cause(ctx), "run git %s", c.args[0])
	case errors.As(err, &exit):
		return kept.Bytes(), &GitError{Command: c.args[0], Code: exit.ExitCode(), Stderr: printable(said.String())}
	case err != nil:
		return nil, fault.Wrap(err, "run git %s", c.args[0])
	}
	return kept.Bytes(), nil
}

// errTooMuch is why a git that prints too much is killed.
var errTooMuch = fault.New(fault.Invalid, "there is more of it than the limit allows")

// command makes the command, a process group of its own.
func (g *Git) command(ctx context.Context, c call) *exec.Cmd {
	cmd := exec.CommandContext(ctx, g.program, c.args...)
	cmd.Env, cmd.Dir, cmd.ExtraFiles = c.env, c.dir, c.files
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// startAndFeed starts the command, limits it, and only then lets it have its input: a
// git that reads what a sandbox wrote has its limits before the first byte. The caller
// calls fed when the command has ended.
func (g *Git) startAndFeed(cmd *exec.Cmd, c call) (fed func(), err error) {
	if c.stdin == nil {
		return func() {}, g.start(cmd, c)
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, fault.Wrap(err, "make a pipe")
	}
	cmd.Stdin = pr
	err = g.start(cmd, c)
	pr.Close()
	if err != nil {
		pw.Close()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(pw, c.stdin) // what cannot be written has no reader, who says why
		pw.Close()
	}()
	return func() { pw.Close(); <-done }, nil
}

func (g *Git) start(cmd *exec.Cmd, c call) error {
	if err := cmd.Start(); err != nil {
		return fault.Wrap(err, "start git %s", c.args[0])
	}
	for _, l := range []struct {
		what int
		n    uint64
	}{{unix.RLIMIT_DATA, c.memory}, {unix.RLIMIT_CPU, c.cpu}, {unix.RLIMIT_CORE, 0}} {
		if l.n == 0 && l.what != unix.RLIMIT_CORE {
			continue
		}
		if err := unix.Prlimit(cmd.Process.Pid, l.what, &unix.Rlimit{Cur: l.n, Max: l.n}, nil); err != nil && !errors.Is(err, unix.ESRCH) {
			_ = cmd.Cancel()
			_ = cmd.Wait()
			return fault.Wrap(err, "limit git %s", c.args[0])
		}
	}
	return nil
}

// bounded passes on so many bytes, then stops who writes.
type bounded struct {
	w    io.Writer
	left int64
	stop func()
	err  error
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.err == nil && int64(len(p)) > b.left {
		b.err = errTooMuch
	}
	if b.err == nil {
		b.left -= int64(len(p))
		_, b.err = b.w.Write(p)
	}
	if b.err != nil {
		b.stop()
		return 0, b.err
	}
	return len(p), nil
}

// head keeps the beginning of what is written.
type head struct {
	bytes.Buffer
	most int
}

func (h *head) Write(p []byte) (int, error) {
	if room := h.most - h.Len(); room > 0 {
		h.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// printable takes control bytes out of what git said, which may quote a stranger.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || !strconv.IsPrint(r):
			return '?'
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}
