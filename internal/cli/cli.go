// Package cli is the command line. It has one file per command, which converts flags to options, makes one call of
// the client, and prints the answer as text or JSON. Results go to stdout, everything else to stderr. Only
// cmd/coppice imports it. It imports client, client/wire, fault, tty, daemon, mcpapi, pure packages that need no
// daemon, and secret/client with program, since it starts the broker of secrets.
package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/daemon"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/inside"
	"github.com/coppice-dev/coppice/internal/tty"
)

// app is the state of one run of the program.
type app struct {
	name           string // argv[0]
	stdin          *os.File
	stdout, stderr *os.File
	out            *bufio.Writer // writes to stdout; flushed at the end
	getenv         func(string) string
	now            func() time.Time
	version        string

	json, quiet bool
	homeFlag    string
	cl          *client.Client
}

// Main runs the program with argv and returns its exit code.
func Main(argv []string) int {
	if len(argv) == 0 {
		argv = []string{"coppice"}
	}
	if len(argv) == 2 && argv[1] == "--version" {
		// No command tree is built: this is the minimum time of any start.
		fmt.Fprintln(os.Stdout, "coppice "+buildVersion())
		return exitOK
	}
	a := &app{name: argv[0], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		out: bufio.NewWriterSize(os.Stdout, 32<<10), getenv: os.Getenv, now: time.Now, version: buildVersion()}
	return a.main(argv[1:])
}

func (a *app) main(args []string) int {
	ctx := context.Background()
	root := a.root()
	if socket := a.socketInside(args); socket != "" {
		root = a.insideRoot(inside.New(socket))
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if a.cl != nil {
		a.cl.Close()
	}
	if ferr := a.out.Flush(); ferr != nil && err == nil {
		err = fault.New(fault.KindOf(ferr), "write the result").Because(ferr)
	}
	return a.finish(cmd, err)
}

// exitCode ends the program with a code, after its error, if any, was printed.
type exitCode struct {
	code int
	err  error
}

func (e *exitCode) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return fmt.Sprintf("exit code %d", e.code)
}

func (e *exitCode) Unwrap() error { return e.err }

// usageError is an error in the command line.
type usageError struct {
	msg  string
	hint string
}

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageError{msg: fmt.Sprintf(format, args...)} }

// finish prints err and returns the exit code.
func (a *app) finish(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var (
		code int
		ec   *exitCode
		ue   *usageError
		de   *daemon.ExitError
	)
	switch {
	case errors.As(err, &ec):
		code, err = ec.code, ec.err
	case errors.As(err, &de):
		return de.Code
	default:
		code = exitCodeOf(fault.Kind(wireError(err).Kind))
	}
	// Cobra rejects an invalid flag before the command's own code runs.
	if ec == nil && cmd != nil && cmd.Annotations[ownCodes] != "" {
		code = exitOurs
	}
	if err == nil {
		return code
	}
	we := wireError(err)
	if errors.As(err, &ue) && we.Hint == "" {
		we.Hint = "see: " + cmd.CommandPath() + " --help"
	}
	if a.json {
		_ = json.NewEncoder(a.stderr).Encode(map[string]any{"error": we}) // stderr is the last resort
		return code
	}
	a.say("%s", tty.Clean(we.Message))
	if we.Hint != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", tty.Clean(we.Hint))
	}
	return code
}

// wireError converts any error to its wire form.
func wireError(err error) wire.Error {
	var (
		ce *client.Error
		ue *usageError
		fe *fault.Error
	)
	switch {
	case errors.As(err, &fe):
		return wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(fe)}
	case errors.As(err, &ce):
		return wire.Error{Kind: ce.Kind, Message: err.Error(), Hint: ce.Hint}
	case errors.As(err, &ue):
		return wire.Error{Kind: string(fault.Invalid), Message: ue.msg, Hint: ue.hint}
	}
	return wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}
}

// say prints a line to stderr, even with --quiet.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "coppice: "+format+"\n", args...)
}

// note prints a line to stderr, except with --quiet or --json.
func (a *app) note(format string, args ...any) {
	if !a.quiet && !a.json {
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

// warn prints warnings, which may come from inside a sandbox.
func (a *app) warn(lines []string) {
	for _, l := range lines {
		if !a.quiet {
			fmt.Fprintf(a.stderr, "coppice: warning: %s\n", tty.Clean(l))
		}
	}
}

// print writes v as JSON with --json, and otherwise calls text.
func (a *app) print(v any, text func(w io.Writer) error) error {
	if a.json {
		enc := json.NewEncoder(a.out)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	return text(a.out)
}

// palette enables colours if stdout is a terminal that supports them and NO_COLOR is not set.
func (a *app) palette() tty.Palette {
	return tty.Palette{On: a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && tty.IsTerminal(a.stdout)}
}

// home returns the absolute path of the home directory of Coppice.
func (a *app) home() (string, error) {
	if a.homeFlag == "" {
		home, err := client.Home(a.getenv)
		var e *client.Error
		if errors.As(err, &e) {
			return "", &usageError{msg: e.Message, hint: e.Hint}
		}
		return home, err
	}
	abs, err := filepath.Abs(a.homeFlag)
	return abs, fault.Wrap(err, "find the home %s", a.homeFlag)
}

// starter returns how to reach and start the daemon.
func (a *app) starter() (daemon.Starter, error) {
	home, err := a.home()
	if err != nil {
		return daemon.Starter{}, err
	}
	s := daemon.Starter{Home: home, Socket: a.getenv("COPPICE_SOCKET"), Args: []string{"serve"}, Name: a.name,
		Idle: a.getenv("COPPICE_IDLE")}
	if s.Idle == "" {
		s.Idle = daemon.DefaultIdle.String()
	}
	// The daemon outlives this shell, so it inherits only the variables that it may need.
	for _, k := range []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "GOMEMLIMIT",
		"COPPICE_EXEC_PATH",
		"GORACE", "GOCOVERDIR", "GOTRACEBACK", "GOMAXPROCS", "GODEBUG"} {
		if v := a.getenv(k); v != "" {
			s.Env = append(s.Env, k+"="+v)
		}
	}
	return s, nil
}

// client returns the client of this run; it starts the daemon if needed.
func (a *app) client() (*client.Client, error) {
	if a.cl == nil {
		opt, remote, err := client.Remote(a.getenv)
		if err != nil {
			return nil, err
		}
		if remote {
			if a.homeFlag != "" {
				return nil, usagef("--home and COPPICE_HOST are mutually exclusive")
			}
			a.cl = client.New(opt)
			return a.cl, nil
		}
		s, err := a.starter()
		if err != nil {
			return nil, err
		}
		start := func(context.Context) {}
		if s.Socket == "" {
			start = a.withBroker(s.Home)
		}
		a.cl = client.New(client.Options{Dial: func(ctx context.Context) (net.Conn, error) {
			start(ctx)
			return s.Connect(ctx)
		}})
	}
	return a.cl, nil
}

// interruptible returns a context that Ctrl-C cancels.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt)
}

// progress shows the progress of a long operation on stderr. done removes it.
func (a *app) progress() (show func(wire.Progress), done func()) {
	bar := tty.NewBar(nil)
	if !a.quiet && !a.json {
		bar = tty.NewBar(a.stderr)
	}
	return func(p wire.Progress) {
		if p.Note != "" {
			bar.Clear()
			a.warn([]string{p.Note})
			return
		}
		bar.Set(p.Phase, p.Done, p.Total, p.Unit == "bytes")
	}, bar.Clear
}
