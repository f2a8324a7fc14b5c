package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/daemon"
	"github.com/coppice-dev/coppice/internal/fault"
)

func (a *app) serve() *cobra.Command {
	var (
		opt     daemon.Options
		readyFD int
		stop    bool
	)
	all := settings(&opt)
	cmd := &cobra.Command{
		Use: "serve [flags]", Short: "Run the daemon in the foreground", GroupID: groupOthers,
		Long: `Run the daemon in the foreground until SIGINT or SIGTERM. This is rarely
necessary: the first command starts a daemon, which exits when it is idle.
Commands in sandboxes outlive the daemon; the next one adopts them.

--http also serves the API on TCP. Clients need a token ("coppice token
create"), and TLS on any address but loopback. Requests for other host names and
from other sites are rejected; see docs/api-security.md.

The daemon limits its own memory to a quarter of the host's, or of its cgroup's;
--memory sets another limit. See docs/LIMITS.md.

In a container, the environment can configure the daemon instead. A flag
overrides its variable. A daemon that a command starts reads only the variables
listed in "coppice help". See docs/guides/daemon.md.

` + variablesHelp(),
		Example: `  coppice serve
  coppice serve --http 127.0.0.1:8080
  coppice serve --http :8443 --tls-cert cert.pem --tls-key key.pem
  COPPICE_HTTP=:8443 COPPICE_TOKEN_FILE=/run/secrets/token coppice serve
  coppice serve --stop`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if stop {
				return a.stopDaemon(cmd.Context())
			}
			err := a.daemonOptions(&opt, all, cmd.Flags().Changed)
			if err == nil {
				if readyFD > 0 {
					opt.Ready = os.NewFile(uintptr(readyFD), "ready")
				}
				err = daemon.Serve(cmd.Context(), opt)
			}
			return a.served(opt.Log, err)
		},
	}
	f := cmd.Flags()
	addSettings(f, all)
	f.DurationVar(&opt.Idle, "idle", 0, "exit after `TIME` without work or live sandboxes; 0 is never")
	f.BoolVar(&stop, "stop", false, "stop the daemon that serves the home, and wait until it exits")
	must(cmd.RegisterFlagCompletionFunc("single", a.names(0)))
	must(cmd.RegisterFlagCompletionFunc("driver", fixed("auto", "overlay", "copy", "btrfs")))
	must(cmd.RegisterFlagCompletionFunc("log-format", fixed(daemon.LogText, daemon.LogJSON)))
	must(cmd.RegisterFlagCompletionFunc("log-level", fixed("debug", "info", "warn", "error")))
	f.IntVar(&readyFD, "ready-fd", 0, "write to descriptor `FD` when ready")
	must(f.MarkHidden("ready-fd"))
	return cmd
}

// daemonOptions completes the options of a daemon, which have the values of flags, from the environment.
func (a *app) daemonOptions(opt *daemon.Options, all []setting, given func(flag string) bool) (err error) {
	if err := readSettings(all, given, a.getenv); err != nil {
		return err
	}
	if opt.Home, err = a.home(); err != nil {
		return err
	}
	opt.Version, opt.Stderr, opt.Warnings = a.version, a.stderr, unknownVariables(all, os.Environ())
	opt.UserHome, opt.UserConfig, opt.UserPath = a.getenv("HOME"), a.getenv("XDG_CONFIG_HOME"), a.getenv("PATH")
	opt.ExecPath = a.getenv("COPPICE_EXEC_PATH")
	opt.RealUID, opt.RealGID = daemon.RealIDs(a.getenv("COPPICE_REAL_IDS"))
	if opt.Memory == 0 && a.getenv("GOMEMLIMIT") != "" {
		opt.Memory = debug.SetMemoryLimit(-1) // the runtime has parsed it
	}
	return nil
}

// served returns the result of a daemon. With a log in JSON, an error is its last line.
func (a *app) served(log daemon.Log, err error) error {
	var reported *daemon.ExitError
	if err == nil || log.Format != daemon.LogJSON || errors.As(err, &reported) {
		return err
	}
	we := wireError(err)
	log.Logger(a.stderr).Error("failed", "err", we.Message, "kind", we.Kind, "hint", we.Hint)
	return &exitCode{code: exitCodeOf(fault.Kind(we.Kind))}
}

// stopDaemon stops the daemon of the home, if one runs, and prints its PID.
func (a *app) stopDaemon(ctx context.Context) error {
	s, err := a.starter()
	if err != nil {
		return err
	}
	pid, err := endDaemon(ctx, s)
	if err != nil {
		return err
	}
	if pid == 0 {
		a.note("no daemon serves %s", s.Home)
	}
	return a.print(map[string]any{"stopped": pid}, func(w io.Writer) error {
		if pid == 0 {
			return nil
		}
		_, err := fmt.Fprintln(w, pid)
		return err
	})
}

// endDaemon stops the daemon that s finds, waits until it exits, and returns its PID; 0 if none runs.
func endDaemon(ctx context.Context, s daemon.Starter) (int, error) {
	c := client.New(client.Options{Dial: s.Dial})
	defer c.Close()
	peer, listens := 0, false
	if conn, err := s.Dial(ctx); err == nil {
		peer, listens = daemon.Peer(conn), true
		conn.Close()
	}
	st, err := c.Daemon(ctx)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		pid, locked := daemon.Locker(s.Home)
		if !locked {
			return 0, nil
		}
		st.PID, listens, err = pid, false, nil // it does not listen yet, or no longer
	}
	if err != nil {
		return 0, err
	}
	if listens && st.PID != peer {
		return 0, fault.New(fault.Unsupported,
			"the daemon of %s reports PID %d, which is not its PID here: it runs on another machine, or in another "+
				"container", s.Home, st.PID).
			WithHint("stop it there: coppice serve --stop")
	}
	p, err := os.FindProcess(st.PID)
	if err == nil {
		err = p.Signal(syscall.SIGTERM)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, fault.Wrap(err, "stop the daemon (pid %d)", st.PID)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// The daemon empties and releases its lock last, so that the next daemon can start then, even if its parent
		// has not reaped it yet.
		pid, held := daemon.Holder(s.Home)
		if (!held || pid != st.PID) && !daemon.Locks(s.Home, st.PID) || p.Signal(syscall.Signal(0)) != nil {
			return st.PID, nil
		}
	}
	return 0, fault.New(fault.Timeout, "the daemon (pid %d) did not stop", st.PID).
		WithHint("see %s", daemon.LogPath(s.Home))
}
