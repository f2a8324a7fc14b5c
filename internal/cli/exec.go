package cli

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

const execCodes = `  n      the command's own exit code
  124    it was ended by --timeout
  125    coppice failed; the message says why, and the hint what to do
  126    it is not executable
  127    it was not found
  128+n  signal n ended it`

func (a *app) exec() *cobra.Command {
	var (
		req         wire.ExecRequest
		interactive bool
		timeout     time.Duration
	)
	cmd := &cobra.Command{
		Use: "exec NAME [flags] -- CMD...", Short: "Run a command in a sandbox", GroupID: groupRun,
		Long: `Run a command in a sandbox. Its output is passed on as it comes, signals reach
it, and its exit code is ours. Afterwards, when it has changed anything, there is
a snapshot with the command line as its message.

Without -i it reads nothing. The command outlives the daemon, to which this
program then attaches again. It also outlives this program, when that is killed
(or sent SIGINT or SIGTERM three times within a second each): its stdin then ends
(-i), its terminal is hung up (-t).

When --timeout is over, the command's process group is sent SIGTERM; when the
command has ended, and after two seconds at the latest, its session, its process
group and all descendants of these are killed. What has left all of them before,
as daemons do (setsid, and a parent that ends), runs on: "coppice stop" ends it.

With --json the result is one line of JSON on stderr.`,
		Example: `  coppice exec box -- apt-get install -y nginx
  coppice exec box -it -- bash
  tar -c src | coppice exec box -i -w /work -- tar -x`,
		Annotations:       map[string]string{exits: execCodes, ownCodes: "yes"},
		ValidArgsFunction: a.names(1),
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case len(args) == 0 || dash == 0:
				return &usageError{msg: "exec needs the name of a sandbox", hint: "as in: coppice exec NAME -- ls -l"}
			case len(args) == 1:
				return &usageError{msg: "exec needs a command", hint: "as in: coppice exec " + args[0] + " -- ls -l; for a terminal: coppice shell " + args[0]}
			case dash > 1:
				return usagef("exec takes one name before \"--\": %q", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Cmd = args[1:]
			req.Stdin = interactive
			if timeout < 0 {
				return ours(usagef("--timeout %s: a time is wanted", timeout))
			}
			req.TimeoutMS = timeout.Milliseconds()
			if timeout > 0 && req.TimeoutMS == 0 {
				req.TimeoutMS = 1
			}
			if req.TTY && interactive && !tty.IsTerminal(a.stdin) {
				return ours(&usageError{msg: "-i and -t are given, and stdin is no terminal", hint: "leave -t out"})
			}
			var err error
			if req.Env, err = a.env(req.Env); err != nil {
				return ours(err)
			}
			return a.run(cmd.Context(), args[0], req)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&interactive, "interactive", "i", false, "pass stdin on")
	f.BoolVarP(&req.TTY, "tty", "t", false, "give it a terminal")
	f.StringArrayVarP(&req.Env, "env", "e", nil, "set a variable: `K=V`, or K to take it from here")
	f.StringVarP(&req.Dir, "workdir", "w", "", "run in `DIR` (default: the user's home)")
	f.DurationVar(&timeout, "timeout", 0, "end it after `TIME`, as in 90s or 5m")
	f.StringVarP(&req.Label, "message", "m", "", "`LABEL` of the snapshot (default: the command line)")
	return cmd
}

// loginShell starts the user's shell; SHELL is set by the sandbox.
const loginShell = `for s in "$SHELL" /bin/bash /bin/sh; do [ -x "$s" ] && exec "$s" -l; done; exec sh -l`

func (a *app) shell() *cobra.Command {
	var label, dir string
	var env []string
	cmd := &cobra.Command{
		Use: "shell NAME [flags]", Short: "Open a terminal in a sandbox", GroupID: groupRun,
		Long: `Open a terminal in a sandbox, with the user's login shell. When stdin is no
terminal, the shell reads it as a script. Afterwards, when anything was changed,
there is a snapshot.`,
		Example: `  coppice shell box
  coppice shell box < setup.sh`,
		Annotations:       map[string]string{exits: execCodes, ownCodes: "yes"},
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			env, err := a.env(env)
			if err != nil {
				return ours(err)
			}
			return a.run(cmd.Context(), args[0], wire.ExecRequest{Cmd: []string{"/bin/sh", "-c", loginShell}, Label: label, Dir: dir, Env: env,
				Stdin: true, TTY: tty.IsTerminal(a.stdin) && tty.IsTerminal(a.stdout)})
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&env, "env", "e", nil, "set a variable: `K=V`, or K to take it from here")
	f.StringVarP(&dir, "workdir", "w", "", "begin in `DIR` (default: the user's home)")
	f.StringVarP(&label, "message", "m", "shell", "`LABEL` of the snapshot")
	return cmd
}

// ours gives an error of our own the exit code that no command has.
func ours(err error) error { return &exitCode{code: exitOurs, err: err} }

// run runs one command with this process's streams, and ends as it ends.
func (a *app) run(ctx context.Context, name string, req wire.ExecRequest) error {
	c, err := a.client()
	if err != nil {
		return ours(err)
	}
	raw := req.TTY && req.Stdin && tty.IsTerminal(a.stdin)
	eol := ""
	if raw {
		eol = "\r" // nothing else takes the cursor to the left then
	}
	st := client.Streams{Stdout: a.stdout, Stderr: a.stderr, Lost: func(err error) {
		if err != nil {
			a.note("%scoppice: the daemon went away: attaching again%s", eol, eol)
		}
	}, Dropped: func(n int64) { a.say("%s of output were lost: nobody read them%s", tty.Bytes(n), eol) }}
	if req.Stdin {
		st.Stdin = a.stdin
	}
	if req.TTY {
		for _, k := range []string{"TERM", "COLORTERM"} {
			if v := a.getenv(k); v != "" {
				req.Env = append([]string{k + "=" + v}, req.Env...)
			}
		}
		screen := a.stdout
		if !tty.IsTerminal(screen) {
			screen = a.stdin
		}
		resize, stopResize := watchSize(screen) // before its size is taken: no change is missed
		defer stopResize()
		st.Resize = resize
		if cols, rows, ok := tty.Size(screen); ok {
			req.Size = &wire.Size{Cols: uint16(cols), Rows: uint16(rows)}
		}
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	signals, stopSignals := watchSignals(leave)
	defer stopSignals()
	st.Signals = signals

	restore := func() {}
	if raw {
		if restore, err = tty.Raw(a.stdin); err != nil {
			return ours(err)
		}
	}
	exit, err := c.Exec(ctx, name, req, st)
	restore()
	if err != nil && ctx.Err() != nil {
		return ours(fault.New(fault.Cancelled, "left; the command may run on").
			WithHint("see it with: coppice status %s; end it with: coppice stop %s", name, name))
	}
	if err != nil {
		return ours(err)
	}
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
