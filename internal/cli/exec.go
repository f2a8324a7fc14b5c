package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

const execCodes = `  n      the exit code of the command
  124    the command exceeded --timeout or the sandbox's time limit
  125    coppice failed; the message says why, and the hint what to do
  126    the command is not executable
  127    the command was not found
  128+n  the command was killed by signal n
  153    the command exceeded the sandbox's output limit`

func (a *app) exec() *cobra.Command {
	var (
		req         wire.ExecRequest
		capture     string
		interactive bool
		timeout     time.Duration
	)
	cmd := &cobra.Command{
		Use: "exec NAME [flags] [--] CMD...", Short: "Run a command in a sandbox", GroupID: groupRun,
		Long: `Run a command in a sandbox. Output is streamed, signals are forwarded, and
coppice exits with the command's exit code. If the command changed files, a
snapshot is taken, with the command line as its message. Coppice flags must
precede CMD.

While a command runs for more than ten seconds, automatic snapshots are taken as
with "coppice run". With --capture quiet=200ms,max=2s they begin after max;
--capture off takes none while the command runs.

Stdin is not forwarded without -i. The command outlives the daemon; this program
attaches again to the next one. It also outlives this program if that is killed
(or receives SIGINT or SIGTERM three times within a second each): its stdin is
closed (-i), its terminal is hung up (-t). A signal that arrives while the
sandbox is still starting cancels the start.

On --timeout, SIGTERM is sent to the command's process group. When the command
has exited, or after two seconds, its session, its process group and all their
descendants are killed. Processes that have left all of these, as daemons do
(setsid and a parent that exits), continue to run; "coppice stop" kills them.

With --json, the result is one line of JSON on stderr.`,
		Example: `  coppice exec box -- apt-get install -y nginx
  coppice exec box -it -- bash
  tar -c src | coppice exec box -i -w /work -- tar -x`,
		Annotations:       map[string]string{exits: execCodes, ownCodes: "yes"},
		ValidArgsFunction: a.names(1),
		Args: func(cmd *cobra.Command, args []string) (err error) {
			req.Cmd, err = commandAfterName(cmd, args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Stdin = interactive
			if timeout < 0 {
				return ours(usagef("invalid --timeout %s: must be positive", timeout))
			}
			req.TimeoutMS = timeout.Milliseconds()
			if timeout > 0 && req.TimeoutMS == 0 {
				req.TimeoutMS = 1
			}
			if req.TTY && interactive && !tty.IsTerminal(a.stdin) {
				return ours(&usageError{msg: "cannot allocate a terminal: stdin is not a terminal", hint: "drop -t"})
			}
			var err error
			if req.Capture, err = parseCapture(capture); err != nil {
				return ours(err)
			}
			if req.Env, err = a.env(req.Env, args[0]); err != nil {
				return ours(err)
			}
			if req.TTY {
				req.Env = a.termEnv(req.Env)
			}
			return a.foreground(cmd.Context(), args[0], req)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&interactive, "interactive", "i", false, "forward stdin")
	f.BoolVarP(&req.TTY, "tty", "t", false, "allocate a terminal")
	f.StringArrayVarP(&req.Env, "env", "e", nil, "set an environment variable, `K=V`; K alone passes the current value")
	f.StringVarP(&req.Dir, "workdir", "w", "",
		"working directory `DIR` (default: that of its repository, or the user's home)")
	f.DurationVar(&timeout, "timeout", 0, "kill the command after `TIME`, as in 90s or 5m")
	f.StringVarP(&req.Label, "message", "m", "", "message `TEXT` of the snapshot (default: the command line)")
	captureFlag(f, &capture)
	return cmd
}

// commandAfterName returns the command of exec. Flags may precede and follow the name. The first other word, or "--",
// starts the command, so that its flags are not parsed as flags of Coppice.
func commandAfterName(cmd *cobra.Command, args []string) ([]string, error) {
	if len(args) == 0 || cmd.ArgsLenAtDash() == 0 {
		return nil, &usageError{msg: "exec requires the name of a sandbox", hint: "as in: coppice exec NAME -- ls -l"}
	}
	f := cmd.Flags()
	if err := f.Parse(args[1:]); err != nil {
		return nil, cmd.FlagErrorFunc()(cmd, err)
	}
	switch rest := f.Args(); {
	case f.Changed("help"):
		return nil, pflag.ErrHelp
	case len(rest) == 0:
		return nil, &usageError{msg: "exec requires a command",
			hint: "as in: coppice exec " + args[0] + " -- ls -l; for a terminal: coppice shell " + args[0]}
	default:
		return rest, nil
	}
}

// loginShell starts the user's shell; the sandbox sets SHELL.
const loginShell = `for s in "$SHELL" /bin/bash /bin/sh; do [ -x "$s" ] && exec "$s" -l; done; exec sh -l`

func (a *app) shell() *cobra.Command {
	var message, dir, capture string
	var env []string
	cmd := &cobra.Command{
		Use: "shell NAME [flags]", Short: "Open a terminal in a sandbox", GroupID: groupRun,
		Long: `Open a terminal in a sandbox with the user's login shell. If stdin is not a
terminal, the shell reads it as a script. If anything changed, a snapshot is
taken when the shell exits.

After the first ten seconds, automatic snapshots are taken as with "coppice
run": when nothing has changed for 200 ms, and at most two seconds after the
first change. With --capture quiet=200ms,max=2s they begin after max; --capture
off takes none while the shell runs.`,
		Example: `  coppice shell box
  coppice shell box < setup.sh`,
		Annotations:       map[string]string{exits: execCodes, ownCodes: "yes"},
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			when, err := parseCapture(capture)
			if err != nil {
				return ours(err)
			}
			env, err := a.env(env, args[0])
			if err != nil {
				return ours(err)
			}
			terminal := a.terminal()
			if terminal {
				env = a.termEnv(env)
			}
			return a.foreground(cmd.Context(), args[0],
				wire.ExecRequest{Cmd: []string{"/bin/sh", "-c", loginShell}, Label: message, Dir: dir, Env: env,
					Stdin: true, TTY: terminal, Capture: when})
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&env, "env", "e", nil, "set an environment variable, `K=V`; K alone passes the current value")
	f.StringVarP(&dir, "workdir", "w", "",
		"working directory `DIR` (default: that of its repository, or the user's home)")
	f.StringVarP(&message, "message", "m", "shell", "message `TEXT` of the snapshot")
	captureFlag(f, &capture)
	return cmd
}

// captureFlag adds the flag that says when automatic snapshots are taken.
func captureFlag(f *pflag.FlagSet, when *string) {
	f.StringVar(when, "capture", "", "when to take snapshots: `quiet=200ms,max=2s`, or off")
}

// terminal reports whether both stdin and stdout are terminals.
func (a *app) terminal() bool { return tty.IsTerminal(a.stdin) && tty.IsTerminal(a.stdout) }

// ours gives an error of Coppice the exit code 125, which distinguishes it from the exit code of a command.
func ours(err error) error { return &exitCode{code: exitOurs, err: err} }

// foreground runs a command with the CLI's streams, and exits with its exit code.
func (a *app) foreground(ctx context.Context, name string, req wire.ExecRequest) error {
	exit, err := a.stream(ctx, name, req, nil)
	if err != nil {
		return err
	}
	return a.ended(exit)
}

// ended prints the messages about a command's exit, and returns its exit code as an error.
func (a *app) ended(exit wire.Exit) error {
	if exit.Message != "" {
		a.say("%s", tty.Clean(exit.Message))
	}
	switch {
	case a.json:
		_ = json.NewEncoder(a.stderr).Encode(exit) // stdout is the command's
	case exit.Changed && tty.IsTerminal(a.stderr):
		a.note("coppice: snapshot %s, %s changed", tty.Clean(exit.Snapshot), tty.Count(exit.Paths, "path"))
	}
	if exit.Code == 0 {
		return nil
	}
	return &exitCode{code: exit.Code}
}

// tooEarly is the cause of the cancellation if a signal ends the CLI while the sandbox starts: no command exists yet
// that could receive the signal.
type tooEarly struct{ signal int }

func (e *tooEarly) Error() string { return "signal " + strconv.Itoa(e.signal) }

// errDetached means that the user detached from a supervised command, which continues.
var errDetached = errors.New("detached")

// stream connects the CLI's streams to a command until it exits. It detaches from a supervised command when the
// detach keys are typed or the terminal is gone, and returns errDetached.
func (a *app) stream(ctx context.Context, name string, req wire.ExecRequest, keys []byte) (wire.Exit, error) {
	c, err := a.client()
	if err != nil {
		return wire.Exit{}, ours(err)
	}
	kept := req.Attach != "" || req.Run != nil
	raw := req.TTY && req.Stdin && tty.IsTerminal(a.stdin)
	eol := ""
	if raw {
		eol = "\r" // in raw mode, a newline does not return the cursor to the first column
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	st := client.Streams{Stdout: a.stdout, Stderr: a.stderr, Lost: func(err error) {
		if err != nil {
			a.note("%scoppice: lost the daemon; attaching again%s", eol, eol)
		}
	}, Dropped: func(n int64) { a.say("%s of output were lost: no client was attached%s", tty.Bytes(n), eol) },
		Restarted: func() {
			a.screenReset(req.TTY)
			a.note("%scoppice: the sandbox was rewound or the command exited; restarting the command%s", eol, eol)
		}}
	switch {
	case req.Stdin && kept:
		st.Stdin = &detachable{in: a.stdin, keys: keys, terminal: raw, leave: func() { leave(errDetached) }}
	case req.Stdin:
		st.Stdin = a.stdin
	}
	if (kept || req.TTY) && tty.IsTerminal(a.stdout) {
		left := error(nil)
		if kept {
			left = errDetached
		}
		st.Stdout = &window{out: a.stdout, leave: func() { leave(left) }}
	}
	if req.TTY {
		screen := a.stdout
		if !tty.IsTerminal(screen) {
			screen = a.stdin
		}
		resize, stopResize := watchSize(screen) // before the size is read, so that no change is missed
		defer stopResize()
		st.Resize = resize
		if cols, rows, ok := tty.Size(screen); ok {
			req.Size = &wire.Size{Cols: uint16(cols), Rows: uint16(rows)}
		}
	}
	var began atomic.Bool
	st.Started = func(wire.Started) { began.Store(true) }
	early := func(signal int) { leave(&tooEarly{signal}) }
	signals, stopSignals := watchSignals(func() { leave(nil) }, early, began.Load, kept, req.ReadOnly)
	defer stopSignals()
	st.Signals = signals

	restore := func() {}
	if raw {
		if restore, err = tty.Raw(a.stdin); err != nil {
			return wire.Exit{}, ours(err)
		}
	}
	exit, err := c.Exec(ctx, name, req, st)
	if kept && err != nil {
		a.screenReset(raw)
	}
	restore()
	var cancelled *tooEarly
	switch {
	case err != nil && errors.As(context.Cause(ctx), &cancelled):
		return exit, &exitCode{code: 128 + cancelled.signal, err: fault.New(fault.Cancelled,
			"detached before the command started").
			WithHint("check whether it started: coppice status %s", name)}
	case err != nil && ctx.Err() != nil && kept:
		return exit, errDetached
	case err != nil && ctx.Err() != nil:
		return exit, ours(fault.New(fault.Cancelled, "detached; the command may still be running").
			WithHint("check it with: coppice status %s; stop it with: coppice stop %s", name, name))
	case err != nil:
		return exit, ours(err)
	}
	return exit, nil
}

// termEnv adds the variables that describe this terminal to a command.
func (a *app) termEnv(env []string) []string {
	for _, k := range []string{"TERM", "COLORTERM"} {
		if v := a.getenv(k); v != "" {
			env = append([]string{k + "=" + v}, env...)
		}
	}
	return env
}

// screenReset leaves the alternate screen and shows the cursor, after the CLI detached from a program or it was
// killed.
func (a *app) screenReset(terminal bool) {
	if terminal {
		fmt.Fprint(a.stdout, "\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1006l\x1b[0m\r\n")
	}
}
