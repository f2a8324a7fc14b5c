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

// Cmd is a command of a sandbox that is being prepared or runs, used as exec.Cmd
// of os/exec is. It cannot be used again after Run, Output or CombinedOutput, or
// after Start. It differs in this:
//
//   - What it changed is a snapshot when it has ended: see Exit.
//   - A command that cannot be found or executed is an *ExitError of Wait, with code
//     127 or 126: only the sandbox can tell.
//   - It survives the daemon: when that ends, the client attaches again.
type Cmd struct {
	// Args is the command: a path or a name that the sandbox's PATH leads to, and
	// its arguments.
	Args []string
	// Env is added to the environment of the sandbox, KEY=VALUE.
	Env []string
	// Dir is an absolute path inside; "" is where its repository's work began, else the user's home, else /.
	Dir string
	// Stdin is read until its end, also when the command does not want it all; nil
	// is /dev/null.
	Stdin io.Reader
	// Stdout and Stderr get the output, from one goroutine; nil throws it away.
	Stdout, Stderr io.Writer
	// TTY gives it a terminal of that size. All output is then on Stdout.
	TTY *wire.Size
	// Timeout ends it: SIGTERM, and then SIGKILL. 0 is none.
	Timeout time.Duration
	// Label is the message of its snapshot; "" is its command line.
	Label string
	// WaitDelay is what it has between the end of the context, which sends SIGTERM,
	// and SIGKILL; 0 is 2 s.
	WaitDelay time.Duration

	// Exit is how it ended, set by Wait. Exit.Snapshot is the snapshot after it, and
	// the old head when it changed nothing.
	Exit *wire.Exit

	sandbox *Sandbox
	ctx     context.Context // ends the command
	life    context.Context // does not
	begun   chan struct{}   // closed when it runs, or has ended
	started wire.Started    // final when begun is closed
	ended   chan struct{}   // closed when it has ended; exit and err are then final
	exit    wire.Exit
	err     error
	signals chan string
	ours    []io.Closer // our ends of pipes, closed when it has ended
}

// ExitError is a command that ended with a code other than 0.
type ExitError struct {
	wire.Exit
	// Stderr is the end of what it printed there, of Output alone.
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
	// tailSize is how much of stderr an ExitError has, in bytes.
	tailSize = 32 << 10
	// goneAfter is how long a killed command may take to be told of as ended.
	goneAfter = 10 * time.Second
)

// Command prepares a command. When ctx ends before it, it is sent SIGTERM, and
// SIGKILL after WaitDelay; Wait then gives the error of ctx.
func (s *Sandbox) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Args: append([]string{name}, args...), sandbox: s, ctx: ctx, life: context.WithoutCancel(ctx)}
}

// Shell prepares a command line of sh.
func (s *Sandbox) Shell(ctx context.Context, line string) *Cmd {
	return s.Command(ctx, "/bin/sh", "-c", line)
}

// Start starts the command and returns when it runs, or when it has ended. Wait
// must follow unless it fails.
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
	// The command is ended by signals, and what becomes of it is waited for.
	ctx, cancel := context.WithCancel(c.life)
	var once sync.Once
	begin := func(st wire.Started) { once.Do(func() { c.started = st; close(c.begun) }) }
	go func() {
		defer cancel()
		req := wire.ExecRequest{Cmd: c.Args, Env: c.Env, Dir: c.Dir, Stdin: c.Stdin != nil,
			TimeoutMS: milliseconds(c.Timeout), Label: c.Label, TTY: c.TTY != nil, Size: c.TTY}
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

// endWithContext ends the command when its context does. It ends with the command.
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

// Wait waits for the end of a command that was started. A code other than 0 is an
// *ExitError. What comes from a pipe must have been read before.
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

// Run starts the command and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and gives its stdout. Unless Stderr is set, an *ExitError
// has the end of its stderr.
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

// CombinedOutput runs the command and gives its stdout and stderr, in the order in
// which they came.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, &Error{Kind: KindInvalid, Message: "Stdout or Stderr is already set"}
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// StdinPipe gives what the command reads. Who writes closes it; the end of the
// command closes it too.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.Stdin != nil || c.ended != nil {
		return nil, &Error{Kind: KindInvalid, Message: "Stdin is already set, or the command was started"}
	}
	r, w := io.Pipe()
	c.Stdin = r
	c.ours = append(c.ours, r)
	return w, nil
}

// StdoutPipe gives what the command prints. It is at its end when the command is;
// the command waits for who reads slowly, and Wait for who does not read at all.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stdout, "Stdout") }

// StderrPipe is StdoutPipe for stderr. Stdout and stderr come one after the other:
// who reads one of two pipes to its end before the other may wait for ever.
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

// Signal sends a signal by name ("INT", "TERM", "KILL") to the command's process
// group. It waits until the command can be reached, or has ended.
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

// ID gives the command's id and its process's number inside; "" and 0 before Start
// and when it could not be started.
func (c *Cmd) ID() (exec string, pid int) {
	if c.ended == nil {
		return "", 0
	}
	<-c.begun
	return c.started.Exec, c.started.PID
}

// tail keeps the last bytes that were written.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b) - tailSize; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}
