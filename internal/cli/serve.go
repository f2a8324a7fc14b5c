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
	"github.com/coppice-dev/coppice/internal/policy"
)

func (a *app) serve() *cobra.Command {
	var (
		idle    time.Duration
		readyFD int
		stop    bool
		memory  string
		tcp     daemon.HTTP
	)
	cmd := &cobra.Command{
		Use: "serve [flags]", Short: "Run the daemon in the foreground", GroupID: groupDaemon,
		Long: `Run the daemon in the foreground until SIGINT or SIGTERM. This is rarely
necessary: the first command starts a daemon, which exits when it is idle.
Commands in sandboxes outlive the daemon; the next one adopts them.

--http also serves the API on TCP. Clients need a token ("coppice token
create"), and TLS on any address but loopback. Requests for other host names and
from other sites are rejected; see docs/api-security.md.

The daemon limits its own memory to a quarter of the host's, or of its cgroup's;
--memory sets another limit. See docs/LIMITS.md.`,
		Example: `  coppice serve
  coppice serve --http 127.0.0.1:8080
  coppice serve --http :8443 --tls-cert cert.pem --tls-key key.pem
  coppice serve --stop`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			home, err := a.home()
			if err != nil {
				return err
			}
			if stop {
				return a.stopDaemon(cmd.Context())
			}
			most, err := a.daemonMemory(memory)
			if err != nil {
				return err
			}
			opt := daemon.Options{Home: home, Version: a.version, Idle: idle, Memory: most, UserHome: a.getenv("HOME"),
				UserConfig: a.getenv("XDG_CONFIG_HOME"), UserPath: a.getenv("PATH"), ExecPath: a.getenv("COPPICE_EXEC_PATH"),
				Stderr: a.stderr, HTTP: tcp}
			opt.RealUID, opt.RealGID = daemon.RealIDs(a.getenv("COPPICE_REAL_IDS"))
			if readyFD > 0 {
				opt.Ready = os.NewFile(uintptr(readyFD), "ready")
			}
			return daemon.Serve(cmd.Context(), opt)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&idle, "idle", 0, "exit after `TIME` without work or live sandboxes; 0 is never")
	f.StringVar(&memory, "memory", "", "soft memory limit of the daemon, `SIZE` as in 1GiB; also set by GOMEMLIMIT")
	f.BoolVar(&stop, "stop", false, "stop the daemon that serves the home, and wait until it exits")
	f.StringVar(&tcp.Addr, "http", "",
		"also serve the API on TCP at `ADDR`, as in 127.0.0.1:8080; port 0 picks a free port")
	f.StringVar(&tcp.TLSCert, "tls-cert", "", "serve TLS with the certificate in `FILE` (PEM)")
	f.StringVar(&tcp.TLSKey, "tls-key", "", "private key of the certificate, in `FILE` (PEM)")
	f.BoolVar(&tcp.BehindProxy, "behind-proxy", false, "TLS is terminated by a trusted reverse proxy")
	f.BoolVar(&tcp.NoAuth, "no-auth", false, "disable authentication (loopback only)")
	f.StringArrayVar(&tcp.AllowHosts, "allow-host", nil, "accept `NAME` as Host header; repeatable")
	f.StringVar(&tcp.Single, "single", "", "also serve the operations of sandbox `NAME` at /v1/")
	must(cmd.RegisterFlagCompletionFunc("single", a.names(0)))
	f.IntVar(&readyFD, "ready-fd", 0, "write to descriptor `FD` when ready")
	must(f.MarkHidden("ready-fd"))
	return cmd
}

// daemonMemory returns the soft limit of the daemon's memory: the flag, or GOMEMLIMIT, which the runtime has already
// parsed; 0 without either.
func (a *app) daemonMemory(flag string) (int64, error) {
	switch {
	case flag != "":
		n, err := policy.ParseBytes(flag)
		return n, fault.Wrap(err, "--memory")
	case a.getenv("GOMEMLIMIT") != "":
		return debug.SetMemoryLimit(-1), nil
	}
	return 0, nil
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
