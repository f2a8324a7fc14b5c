package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/daemon"
	"github.com/coppice-dev/coppice/internal/fault"
)

func (a *app) serve() *cobra.Command {
	var (
		idle    time.Duration
		readyFD int
		stop    bool
	)
	cmd := &cobra.Command{
		Use: "serve [flags]", Short: "Run the daemon in the foreground", GroupID: groupStore,
		Long: `Run the daemon in the foreground, until SIGINT or SIGTERM. There is no need to:
the first command starts one, which ends when it has been idle with nothing live.
Commands that run in sandboxes outlive the daemon, and the next one finds them.`,
		Example: `  coppice serve
  coppice serve --stop`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			home, err := a.home()
			if err != nil {
				return err
			}
			if stop {
				return a.stopDaemon(cmd.Context())
			}
			opt := daemon.Options{Home: home, Version: a.version, Idle: idle, Stderr: a.stderr}
			opt.RealUID, opt.RealGID = daemon.RealIDs(a.getenv("COPPICE_REAL_IDS"))
			if readyFD > 0 {
				opt.Ready = os.NewFile(uintptr(readyFD), "ready")
			}
			return daemon.Serve(cmd.Context(), opt)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&idle, "idle", 0, "end after `TIME` with nothing to do and nothing live; 0 is never")
	f.BoolVar(&stop, "stop", false, "end the daemon that serves the home instead, and wait for its end")
	f.IntVar(&readyFD, "ready-fd", 0, "tell descriptor `FD` when it serves")
	must(f.MarkHidden("ready-fd"))
	return cmd
}

// stopDaemon ends the home's daemon, if there is one.
func (a *app) stopDaemon(ctx context.Context) error {
	s, err := a.starter()
	if err != nil {
		return err
	}
	c := client.New(client.Options{Dial: s.Dial})
	defer c.Close()
	st, err := c.Daemon(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		a.note("no daemon serves %s", s.Home)
		return a.print(map[string]any{"stopped": 0}, func(io.Writer) error { return nil })
	case err != nil:
		return err
	}
	p, err := os.FindProcess(st.PID)
	if err == nil {
		err = p.Signal(syscall.SIGTERM)
	}
	if err != nil {
		return fault.Wrap(err, "stop the daemon (pid %d)", st.PID)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// It empties its lock as the last thing; that somebody has yet to reap
		// it does not matter.
		if pid, held := daemon.Holder(s.Home); !held || pid != st.PID || p.Signal(syscall.Signal(0)) != nil {
			return a.print(map[string]any{"stopped": st.PID}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, st.PID)
				return err
			})
		}
	}
	return fault.New(fault.Timeout, "the daemon (pid %d) was told to stop, and has not", st.PID).WithHint("see %s", daemon.LogPath(s.Home))
}
