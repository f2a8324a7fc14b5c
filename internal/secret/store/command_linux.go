package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Bounds on a command.
const (
	commandTime = 10 * time.Second
	maxOutput   = 64 << 10
	maxSaid     = 200 // bytes of standard error in an error
)

// Command reads the output of programs.
type Command struct {
	readOnly
	env  []string
	now  func() time.Time
	most time.Duration
}

// NewCommand returns the store of commands, which run in the environment env, and are found in its PATH. now is the
// clock by which values expire.
func NewCommand(env []string, now func() time.Time) *Command {
	how := "change it with the program that keeps it"
	return &Command{readOnly{"the store of another program", how}, env, now, commandTime}
}

// Get implements Store for the command ref.Argv. It runs without a shell and without input, in its own process group,
// which is killed after 10 s. Its output is the value, without the newline at its end, or a JSON object that has a
// member value or is what credential_process of AWS prints: see parseOutput. It is run again by each Get.
func (c *Command) Get(ctx context.Context, ref Ref) (Value, error) {
	if len(ref.Argv) == 0 {
		return Value{}, fault.New(fault.Invalid, "the command is empty")
	}
	name := filepath.Base(ref.Argv[0]) // arguments may be secret
	program, err := c.find(ref.Argv[0])
	if err != nil {
		return Value{}, err
	}
	out, err := c.run(ctx, program, ref.Argv)
	defer wipe(out)
	if err != nil {
		return Value{}, err
	}
	v, err := parseOutput(out, ref.First, c.now())
	return v, fault.Wrap(err, "read the output of %s", name)
}

// Check implements Store. It returns nil.
func (c *Command) Check(context.Context) error { return nil }

// find returns the path of a program: an absolute path, or a name in the PATH of the commands' environment.
func (c *Command) find(program string) (string, error) {
	if filepath.IsAbs(program) {
		return program, nil
	}
	if !strings.Contains(program, "/") {
		path := ""
		for _, kv := range c.env {
			if rest, ok := strings.CutPrefix(kv, "PATH="); ok {
				path = rest
			}
		}
		for _, dir := range filepath.SplitList(path) {
			at := filepath.Join(dir, program)
			st, err := os.Stat(at)
			if filepath.IsAbs(dir) && err == nil && st.Mode().IsRegular() && unix.Access(at, unix.X_OK) == nil {
				return at, nil
			}
		}
		return "", fault.New(fault.NotFound, "program %.80q not found", program).
			WithHint("install it, or name its path: command:/PATH/TO/PROGRAM")
	}
	return "", fault.New(fault.Invalid, "invalid program %.200q: must be an absolute path, or a name in PATH", program)
}

// run returns what a program prints, which the caller wipes also after an error.
func (c *Command) run(ctx context.Context, program string, argv []string) ([]byte, error) {
	name := filepath.Base(argv[0])
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(c.most, func() {
		cancel(fault.New(fault.Timeout, "it did not end within %s", c.most))
	})
	defer timer.Stop()
	cmd := exec.CommandContext(ctx, program)
	cmd.Args, cmd.Env, cmd.Dir = argv, c.env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // of a process that left the group with the pipe
	out := &output{b: make([]byte, 0, maxOutput), full: func() {
		cancel(fault.New(fault.TooLarge, "it printed more than %d KiB", maxOutput>>10))
	}}
	said := &output{b: make([]byte, 0, 4<<10), full: func() {}}
	cmd.Stdout, cmd.Stderr = out, said
	if len(cmd.Env) == 0 {
		cmd.Env = []string{} // nil is the environment of this process
	}
	err := cmd.Run()
	defer wipe(said.b)
	var exit *exec.ExitError
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return out.b, fault.Wrap(cause, "run %s", name)
	case errors.As(err, &exit):
		e := fault.New(fault.Unavailable, "%s failed: %s", name, exit).
			WithHint("run it yourself to see why: it may be locked, or you may have to log in")
		if line := firstLine(said.b, out.b); line != "" {
			e.Message += ": " + line
		}
		return out.b, e
	case errors.Is(err, exec.ErrWaitDelay):
		_ = cmd.Cancel() // the process that it left in its group, which keeps the group's number in use
		return out.b, fault.New(fault.Unavailable, "%s left a process that keeps its output open", name)
	case err != nil:
		return out.b, fault.Wrap(fault.OfHost(err), "run %s", name)
	}
	return out.b, nil
}

// output keeps what fits into its slice, and calls full once more is written.
type output struct {
	b    []byte
	full func()
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n := min(len(p), cap(o.b)-len(o.b))
	o.b = append(o.b, p[:n]...)
	if n < len(p) {
		o.full()
	}
	return len(p), nil
}

// firstLine returns the first line of said that has a visible character, without control characters, and without words
// of 4 bytes or more that secret contains: a program may log what it prints.
func firstLine(said, secret []byte) string {
	for line := range bytes.Lines(said) {
		clean := strings.Map(func(r rune) rune {
			if r == '\t' {
				return ' '
			}
			if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\ufffd' {
				return -1
			}
			return r
		}, string(line))
		words := strings.Fields(clean)
		for i, w := range words {
			if len(w) >= 4 && bytes.Contains(secret, []byte(w)) || leaks(w, secret) {
				words[i] = hidden
			}
		}
		if len(words) > 0 {
			line := strings.Join(words, " ")
			return strings.ToValidUTF8(line[:min(len(line), maxSaid)], "")
		}
	}
	return ""
}

// leaks reports whether word contains a word of secret of 4 bytes or more, as in token=VALUE.
func leaks(word string, secret []byte) bool {
	for _, s := range bytes.FieldsFunc(secret, func(r rune) bool { return strings.ContainsRune(" \t\r\n\"{},:", r) }) {
		if len(s) >= 4 && strings.Contains(word, string(s)) {
			return true
		}
	}
	return false
}
