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
	stdin  io.Reader  // nil: nothing; one that never blocks: a file or what is in memory
	stdout io.Writer  // nil: what it prints is given back
	most   int64      // bytes of output; 0 is maxOutput
	files  []*os.File // inherited, from descriptor 3 on
	memory uint64     // bytes that it may allocate; 0 is no limit of ours
	cpu    uint64     // seconds of processor time; 0 is no limit of ours
}

// name is the command of git's, behind settings.
func (c call) name() string {
	args := c.args
	for len(args) > 2 && args[0] == "-c" {
		args = args[2:]
	}
	return args[0]
}

// maxOutput bounds the output of a call that says nothing else.
const maxOutput = 64 << 20

// GitError is a failed git command. It is the cause of errors of this package.
type GitError struct {
	Command string // the command of git's
	Code    int    // its exit code; -1 where a signal ended it
	Stderr  string // the beginning of what it said, without control bytes
}

// Error returns the message of git.
func (e *GitError) Error() string {
	if e.Stderr == "" {
		return "git " + e.Command + " failed: exit code " + strconv.Itoa(e.Code)
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

// errTooMuch is why a git that prints too much is killed.
var errTooMuch = fault.New(fault.Invalid, "the output exceeds its limit")

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
		_, _ = io.Copy(pw, c.stdin) // what cannot be written has no reader, who says why
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
