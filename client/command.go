package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Cmd is a command in a sandbox, prepared or running. It is used like exec.Cmd of os/exec, and like it cannot be
// reused after Run, Output, CombinedOutput or Start. The differences:
//
//   - After it has exited, its changes are in a snapshot: see Exit.
//   - A command that is not found or not executable is an *ExitError of Wait with
//     code 127 or 126, since only the sandbox can find out.
//   - It survives a restart of the daemon: the client attaches again.
type Cmd struct {
	// Args is the command, a path or a name to look up in the sandbox's PATH, and its arguments.
	Args []string
	// Env is added to the environment of the sandbox, as KEY=VALUE.
	Env []string
	// Dir is the absolute working directory inside; "" is the start directory of its repository, or the user's home,
	// or /.
	Dir string
	// Stdin is read to its end, even if the command does not read all of it; nil is /dev/null.
	Stdin io.Reader
	// Stdout and Stderr receive the output, from one goroutine; nil discards it.
	Stdout, Stderr io.Writer
	// TTY allocates a terminal of that size. All output is then on Stdout.
	TTY *wire.Size
	// Timeout stops the command: SIGTERM, then SIGKILL. 0 means no timeout.
	Timeout time.Duration
	// Label is the message of the command's snapshot; "" uses the command line.
	Label string
	// Capture says when automatic snapshots are taken while the command runs. The zero value takes them as for a
	// supervised command, once it has run for ten seconds; those with memory are refused.
	Capture wire.Capture
	// WaitDelay is the time between SIGTERM, which is sent when the context ends, and SIGKILL; 0 means 2 s.
	WaitDelay time.Duration

	// Exit is the result, set by Wait. Exit.Snapshot is the snapshot after the command, or the old head if it changed
	// nothing.
	Exit *wire.Exit

	sandbox *Sandbox
	ctx     context.Context // stops the command when done
	life    context.Context // ctx without its cancellation
	begun   chan struct{}   // closed when it runs, or has exited
	started wire.Started    // final once begun is closed
	ended   chan struct{}   // closed when it has exited; exit and err are then final
	exit    wire.Exit
	err     error
	signals chan string
	ours    []io.Closer // the client's ends of pipes; closed when the command has exited
}

// ExitError is a command that exited with a code other than 0.
type ExitError struct {
	wire.Exit
	// Stderr is the end of the command's stderr. Only Output sets it.
	Stderr []byte
}

func (e *ExitError) Error() string {
	switch {
	case e.Message != "":
		return e.Message
	case e.TimedOut:
		return "timed out"
	case e.Signal != "":
		return "signal: " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

const (
	killAfter = 2 * time.Second
	// tailSize is the maximum size of ExitError.Stderr, in bytes.
	tailSize = 32 << 10
	// goneAfter is how long a killed command may take to exit.
	goneAfter = 10 * time.Second
)

// Command prepares a command. When ctx ends first, the command is sent SIGTERM, and SIGKILL after WaitDelay; Wait
// then returns the error of ctx.
func (s *Sandbox) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Args: append([]string{name}, args...), sandbox: s, ctx: ctx, life: context.WithoutCancel(ctx)}
}

// Shell prepares a command line for sh.
func (s *Sandbox) Shell(ctx context.Context, line string) *Cmd {
	return s.Command(ctx, "/bin/sh", "-c", line)
}

// Start starts the command and returns once it runs or has exited. If it succeeds, the caller must call Wait.
func (c *Cmd) Start() error {
	if c.ended != nil {
		return &Error{Kind: KindInvalid, Message: "the command was already started"}
	}
	c.begun, c.ended, c.signals = make(chan struct{}), make(chan struct{}), make(chan string, 1)
	if err := c.ctx.Err(); err != nil {
		close(c.ended)
		c.closePipes()
		return unavailable(err)
	}
	// Signals stop the command, so the connection must outlive ctx.
	ctx, cancel := context.WithCancel(c.life)
	var once sync.Once
	begin := func(st wire.Started) { once.Do(func() { c.started = st; close(c.begun) }) }
	go func() {
		defer cancel()
		req := wire.ExecRequest{Cmd: c.Args, Env: c.Env, Dir: c.Dir, Stdin: c.Stdin != nil,
			TimeoutMS: milliseconds(c.Timeout), Label: c.Label, TTY: c.TTY != nil, Size: c.TTY, Capture: c.Capture}
		c.exit, c.err = c.sandbox.c.Exec(ctx, c.sandbox.name, req,
			Streams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Signals: c.signals, Started: begin})
		c.closePipes()
		close(c.ended)
		begin(wire.Started{})
	}()
	go c.endWithContext(cancel)
	<-c.begun
	select {
	case <-c.ended:
		if c.err != nil {
			return c.err
		}
	default:
	}
	return nil
}

func milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return max(1, d.Milliseconds())
}

// endWithContext stops the command when its context ends. It returns when the command exits.
func (c *Cmd) endWithContext(abandon func()) {
	select {
	case <-c.ended:
		return
	case <-c.ctx.Done():
	}
	delay := c.WaitDelay
	if delay == 0 {
		delay = killAfter
	}
	for _, step := range []struct {
		signal string
		wait   time.Duration
	}{{"TERM", delay}, {"KILL", goneAfter}} {
		select {
		case c.signals <- step.signal:
		case <-c.ended:
			return
		case <-time.After(step.wait):
		}
		select {
		case <-c.ended:
			return
		case <-time.After(step.wait):
		}
	}
	abandon()
}

// Wait waits for a started command to exit. A code other than 0 is an *ExitError. The caller must have read all
// output from pipes first.
func (c *Cmd) Wait() error {
	if c.ended == nil {
		return &Error{Kind: KindInvalid, Message: "the command was not started"}
	}
	<-c.ended
	if c.err != nil {
		if err := c.ctx.Err(); err != nil {
			return unavailable(err)
		}
		return c.err
	}
	c.Exit = &c.exit
	if err := c.ctx.Err(); err != nil && c.exit.Code != 0 {
		return unavailable(err)
	}
	if c.exit.Code != 0 {
		return &ExitError{Exit: c.exit}
	}
	return nil
}

// Run starts the command and waits for it to exit.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its stdout. Unless Stderr is set, an *ExitError holds the end of its stderr.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, &Error{Kind: KindInvalid, Message: "Stdout is already set"}
	}
	var out bytes.Buffer
	c.Stdout = &out
	var end *tail
	if c.Stderr == nil {
		end = &tail{}
		c.Stderr = end
	}
	err := c.Run()
	var exit *ExitError
	if end != nil && errors.As(err, &exit) {
		exit.Stderr = end.b
	}
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns its stdout and stderr, in the order of their arrival.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, &Error{Kind: KindInvalid, Message: "Stdout or Stderr is already set"}
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// StdinPipe returns a pipe to the command's stdin. The caller closes it; it is also closed when the command exits.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.Stdin != nil || c.ended != nil {
		return nil, &Error{Kind: KindInvalid, Message: "Stdin is already set, or the command was started"}
	}
	r, w := io.Pipe()
	c.Stdin = r
	c.ours = append(c.ours, r)
	return w, nil
}

// StdoutPipe returns a pipe from the command's stdout, which ends when the command exits. The command blocks while
// the pipe is not read, and so does Wait.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stdout, "Stdout") }

// StderrPipe is StdoutPipe for stderr. Both arrive on one stream, so the caller must read two pipes concurrently to
// avoid a deadlock.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stderr, "Stderr") }

func (c *Cmd) outputPipe(w *io.Writer, name string) (io.ReadCloser, error) {
	if *w != nil || c.ended != nil {
		return nil, &Error{Kind: KindInvalid, Message: name + " is already set, or the command was started"}
	}
	pr, pw := io.Pipe()
	*w = pw
	c.ours = append(c.ours, pw)
	return pr, nil
}

func (c *Cmd) closePipes() {
	for _, p := range c.ours {
		_ = p.Close() // of a pipe: never fails
	}
}

// Signal sends a signal by name ("INT", "TERM", "KILL") to the command's process group. It waits until the command
// runs or has exited.
func (c *Cmd) Signal(name string) error {
	if c.ended == nil {
		return &Error{Kind: KindInvalid, Message: "the command was not started"}
	}
	select {
	case <-c.ended:
		return &Error{Kind: KindNotFound, Message: "the command has exited"}
	default:
	}
	select {
	case c.signals <- name:
		return nil
	case <-c.ended:
		return &Error{Kind: KindNotFound, Message: "the command has exited"}
	}
}

// ID returns the command's ID and the PID of its process inside; "" and 0 before Start, and if it could not be
// started.
func (c *Cmd) ID() (exec string, pid int) {
	if c.ended == nil {
		return "", 0
	}
	<-c.begun
	return c.started.Exec, c.started.PID
}

// tail keeps the last bytes written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b) - tailSize; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}
