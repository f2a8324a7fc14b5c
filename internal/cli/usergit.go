package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// userGit runs the user's git with their environment: only it has the credentials and the network access for a
// remote. The daemon does all other work with a repository.
type userGit struct {
	program string
	dir     string    // directory in the repository
	env     []string  // complete environment
	said    io.Writer // also receives git's messages, sanitized
}

// userSettings override every configuration. Only what was requested is fetched and pushed, no hook or program of the
// repository runs, and nothing is started in the background.
var userSettings = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.alternateRefsCommand=false",
	"protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=always", "protocol.ssh.allow=always",
	"protocol.git.allow=always", "protocol.file.allow=always",
	"transfer.fsckObjects=true", "fetch.fsckObjects=true", "fetch.unpackLimit=1", "fetch.recurseSubmodules=false",
	"submodule.recurse=false", "push.recurseSubmodules=no",
	"push.followTags=false", "fetch.prune=false", "fetch.pruneTags=false", "fetch.writeCommitGraph=false",
	"fetch.bundleURI=", "transfer.bundleURI=false",
	"gc.auto=0", "maintenance.auto=false", "core.fsync=all", "core.fsyncMethod=fsync",
}

// notOurs has the variables that would make git work on something other than its working directory.
var notOurs = []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
	"GIT_ALTERNATE_OBJECT_DIRECTORIES",
	"GIT_NAMESPACE", "GIT_PREFIX", "GIT_QUARANTINE_PATH", "GIT_INTERNAL_SUPER_PREFIX", "GIT_SHALLOW_FILE",
	"GIT_GRAFT_FILE", "GIT_ALLOW_PROTOCOL", "GIT_PROTOCOL_FROM_USER", "LC_ALL", "LANGUAGE"}

// gitOf returns git for the repository of a sandbox, and the sandbox.
func (a *app) gitOf(ctx context.Context, c *client.Client, name string) (*userGit, wire.Sandbox, error) {
	st, err := c.Status(ctx, name)
	if err != nil {
		return nil, wire.Sandbox{}, err
	}
	sb := st.Sandbox
	if sb.Repo == nil {
		return nil, sb, fault.New(fault.Invalid, "sandbox %s does not work on a git repository", tty.Clean(name)).
			WithHint("create one in the directory of the repository: coppice create")
	}
	g, err := a.userGit(sb.Repo.Top)
	return g, sb, err
}

// userGit returns the user's git for a directory.
func (a *app) userGit(dir string) (*userGit, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		return nil, fault.New(fault.Unsupported, "git is not installed").Because(err).
			WithHint("install git 2.38 or newer: sudo apt-get install git")
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(notOurs, name)
	})
	g := &userGit{program: program, dir: dir, env: append(env, "LC_ALL=C.UTF-8", "LANGUAGE=C"), said: io.Discard}
	if !a.quiet && !a.json {
		g.said = tty.Cleaner(a.stderr)
	}
	return g, nil
}

// Limits on git's output: the listing of a remote, and its stderr.
const (
	maxGitOutput = 16 << 20
	maxGitSaid   = 4 << 10
)

// gitError is the error of a git that exited with an error.
type gitError struct {
	code int
	said string // beginning of its stderr, sanitized
}

func (e *gitError) Error() string {
	if e.said == "" {
		return "git exited with an error"
	}
	return e.said
}

// run runs git and returns its output, also with an error, which is a *gitError if git exited with one. When ctx
// ends, git is interrupted, and killed after ten seconds.
func (g *userGit) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all []string
	for _, s := range userSettings {
		all = append(all, "-c", s)
	}
	cmd := exec.CommandContext(ctx, g.program, append(all, args...)...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = g.dir, g.env, 10*time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out := &capped{most: maxGitOutput, full: func() {
		cancel(fault.New(fault.Invalid, "the remote lists more than %d bytes", maxGitOutput))
	}}
	said := &capped{most: maxGitSaid}
	cmd.Stdout, cmd.Stderr = out, io.MultiWriter(said, g.said)
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case context.Cause(ctx) != nil:
		return "", context.Cause(ctx)
	case errors.As(err, &exit):
		return out.String(),
			&gitError{code: exit.ExitCode(), said: tty.Clean(strings.TrimSpace(strings.ToValidUTF8(said.String(), "?")))}
	case err != nil:
		return "", fault.Wrap(err, "run git %s", args[0])
	}
	return out.String(), nil
}

// quiet returns a git that prints no messages.
func (g *userGit) quiet() *userGit {
	q := *g
	q.said = io.Discard
	return &q
}

// capped keeps only the first bytes that are written.
type capped struct {
	bytes.Buffer
	most int
	full func() // called when more is written; if nil, the rest is dropped
}

func (c *capped) Write(p []byte) (int, error) {
	room := min(max(c.most-c.Len(), 0), len(p))
	c.Buffer.Write(p[:room])
	if room < len(p) && c.full != nil {
		c.full()
	}
	return len(p), nil
}

// config returns a value of the user's configuration, or "".
func (g *userGit) config(ctx context.Context, key string) (string, error) {
	out, err := g.quiet().run(ctx, "config", "--get", key)
	var ge *gitError
	if errors.As(err, &ge) && ge.code == 1 {
		return "", nil
	}
	return strings.TrimSuffix(out, "\n"), err
}

// remotes returns the names of the repository's remotes.
func (g *userGit) remotes(ctx context.Context) ([]string, error) {
	out, err := g.quiet().run(ctx, "remote")
	var ge *gitError
	if errors.As(err, &ge) {
		return nil, fault.New(fault.NotFound, "%s is not in a git repository", tty.Clean(g.dir)).Because(err).
			WithHint("change to the clone it was pushed from")
	}
	return strings.Fields(out), err
}

// remote returns the named remote, or the default remote of git for a push or a fetch.
func (g *userGit) remote(ctx context.Context, named string, push bool) (string, error) {
	all, err := g.remotes(ctx)
	if err != nil {
		return "", err
	}
	if named == "" {
		if named, err = g.usual(ctx, all, push); err != nil {
			return "", err
		}
	}
	if !slices.Contains(all, named) {
		f := fault.New(fault.NotFound, "remote %q not found in the repository", tty.Clean(named))
		if len(all) == 0 {
			return "", f.WithHint("add one: git remote add origin URL")
		}
		return "", f.WithHint("remotes: %s; add one with git remote add NAME URL", tty.Clean(strings.Join(all, ", ")))
	}
	return named, nil
}

// usual returns git's default remote.
func (g *userGit) usual(ctx context.Context, all []string, push bool) (string, error) {
	branch, err := g.quiet().run(ctx, "symbolic-ref", "-q", "--short", "HEAD")
	var ge *gitError
	if err != nil && !errors.As(err, &ge) {
		return "", err
	}
	of := "branch." + strings.TrimSuffix(branch, "\n") + "."
	keys := []string{of + "remote"}
	if push {
		keys = []string{of + "pushRemote", "remote.pushDefault", of + "remote"}
	}
	for _, key := range keys {
		if v, err := g.config(ctx, key); err != nil || v != "" && v != "." {
			return v, err
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return "origin", nil
}
