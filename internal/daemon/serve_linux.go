package daemon

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// backend is the engine, with the methods that the daemon needs besides the API's.
type backend interface {
	httpapi.Sandboxes
	httpapi.DiskMeter
	httpapi.Power
	httpapi.Commands
	httpapi.History
	httpapi.Moves
	httpapi.Feed
	httpapi.FileOpener
	httpapi.Network
	httpapi.Secrets
	httpapi.PortDialer
	httpapi.Records
	httpapi.SignedLog
	httpapi.Repositories
	httpapi.Proposals
	httpapi.LayerTravel
	// Snapshots is Log without the drawing.
	Snapshots(ctx context.Context, name string) (wire.LogResult, error)
	// ShowSome is Show with at most most changes.
	ShowSome(ctx context.Context, name, ref string, most int) (wire.ShowResult, error)
	// Sandbox returns a sandbox by name or ID.
	Sandbox(ctx context.Context, name string) (wire.Sandbox, error)
	// Identify returns ID and name of a sandbox, by either.
	Identify(ctx context.Context, nameOrID string) (id, name string, err error)
	httpapi.Answers
	// TrialInside runs a command in a temporary fork at the request of a process of the sandbox.
	TrialInside(ctx context.Context, name string, req wire.TrialRequest, who tournament.Asker) (wire.Trial, error)
	// Busy reports whether a sandbox is live or background work is in progress; then an idle daemon does not exit. It
	// is called about once a second.
	Busy() bool
	// Ready checks that the store answers, and that a storage driver works, by name; "" and "auto" are any.
	Ready(ctx context.Context, driver string) error
	// store returns the database that stores tokens.
	store() *meta.DB
	// Close stops background work and releases all resources. Monitors continue.
	Close() error
}

// roles returns the engine in all roles of the API.
func roles(b backend) httpapi.Roles {
	return httpapi.Roles{
		Sandboxes:    b,
		DiskMeter:    b,
		Power:        b,
		Commands:     b,
		History:      b,
		Moves:        b,
		Feed:         b,
		FileOpener:   b,
		Network:      b,
		Secrets:      b,
		PortDialer:   b,
		Records:      b,
		SignedLog:    b,
		Repositories: b,
		Proposals:    b,
		LayerTravel:  b,
	}
}

// drain is the time limit for requests to end when the daemon stops. The rest of limit.StopSeconds is for the
// engine.
const drain = 3 * time.Second

// stopTime is the maximum time of a stop.
const stopTime = limit.StopSeconds * time.Second

// Serve serves a home until ctx ends, a signal (SIGINT, SIGTERM, SIGHUP) arrives, or it has been idle for
// opt.Idle. Running commands continue. For an ordinary user outside a user namespace of Coppice it runs the
// program again in a new one, and waits.
func Serve(ctx context.Context, opt Options) error {
	err := serve(ctx, opt)
	if err != nil && opt.Ready != nil {
		tell(opt.Ready, err)
	}
	return err
}

func serve(ctx context.Context, opt Options) (err error) {
	if err := inheritNothing(); err != nil {
		return err
	}
	if err := opt.HTTP.check(opt.Ready != nil); err != nil {
		return err
	}
	if opt.RealUID < 0 && !isRoot() && opt.Ready == nil {
		if done, err := serveInNamespace(ctx); done {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	syscall.Umask(0o022) // not the umask of the first client

	s := &serving{opt: opt, stop: stop, failed: make(chan error, servers)}
	defer s.opened.Run(&err)
	err = s.prepare(ctx)
	if errors.Is(err, errServed) {
		tell(opt.Ready, nil)
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.openFrontDoor(ctx); err != nil {
		return err
	}
	if err := s.openEngine(ctx); err != nil {
		return err
	}
	if err := s.openDoors(ctx); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	return s.shut(ctx, s.wait(ctx))
}

// openBy runs open, which must end with ctx. It reports whether open returned within patience
// of the end of ctx; if not, the caller must end the process.
func openBy(
	ctx context.Context, patience time.Duration, open func() (backend, error),
) (_ backend, inTime bool, err error) {
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

// mayPreview returns a function that checks whether the caller may use the ports of a sandbox. Callers may
// preview the ports that they may connect to through the API.
func mayPreview(r *http.Request) (may func(sandboxID string) error) {
	p := auth.From(r.Context())
	if p.Allows(auth.Operate) != nil {
		return nil
	}
	return func(sandboxID string) error { return p.Check(auth.Operate, sandboxID) }
}

// waitForEnd returns nil when it is time to exit: isIdle has been true, and isBusy false, for the duration idle. An
// idle of 0 means never.
func waitForEnd(
	ctx context.Context, idle time.Duration, isIdle func(now time.Time) bool, isBusy func() bool, failed <-chan error,
) error {
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

// waitIdle waits until the last exec has ended, or ctx ends.
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

// serveInNamespace runs this command again in its own user namespace, and forwards signals. done is false if the host
// does not allow one.
func serveInNamespace(ctx context.Context) (done bool, _ error) {
	// Pdeathsig kills the child when this thread exits, so the goroutine must stay on the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(sigs)
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: os.Args, Env: os.Environ(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
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
			cancelled = nil // send it once
		case err := <-end:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return true, &ExitError{Code: max(1, exit.ExitCode())}
			}
			return true, err
		}
	}
}
