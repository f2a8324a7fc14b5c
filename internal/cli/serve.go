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
		Use: "serve [flags]", Short: "Run the daemon in the foreground", GroupID: groupStore,
		Long: `Run the daemon in the foreground, until SIGINT or SIGTERM. There is no need to:
the first command starts one, which ends when it has been idle with nothing live.
Commands that run in sandboxes outlive the daemon, and the next one finds them.

With --http the API is served on TCP as well, for programs and other machines.
Whoever comes there needs a token ("coppice token create"). On any address but
loopback it needs TLS, or a proxy in front that speaks it. A certificate that is
renewed is read again within seconds. Requests that name the daemon otherwise than
localhost, its address, or a --allow-host are refused, and so are those of other
sites' pages.

The daemon limits its own memory, to a quarter of what its control group or the host
gives unless --memory says otherwise. Requests that need much, as diffs of large trees
do, wait for each other, and fail after 10 seconds (kind unavailable). One sandbox or
token never takes more than half of what they share.`,
		Example: `  coppice serve
  coppice serve --http 127.0.0.1:8080
  coppice serve --http :8443 --tls-cert cert.pem --tls-key key.pem --allow-host box.example.com
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
	f.DurationVar(&idle, "idle", 0, "end after `TIME` with nothing to do and nothing live; 0 is never")
	f.StringVar(&memory, "memory", "", "soft limit of the daemon's own memory, `SIZE` as in 1GiB; GOMEMLIMIT sets it too")
	f.BoolVar(&stop, "stop", false, "end the daemon that serves the home instead, and wait for its end")
	f.StringVar(&tcp.Addr, "http", "", "serve the API on TCP too, at `ADDR`, as in 127.0.0.1:8080; port 0 is any")
	f.StringVar(&tcp.TLSCert, "tls-cert", "", "speak TLS there, with the certificate in `FILE` (PEM)")
	f.StringVar(&tcp.TLSKey, "tls-key", "", "the key of the certificate is in `FILE` (PEM)")
	f.BoolVar(&tcp.BehindProxy, "behind-proxy", false, "a proxy in front speaks TLS, and nobody can come past it")
	f.BoolVar(&tcp.NoAuth, "no-auth", false, "ask nobody for a token; on loopback alone")
	f.StringArrayVar(&tcp.AllowHosts, "allow-host", nil, "it is also called `NAME`; may be given again")
	f.StringVar(&tcp.Single, "single", "", "serve the operations of the sandbox `NAME` at /v1/ as well")
	f.IntVar(&readyFD, "ready-fd", 0, "tell descriptor `FD` when it serves")
	must(f.MarkHidden("ready-fd"))
	return cmd
}

// daemonMemory returns the soft limit of the daemon's memory: the flag, or else GOMEMLIMIT,
// which the runtime has already read; 0 without either.
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

// stopDaemon ends the home's daemon, if there is one, and prints its pid.
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

// endDaemon ends the daemon that s finds, waits for its end, and returns its pid; 0 if there is none.
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
		st.PID, listens, err = pid, false, nil // not yet, or no longer
	}
	if err != nil {
		return 0, err
	}
	if listens && st.PID != peer {
		return 0, fault.New(fault.Unsupported,
			"the daemon of %s calls itself process %d, which it is not here: it runs on another machine, or in another "+
				"container", s.Home, st.PID).
			WithHint("end it there: coppice serve --stop")
	}
	p, err := os.FindProcess(st.PID)
	if err == nil {
		err = p.Signal(syscall.SIGTERM)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, fault.Wrap(err, "stop the daemon (pid %d)", st.PID)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// It empties and releases its lock as the last thing, so that the next daemon can start; that
		// somebody has yet to reap it does not matter.
		pid, held := daemon.Holder(s.Home)
		if (!held || pid != st.PID) && !daemon.Locks(s.Home, st.PID) || p.Signal(syscall.Signal(0)) != nil {
			return st.PID, nil
		}
	}
	return 0, fault.New(fault.Timeout, "the daemon (pid %d) was told to stop, and has not", st.PID).
		WithHint("see %s", daemon.LogPath(s.Home))
}
