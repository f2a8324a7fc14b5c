package repo

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/undo"
)

const ignoreFile = ".gitignore"

// ignoreRules answers which paths are ignored, by the rules of a commit and of the user, or by those of a work tree.
// Only the rules are copied into two empty directories, and git runs there: it never runs in the work tree itself.
type ignoreRules struct {
	ours, theirs *ignorer
	carried      map[string]bool
	files, bytes int // number and total size of the copied rules
}

// ignoreRules creates them. The caller must close them.
func (r *Repo) ignoreRules(ctx context.Context, d *desk, base listing) (rules *ignoreRules, err error) {
	var cleanup undo.Stack
	defer cleanup.Run(&err)
	excludes, err := r.excludes(ctx, d)
	if err != nil {
		return nil, err
	}
	rules = &ignoreRules{carried: map[string]bool{}}
	if rules.ours, err = d.ignorer(ctx, "ours", excludes); err != nil {
		return nil, err
	}
	cleanup.Push(rules.ours.close)
	if err := d.carryBase(ctx, base, rules.ours); err != nil {
		return nil, err
	}
	if rules.theirs, err = d.ignorer(ctx, "theirs", "/dev/null"); err != nil {
		return nil, err
	}
	cleanup.Release()
	return rules, nil
}

// excludes finds the user's rules outside commits. It copies those of the repository to the desk, and returns the
// path of the user's own file.
func (r *Repo) excludes(ctx context.Context, d *desk) (string, error) {
	own, err := os.ReadFile(filepath.Join(r.Common, "info", "exclude"))
	if err == nil {
		err = os.WriteFile(filepath.Join(d.dir, "info", "exclude"), own, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fault.Wrap(err, "read the ignore rules of %s", r.Top)
	}
	out, err := r.user(ctx, call{args: []string{"config", "--type=path", "--get", "core.excludesFile"}})
	name := strings.TrimSuffix(string(out), "\n")
	switch {
	case err != nil && code(err) != 1:
		return "", fault.Wrap(err, "read the configuration of %s", r.Top)
	case err == nil && filepath.IsAbs(name):
		return name, nil
	case r.git.user.Config != "":
		return filepath.Join(r.git.user.Config, "git", "ignore"), nil
	}
	return filepath.Join(r.git.user.Home, ".config", "git", "ignore"), nil
}

// carryBase copies the rules of a commit.
func (d *desk) carryBase(ctx context.Context, base listing, to *ignorer) error {
	want := map[OID]bool{}
	for p, e := range base {
		if path.Base(p) == ignoreFile && (e.mode == ModeFile || e.mode == ModeExecutable) {
			want[e.id] = true
		}
	}
	sizes, err := d.sizes(ctx, want)
	if err != nil {
		return err
	}
	held := int64(0)
	for _, n := range sizes {
		held += n
	}
	if held > limit.RuleBytes {
		return fault.New(fault.TooLarge, "the ignore rules of the base exceed %d bytes", limit.RuleBytes)
	}
	texts, err := d.contents(ctx, want)
	if err != nil {
		return err
	}
	for p, e := range base {
		if text, is := texts[e.id]; is && path.Base(p) == ignoreFile {
			if err := to.put(up(p), text); err != nil {
				return fault.Wrap(err, "copy the ignore rules of the base")
			}
		}
	}
	return nil
}

// carry copies the rules of a directory of the work tree. A .gitignore that is too large or not a regular file is
// skipped.
func (g *ignoreRules) carry(f *os.File, dir string) error {
	if g.carried[dir] {
		return nil
	}
	g.carried[dir] = true
	st, err := dirfd.Lstat(int(f.Fd()), ignoreFile)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "read ignore rules")
	}
	if !dirfd.IsRegular(&st) || st.Size > limit.RuleFile {
		return nil
	}
	rules, err := openFile(f, ignoreFile)
	if err != nil {
		return err
	}
	defer rules.Close()
	text, err := io.ReadAll(io.LimitReader(rules, limit.RuleFile))
	if err != nil {
		return fault.Wrap(err, "read ignore rules")
	}
	g.files, g.bytes = g.files+1, g.bytes+len(text)
	if g.files > limit.RuleFiles || g.bytes > limit.RuleBytes {
		return fault.New(fault.TooLarge, "the work tree has more than %d ignore files, or more than %d bytes of ignore rules",
			limit.RuleFiles, limit.RuleBytes).
			WithHint("list them: find . -name .gitignore")
	}
	return fault.Wrap(g.theirs.put(dir, text), "copy ignore rules")
}

// ignored reports for each path whether it is ignored. Paths have slashes, and a directory's path ends with one.
func (g *ignoreRules) ignored(ctx context.Context, paths []string) ([]bool, error) {
	all := make([]bool, len(paths))
	for _, ig := range []*ignorer{g.ours, g.theirs} {
		if err := ig.ask(ctx, paths, all); err != nil {
			return nil, fault.Wrap(err, "list the ignored files")
		}
	}
	return all, nil
}

func (g *ignoreRules) close(errp *error) {
	if err := errors.Join(g.ours.close(), g.theirs.close()); err != nil && *errp == nil {
		*errp = fault.Wrap(err, "list the ignored files")
	}
}

// ignorer is a git process that answers questions, in a directory that holds only rules.
type ignorer struct {
	dir *os.File
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// ignorer starts one. The caller must close it.
func (d *desk) ignorer(ctx context.Context, name, excludes string) (ig *ignorer, err error) {
	var cleanup undo.Stack
	defer cleanup.Run(&err)
	at := filepath.Join(d.dir, name)
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, fault.Wrap(err, "create a directory for the ignore rules")
	}
	ig = &ignorer{}
	if ig.dir, err = os.Open(at); err != nil {
		return nil, fault.Wrap(err, "create a directory for the ignore rules")
	}
	cleanup.Push(ig.dir.Close)
	c := call{args: []string{"check-ignore", "--no-index", "--stdin", "-z", "-v", "-n"}, dir: at, memory: d.limits.Memory,
		cpu: min(d.limits.cpu(), limit.RuleWork),
		env: append(deskEnv(d.dir, setting{key: "core.excludesFile", value: excludes}), "GIT_WORK_TREE="+at,
			"GIT_LITERAL_PATHSPECS=0")}
	ig.cmd = d.git.command(ctx, c)
	if ig.in, err = ig.cmd.StdinPipe(); err != nil {
		return nil, fault.Wrap(err, "create a pipe")
	}
	out, err := ig.cmd.StdoutPipe()
	if err != nil {
		return nil, fault.Wrap(err, "create a pipe")
	}
	ig.out = bufio.NewReader(out)
	if err := d.git.start(ig.cmd, c); err != nil {
		return nil, err
	}
	cleanup.Release()
	return ig, nil
}

// put writes the rules of a directory.
func (ig *ignorer) put(dir string, text []byte) error {
	if err := dirfd.MkdirAll(ig.dir, dir, 0o700); err != nil {
		return err
	}
	at, err := dirfd.OpenFile(ig.dir, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer at.Close()
	f, err := dirfd.OpenFile(at, ignoreFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// ask sets out[i] if paths[i] is ignored.
func (ig *ignorer) ask(ctx context.Context, paths []string, out []bool) error {
	wrote := make(chan error, 1)
	go func() {
		w := bufio.NewWriter(ig.in)
		for _, p := range paths {
			w.WriteString("./" + p) //nolint:errcheck // Flush returns the error
			w.WriteByte(0)          //nolint:errcheck // the same
		}
		wrote <- w.Flush()
	}()
	var err error
	for i := 0; i < len(paths) && err == nil; i++ {
		var hit bool
		hit, err = ig.answer()
		out[i] = out[i] || hit
	}
	if err != nil {
		ig.cmd.Cancel() //nolint:errcheck // so that the writer ends
	}
	err = errors.Join(err, <-wrote)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE):
		// Matching crafted rules may take unbounded time.
		return fault.New(fault.TooLarge,
			"git exceeded its limit for ignore rules: %d seconds of processor time, or its memory",
			limit.RuleWork).
			Because(err).WithHint("list them: find . -name .gitignore")
	}
	return err
}

// answer reads the record "source, line, pattern, path", each with a NUL. The pattern is empty if none matches.
func (ig *ignorer) answer() (bool, error) {
	var pattern string
	for i := range 4 {
		s, err := ig.out.ReadString(0)
		if err != nil {
			return false, err
		}
		if i == 2 {
			pattern = strings.TrimSuffix(s, "\x00")
		}
	}
	return pattern != "" && pattern[0] != '!', nil
}

// close ends the process. Its exit code only says whether a path was ignored, or that it was killed.
func (ig *ignorer) close() error {
	ig.in.Close()
	_, _ = io.Copy(io.Discard, ig.out)
	err := ig.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return errors.Join(err, ig.dir.Close())
}
