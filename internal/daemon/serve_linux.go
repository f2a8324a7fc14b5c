package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/ports"
	"github.com/coppice-dev/coppice/internal/program"
)

// backend is what the daemon needs of the engine beside the API.
type backend interface {
	httpapi.Sandboxes
	httpapi.Power
	httpapi.Commands
	httpapi.History
	httpapi.Moves
	httpapi.Feed
	httpapi.FileOpener
	httpapi.Network
	httpapi.PortDialer
	httpapi.Records
	httpapi.SignedLog
	httpapi.Repositories
	httpapi.Proposals
	httpapi.LayerTravel
	// Snapshots is Log without the drawing.
	Snapshots(ctx context.Context, name string) (wire.LogResult, error)
	// ShowSome is Show with at most that many changes.
	ShowSome(ctx context.Context, name, ref string, most int) (wire.ShowResult, error)
	// Sandbox finds a sandbox by name or id.
	Sandbox(ctx context.Context, name string) (wire.Sandbox, error)
	// Identify gives id and name of the sandbox that one of them names.
	Identify(ctx context.Context, nameOrID string) (id, name string, err error)
	httpapi.Answers
	// Busy reports whether a sandbox is live or work goes on in the background;
	// then the daemon does not stop by itself. It is called about once a second.
	Busy() bool
	// store is where tokens are kept.
	store() *meta.DB
	// Close ends background work and lets go of everything. Keepers run on.
	Close() error
}

// roles has the engine play all that the API asks for.
func roles(b backend) httpapi.Roles {
	return httpapi.Roles{
		Sandboxes:    b,
		Power:        b,
		Commands:     b,
		History:      b,
		Moves:        b,
		Feed:         b,
		FileOpener:   b,
		Network:      b,
		PortDialer:   b,
		Records:      b,
		SignedLog:    b,
		Repositories: b,
		Proposals:    b,
		LayerTravel:  b,
	}
}

// drain is how long requests may take to end when the daemon stops. The rest of
// limit.StopSeconds is for the engine's own work.
const drain = 3 * time.Second

// stopTime is the maximum time of a stop.
const stopTime = limit.StopSeconds * time.Second

// Serve serves a home until ctx ends, a signal (SIGINT, SIGTERM, SIGHUP) comes,
// or it has been idle for opt.Idle; running commands run on. For an ordinary
// user outside a user namespace of its own it runs itself again in one and
// waits.
func Serve(ctx context.Context, opt Options) error {
	err := serve(ctx, opt)
	if err != nil && opt.Ready != nil {
		tell(opt.Ready, err)
	}
	return err
}

func serve(ctx context.Context, opt Options) error {
	if err := inheritNothing(); err != nil {
		return err
	}
	if err := opt.HTTP.check(opt.Ready != nil); err != nil {
		return err
	}
	if opt.RealUID < 0 && os.Getuid() != 0 && opt.Ready == nil {
		if done, err := serveInNamespace(ctx); done {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	syscall.Umask(0o022) // not whatever the first caller had

	wait := time.Duration(0)
	if opt.Ready != nil {
		wait = startTimeout / 2
	}
	h, err := openHome(ctx, opt.Home, wait)
	if errors.Is(err, errServed) {
		tell(opt.Ready, nil)
		return nil
	}
	if err != nil {
		return err
	}
	hung := false
	defer func() {
		if !hung { // otherwise the exit of the process unlocks the home: hung work may still write
			h.Close()
		}
	}()

	out := opt.Stderr
	if opt.Ready != nil {
		log, err := h.openLog()
		if err != nil {
			return err
		}
		defer log.Close()
		out = log
	}
	log := slog.New(slog.NewTextHandler(newCleanLog(out), nil))

	mem, freely, err := limitMemory(opt.Memory, log)
	if err != nil {
		return err
	}
	defer freely()

	// Execs outlive their requests, and end (for us) with the daemon.
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	programs := program.New(filepath.Join(opt.Home, "programs"), opt.ExecPath)
	defer programs.Close() //nolint:errcheck // they were read
	lines := newLines(base, opt.Home, mem.gate, log)
	removeLeft(opt.Home, log) // first: the engine goes on with removals of sandboxes
	eng, inTime, err := openBy(ctx, stopTime, func() (backend, error) {
		return newEngine(ctx, engineConfig{Home: opt.Home, RealUID: opt.RealUID, RealGID: opt.RealGID, UserHome: opt.UserHome, UserConfig: opt.UserConfig, UserPath: opt.UserPath, Memory: mem.within, Log: log, Lines: lines, Programs: programs})
	})
	if hung = !inTime; hung || err != nil && ctx.Err() != nil {
		err = fault.New(fault.Unavailable, "stopped while recovering %s; the next start continues", opt.Home).Because(err)
	}
	if err != nil {
		return err
	}
	started := time.Now()
	tokens := newTokens(eng)
	tcp, err := openDoor(ctx, opt.HTTP)
	if err != nil {
		cancel(err)
		lines.close()
		return errors.Join(err, eng.Close())
	}
	defer tcp.close()
	in := newInside(tokens)
	// The engine is up: from here on its end is ours to see to.
	// Over the socket ports are connected to, and not shown. The door for browsers hands
	// over the hosts of previews, and says where it is (ServedAt).
	previews := ports.New(ports.Options{Engine: eng, Home: opt.Home, Allow: mayPreview, Proved: auth.Proved})
	defer previews.Close()
	api := httpapi.New(httpapi.Options{Roles: roles(swept{eng, lines}), Sockets: lines, MCP: mcpHandler(base, in, opt.Version, log), Tokens: tokens, Previews: previews, Answers: eng, Grants: tokens, Origins: opt.HTTP.AllowHosts, Single: opt.HTTP.Single, Admission: mem.gate, Base: base, Log: log, Status: func() wire.DaemonStatus {
		return wire.DaemonStatus{Version: opt.Version, PID: os.Getpid(), Home: opt.Home, Started: started, Listeners: opt.listeners(tcp), Memory: mem.status()}
	}})
	_, born := api.Active() // no request has ended yet
	ln, err := h.listen()
	if err != nil {
		cancel(err)
		lines.close()
		return errors.Join(err, eng.Close())
	}
	lines.serve(adapted{eng})
	var open callers
	srv := &http.Server{Handler: api, ReadHeaderTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ConnState: open.note,
		// Whom the socket lets in is the owner.
		BaseContext: func(net.Listener) context.Context { return auth.With(context.Background(), auth.Owner()) }}
	within := in.server(api, log)
	failed := make(chan error, 3)
	tokens.Revoked = append(tokens.Revoked, in.drop)
	tcp.serve(api, previews, tokens, log, failed) // first: it is told of tokens that are revoked
	go func() { failed <- srv.Serve(ln) }()
	go func() { failed <- within.Serve(in) }()
	if opt.Ready != nil {
		tell(opt.Ready, nil)
		log.Info("serving", "home", opt.Home, "pid", os.Getpid())
	} else {
		fmt.Fprintf(out, "coppice: serving %s\n", opt.Home)
		if tcp != nil {
			fmt.Fprintf(out, "coppice: listening on %s\n", tcp.url())
		}
	}

	isIdle := func(now time.Time) bool {
		n, last := api.Active()
		return n == 0 && now.Sub(last) >= opt.Idle && !open.expected(now, born, last)
	}
	err = waitForEnd(ctx, opt.Idle, isIdle, func() bool { return lines.busy() || eng.Busy() }, failed)
	h.unlisten()
	stop() // a second signal kills
	if err == nil && ctx.Err() == nil {
		// Idle. Who connected before the socket's name was gone is still served.
		h.acceptLast()
	}
	cancel(fault.New(fault.Unavailable, "the daemon stops"))
	latest := time.NewTimer(stopTime)
	defer latest.Stop()
	end, cancelEnd := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancelEnd()
	shut := make(chan struct{})
	go func() { // beside: strangers on TCP are not to take the time of others
		defer close(shut)
		tcp.shutdown(end)
	}()
	if serr := srv.Shutdown(end); serr != nil {
		_ = srv.Close()
	}
	<-shut
	if serr := within.Shutdown(end); serr != nil {
		_ = within.Close()
	}
	waitIdle(end, api)
	if end.Err() != nil {
		log.Warn("who was still served is cut off", "after", drain)
	}
	var cerr error
	inTime, cerr = closeBy(latest.C, func() error {
		lines.close()
		return eng.Close()
	})
	if hung = !inTime; hung {
		cerr = fault.New(fault.Timeout, "background work did not end within %v of the stop; the next start recovers what it left", stopTime).
			WithHint("see %s", LogPath(opt.Home))
		log.Error("exiting while work is still running", "err", cerr)
	}
	if opt.Ready != nil {
		log.Info("stopped")
	}
	return errors.Join(err, cerr)
}

// openBy runs open, which must end with ctx. It reports whether open returned within patience
// of the end of ctx; if not, the caller must end the process.
func openBy(ctx context.Context, patience time.Duration, open func() (backend, error)) (_ backend, inTime bool, err error) {
	type opened struct {
		backend
		err error
	}
	done := make(chan opened, 1)
	go func() {
		b, err := open()
		done <- opened{b, err}
	}()
	select {
	case o := <-done:
		return o.backend, true, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-done:
		return o.backend, true, o.err
	case <-time.After(patience):
		return nil, false, nil
	}
}

// closeBy runs shut, and reports whether it returned before latest. If not, the caller must
// end the process: nothing else may use what shut closes.
func closeBy(latest <-chan time.Time, shut func() error) (inTime bool, err error) {
	done := make(chan error, 1)
	go func() { done <- shut() }()
	select {
	case err := <-done:
		return true, err
	case <-latest:
		return false, nil
	}
}

// mayPreview says for who has shown a token which sandboxes' ports it may use: those
// that it may connect to by the API.
func mayPreview(r *http.Request) (may func(sandboxID string) error) {
	p := auth.From(r.Context())
	if p.Allows(auth.Operate) != nil {
		return nil
	}
	return func(sandboxID string) error { return p.Check(auth.Operate, sandboxID) }
}

// waitForEnd returns nil when it is time to stop: isIdle has been true, and isBusy false,
// for as long as idle. An idle of 0 is never over.
func waitForEnd(ctx context.Context, idle time.Duration, isIdle func(now time.Time) bool, isBusy func() bool, failed <-chan error) error {
	if idle <= 0 {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fault.Wrap(err, "serve")
		}
	}
	t := time.NewTicker(min(max(idle/5, 10*time.Millisecond), 5*time.Second))
	defer t.Stop()
	var busy time.Time // when the engine was last busy
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fault.Wrap(err, "serve")
		case now := <-t.C:
			if !isIdle(now) || now.Sub(busy) < idle {
				continue
			}
			if isBusy() {
				busy = now
				continue
			}
			return nil
		}
	}
}

// waitIdle waits until the last exec has let go, or ctx ends.
func waitIdle(ctx context.Context, api *httpapi.Server) {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		if n, _ := api.Active(); n == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// serveInNamespace runs this very command again in a user namespace of its own,
// and passes signals on. It is not done when the host allows none.
func serveInNamespace(ctx context.Context) (done bool, _ error) {
	// The child is to die with us, and that is tied to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(sigs)
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: os.Args, Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	err := startInNamespace(cmd, &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM})
	if errors.Is(err, errNoNamespace) {
		return false, nil
	}
	if err != nil {
		return true, fault.Wrap(err, "start the daemon in a user namespace")
	}
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	cancelled := ctx.Done()
	for {
		select {
		case s := <-sigs:
			_ = cmd.Process.Signal(s)
		case <-cancelled:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			cancelled = nil // once
		case err := <-end:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return true, &ExitError{Code: max(1, exit.ExitCode())}
			}
			return true, err
		}
	}
}
