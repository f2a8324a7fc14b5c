package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) run() *cobra.Command {
	var given runFlags
	cmd := &cobra.Command{
		Use: "run [flags] [--] [CMD...]", Short: "Run an agent in a sandbox with automatic snapshots", GroupID: groupBox,
		Long: `Create a sandbox and run a command in it, attached to this terminal, with
automatic snapshots. Coppice exits with the command's exit code. Coppice flags
must precede CMD.

A snapshot is taken when nothing has changed for 200 ms, and at most two seconds
after the first change; --capture sets both. --capture off takes one when the
command exits. Snapshots that other commands ask for are taken as well.

The command is supervised: it continues to run when you detach or the terminal
closes; "coppice attach" attaches again, "coppice stop" stops it. After "coppice
rewind" it is restarted, unless --restart no is given; --restart always also
restarts it on exit.

--agent starts a known agent with Coppice's MCP server, so that it can use the
history of its sandbox; CMD has the agent's arguments. A new sandbox then has
--self rewind, and unless --net or --policy is given, the preset of the agent's
model. If this shell has the key of the model, as in ANTHROPIC_API_KEY, or if a
secret has the name anthropic, openai or google, the sandbox is granted it: the
agent has a placeholder instead of the key. See docs/secrets.md.

--in runs it in an existing sandbox. With --create it creates that sandbox if it
does not exist, as the entry point of a container does. See "coppice create" for
the flags of a new one.`,
		Example: `  coppice run --agent claude --name fix
  coppice run --agent codex -- exec 'make the tests pass'
  coppice run --preset anthropic --preset npm -- claude
  coppice run --from host-copy --user root --rm -- bash
  coppice run --detach --name web --restart always -- python3 -m http.server
  coppice attach web`,
		Annotations: map[string]string{exits: execCodes, ownCodes: "yes"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && given.agent == "" {
				return &usageError{msg: "run requires a command", hint: "as in: coppice run -- bash"}
			}
			if len(args) > 1 && args[1] == "--" {
				return &usageError{
					msg:  fmt.Sprintf("unexpected argument before \"--\": %q", args[0]),
					hint: "name a new sandbox with --name NAME, or an existing one with --in NAME",
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := detachKeys(given.keys)
			if err != nil {
				return ours(err)
			}
			name, req, err := a.runRequest(cmd, &given, args)
			if err != nil {
				return ours(err)
			}
			return a.supervise(cmd, name, req, given.detach, seq)
		},
	}
	given.add(a, cmd)
	must(cmd.RegisterFlagCompletionFunc("in", a.names(0)))
	return cmd
}

// runFlags has the flags of run.
type runFlags struct {
	mk          making
	req         wire.RunRequest
	in          string // an existing sandbox; "" creates a new one
	create      bool   // create it if it does not exist
	agent       string // of agents; "" runs a command
	capture     string
	memory      string
	keys        string
	interactive bool
	detach      bool
}

// add adds the flags to the command.
func (r *runFlags) add(a *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&r.mk.req.Name, "name", "", "`NAME` of the new sandbox (default: generated)")
	f.StringVar(&r.in, "in", "", "run in the existing sandbox `NAME`")
	f.BoolVar(&r.create, "create", false, "with --in: create the sandbox if it does not exist")
	f.StringVar(&r.agent, "agent", "", "run the `AGENT` with access to its own history: "+strings.Join(agentNames(), ", "))
	f.BoolVar(&r.req.Remove, "rm", false, "remove the sandbox and its history when the command exits")
	f.BoolVarP(&r.detach, "detach", "d", false, "detach: print the sandbox's name and return")
	f.StringVar(&r.req.Restart, "restart", wire.RestartOnRewind,
		"when to restart the command: no, on-rewind, always")
	captureFlag(f, &r.capture)
	f.StringVar(&r.memory, "capture-memory", "",
		"also capture memory: `every=5m,on-mark`, or one of both; in tier gvisor")
	f.BoolVarP(&r.interactive, "interactive", "i", false, "forward stdin (default at a terminal)")
	f.BoolVarP(&r.req.TTY, "tty", "t", false, "allocate a terminal (default at a terminal)")
	f.StringVarP(&r.req.Dir, "workdir", "w", "",
		"working directory `DIR` (default: that of its repository, or the user's home)")
	f.StringVar(&r.keys, "detach-keys", defaultDetach, "`KEYS` that detach")
	r.mk.flags(a, cmd)
	must(cmd.RegisterFlagCompletionFunc("agent", fixed(agentNames()...)))
	must(cmd.RegisterFlagCompletionFunc("restart", fixed(wire.RestartNo, wire.RestartOnRewind, wire.RestartAlways)))
}

// notWithIn fails if a flag configures a new sandbox, but --in names an existing one.
func (r *runFlags) notWithIn(cmd *cobra.Command) error {
	switch {
	case r.create && (r.in == "" || cmd.Flags().Changed("name")):
		return &usageError{
			msg: "--create requires --in, which names the sandbox", hint: "as in: coppice run --in agent --create -- CMD",
		}
	case r.in == "" || r.create:
		return nil
	}
	for _, name := range []string{
		"name", "from", "user", "driver", "tier", "net", "limit", "policy", "allow", "preset", "ask",
		"no-policy-files", "self", "keep-recent", "keep-for", "repo", "at", "dirty", "no-repo", "label",
		"same-identity", "grant", "grants-later",
	} {
		if cmd.Flags().Changed(name) {
			return usagef("--in %s and --%s are mutually exclusive", r.in, name)
		}
	}
	return nil
}

// missing reports whether no sandbox has the name.
func (a *app) missing(ctx context.Context, name string) (bool, error) {
	c, err := a.client()
	if err != nil {
		return false, err
	}
	if _, err = c.Status(ctx, name); client.IsKind(err, client.KindNotFound) {
		return true, nil
	}
	return false, err
}

// runRequest returns the command to run, and the name of its sandbox, which it creates unless it exists.
func (a *app) runRequest(cmd *cobra.Command, given *runFlags, args []string) (
	name string, req wire.RunRequest, err error,
) {
	if err := given.notWithIn(cmd); err != nil {
		return "", req, err
	}
	given.req.Cmd = args
	if given.agent != "" {
		if err := given.applyAgent(cmd, args); err != nil {
			return "", req, err
		}
	}
	req = given.req
	if req.Capture, err = parseCapture(given.capture); err != nil {
		return "", req, err
	}
	if err := captureMemory(&req.Capture, given.memory); err != nil {
		return "", req, err
	}
	req.TTY = req.TTY || !given.detach && a.terminal()
	req.Stdin = given.interactive || req.TTY
	name = given.in
	isNew := name == ""
	if given.create {
		if isNew, err = a.missing(cmd.Context(), name); err != nil {
			return "", req, err
		}
		given.mk.req.Name = name
	}
	if isNew {
		keys := given.agentGrants()
		sb, err := a.make(cmd, &given.mk)
		if err != nil {
			return "", req, err
		}
		name = sb.Name
		a.grantKeys(cmd.Context(), name, keys)
	} else if err := a.prepareIn(cmd.Context(), given, name, &req); err != nil {
		return "", req, err
	}
	if req.TTY {
		req.Env = a.termEnv(req.Env)
	}
	if cols, rows, ok := tty.Size(a.stdin); ok && req.TTY {
		req.Size = &wire.Size{Cols: uint16(cols), Rows: uint16(rows)}
	}
	return name, req, nil
}

// prepareIn completes the request for a command in an existing sandbox.
func (a *app) prepareIn(ctx context.Context, given *runFlags, sandbox string, req *wire.RunRequest) error {
	if given.agent != "" {
		if err := a.hasHistory(ctx, sandbox, given.agent); err != nil {
			return err
		}
	}
	env, err := a.env(given.mk.req.Env, sandbox)
	req.Env = append(req.Env, env...)
	return err
}

// parseCapture parses "off" or "quiet=200ms,max=2s".
func parseCapture(s string) (c wire.Capture, err error) {
	if s == "" {
		return c, nil
	}
	if s == "off" {
		return wire.Capture{Off: true}, nil
	}
	for word := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(word, "=")
		d, err := time.ParseDuration(value)
		switch {
		case key != "quiet" && key != "max":
			return c, &usageError{
				msg:  fmt.Sprintf("invalid --capture: unknown key %q", key),
				hint: "as in: --capture quiet=200ms,max=2s, or --capture off",
			}
		case err != nil || d < time.Millisecond:
			return c, &usageError{
				msg:  fmt.Sprintf("invalid --capture: %s=%q is not a duration", key, value),
				hint: "as in: --capture quiet=200ms,max=2s",
			}
		case key == "quiet":
			c.QuietMS = d.Milliseconds()
		default:
			c.MaxMS = d.Milliseconds()
		}
	}
	return c, nil
}

// captureMemory parses "every=5m", "on-mark" or both.
func captureMemory(c *wire.Capture, s string) error {
	if s == "" {
		return nil
	}
	for word := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(word, "=")
		d, err := time.ParseDuration(value)
		switch {
		case word == "on-mark":
			c.MemoryOnMark = true
		case key == "every" && err == nil && d >= time.Second:
			c.MemoryEveryMS = d.Milliseconds()
		default:
			return &usageError{
				msg:  fmt.Sprintf("invalid --capture-memory %q: must be every=TIME of at least 1s, or on-mark", word),
				hint: "as in: --capture-memory every=5m, or --capture-memory on-mark",
			}
		}
	}
	return nil
}

// supervise starts the command, and attaches to it unless detach is set.
func (a *app) supervise(cmd *cobra.Command, name string, req wire.RunRequest, detach bool, keys []byte) error {
	if !detach {
		a.note("coppice: in sandbox %s", tty.Clean(name))
		exec := wire.ExecRequest{Run: &req, Stdin: req.Stdin, TTY: req.TTY, Size: req.Size}
		return a.attached(cmd, name, exec, keys)
	}
	c, err := a.client()
	if err != nil {
		return ours(err)
	}
	run, err := c.Run(cmd.Context(), name, req)
	if err != nil {
		return ours(err)
	}
	if run.Exit != nil {
		return a.ended(*run.Exit)
	}
	return a.print(run, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, tty.Clean(name))
		return err
	})
}

// attached connects the CLI's streams to a command that belongs to the sandbox, until it exits or the user detaches.
func (a *app) attached(cmd *cobra.Command, name string, req wire.ExecRequest, keys []byte) error {
	exit, err := a.stream(cmd.Context(), name, req, keys)
	if errors.Is(err, errDetached) {
		to := name
		if req.Attach != "" && req.Attach != wire.AttachRun {
			to += " " + req.Attach
		}
		a.note("coppice: detached; attach again: coppice attach %s; stop it: coppice stop %s",
			tty.Clean(to), tty.Clean(name))
		return nil
	}
	if err != nil {
		return err
	}
	return a.ended(exit)
}

// replayed is how much earlier output is shown on attach, in bytes.
const replayed = 16 << 10

// attachable returns the command that args select: the supervised command of a sandbox, or a detached one.
func attachable(ctx context.Context, c *client.Client, args []string) (of wire.ExecInfo, err error) {
	if len(args) == 1 {
		st, err := c.Status(ctx, args[0])
		of.ID = wire.AttachRun
		if run := st.Run; run != nil {
			of.TTY, of.Stdin = run.TTY, run.Stdin
		}
		return of, err
	}
	all, err := c.Execs(ctx, args[0])
	if err != nil {
		return of, err
	}
	var free []string
	for _, x := range all {
		switch {
		case x.Kept && x.ID == args[1]:
			return x, nil
		case x.Kept:
			free = append(free, x.ID)
		case x.ID == args[1]:
			return of, fault.New(fault.Conflict,
				"cannot attach to command %s of sandbox %s: it is not supervised", x.ID, args[0]).
				WithHint("to start a supervised command: coppice run --in %s -- CMD", args[0])
		}
	}
	hint := "no command there can be attached to"
	if free != nil {
		hint = "attachable commands: " + strings.Join(free, ", ")
	}
	return of, fault.New(fault.NotFound,
		"cannot attach to command %s of sandbox %s: not running or not supervised", args[1], args[0]).
		WithHint("%s", hint)
}

func (a *app) attach() *cobra.Command {
	var (
		keys     string
		readOnly bool
	)
	cmd := &cobra.Command{
		Use: "attach NAME [EXEC] [flags]", Short: "Attach to the running command of a sandbox", GroupID: groupRun,
		Long: `Attach to the command that "coppice run" started in a sandbox: show its recent
output and forward input. Several clients can attach; the terminal takes the
size of the most recent one. Attach exits with the command's exit code. With
--read-only, neither input nor signals are forwarded: SIGINT and SIGTERM end
attach, and the command continues.

EXEC is the ID of another command that can be attached to: one that continues
from memory, as a shell does after a rewind, which prints its ID, or in a fork;
or one that was started detached over the API.`,
		Example: `  coppice attach web
  coppice attach fix --read-only
  coppice attach box x1f0c2d3b4`,
		Annotations:       map[string]string{exits: execCodes, ownCodes: "yes"},
		Args:              between(1, 2, "the name of a sandbox, and a command's id"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := detachKeys(keys)
			if err != nil {
				return ours(err)
			}
			c, err := a.client()
			if err != nil {
				return ours(err)
			}
			of, err := attachable(cmd.Context(), c, args)
			if err != nil {
				return ours(err)
			}
			req := wire.ExecRequest{Attach: of.ID, Offset: -replayed, ReadOnly: readOnly, TTY: of.TTY && a.terminal()}
			// A read-only client also needs input, for the detach keys.
			req.Stdin = of.Stdin && (!readOnly || req.TTY)
			return a.attached(cmd, args[0], req, seq)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&readOnly, "read-only", false, "read-only: do not forward input")
	f.StringVar(&keys, "detach-keys", defaultDetach, "`KEYS` that detach")
	return cmd
}
