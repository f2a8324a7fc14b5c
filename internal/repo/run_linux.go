package repo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// call is one run of git.
type call struct {
	args   []string
	env    []string
	dir    string     // working directory; "" is /
	stdin  io.Reader  // nil: empty; must never block: a file or a buffer
	stdout io.Writer  // nil: the output is returned
	most   int64      // maximum size of the output in bytes; 0 is maxOutput
	files  []*os.File // inherited, from descriptor 3
	memory uint64     // maximum memory in bytes; 0 sets no limit
	cpu    uint64     // maximum processor time in seconds; 0 sets no limit
}

// name returns the git command, without settings.
func (c call) name() string {
	args := c.args
	for len(args) > 2 && args[0] == "-c" {
		args = args[2:]
	}
	return args[0]
}

// maxOutput is the default limit for the output of a call, in bytes.
const maxOutput = 64 << 20

// GitError is a failed git command. It is the cause of errors of this package.
type GitError struct {
	Command string // the git command
	Code    int    // its exit code; -1 if a signal killed it
	Stderr  string // beginning of its stderr, without control bytes
}

// Error returns the message of git.
func (e *GitError) Error() string {
	if e.Stderr == "" {
		return "git " + e.Command + " failed: exit code " + strconv.Itoa(e.Code)
	}
	return "git " + e.Command + ": " + e.Stderr
}

// run runs git and waits for it to exit. When ctx ends, or the output exceeds its limit, its whole process group is
// killed. A non-zero exit code is a *GitError, returned together with the output.
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
		return nil, fault.Wrap(out.err, "read the output of git %s", c.name())
	case context.Cause(ctx) != nil:
		return nil, fault.Wrap(context.Cause(ctx), "run git %s", c.name())
	case errors.As(err, &exit):
		return kept.Bytes(), &GitError{Command: c.name(), Code: exit.ExitCode(), Stderr: printable(said.String())}
	case err != nil:
		return nil, fault.Wrap(err, "run git %s", c.name())
	}
	return kept.Bytes(), nil
}

// errTooMuch is the cause when a git process is killed because it prints too much.
var errTooMuch = fault.New(fault.Invalid, "the output exceeds its limit")

// command returns the command, in its own process group.
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

// startAndFeed starts the command, limits it, and only then sends its input: a git process that reads a sandbox's
// data must have its limits before the first byte. The caller calls fed when the command has exited.
func (g *Git) startAndFeed(cmd *exec.Cmd, c call) (fed func(), err error) {
	if c.stdin == nil {
		return func() {}, g.start(cmd, c)
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, fault.Wrap(err, "create a pipe")
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
		_, _ = io.Copy(pw, c.stdin) // the reader reports its own error
		pw.Close()
	}()
	return func() { pw.Close(); <-done }, nil
}

func (g *Git) start(cmd *exec.Cmd, c call) error {
	if err := cmd.Start(); err != nil {
		return fault.Wrap(err, "start git %s", c.name())
	}
	for _, l := range []struct {
		what int
		n    uint64
	}{{unix.RLIMIT_DATA, c.memory}, {unix.RLIMIT_CPU, c.cpu}, {unix.RLIMIT_CORE, 0}} {
		if l.n == 0 && l.what != unix.RLIMIT_CORE {
			continue
		}
		if err := unix.Prlimit(cmd.Process.Pid, l.what, &unix.Rlimit{Cur: l.n, Max: l.n}, nil); err != nil &&
			!errors.Is(err, unix.ESRCH) {
			_ = cmd.Cancel()
			_ = cmd.Wait()
			return fault.Wrap(err, "limit git %s", c.name())
		}
	}
	return nil
}

// bounded passes on a limited number of bytes, then fails.
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

// head keeps the first bytes written.
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
