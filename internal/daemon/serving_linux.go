package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
	"github.com/coppice-dev/coppice/internal/ports"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/undo"
)

// serving is one run of the daemon. Its phases are prepare, openFrontDoor, openEngine, openDoors, listen, wait and
// shut, in this order; each needs the results of the previous ones. A phase that fails leaves nothing running, and the
// resources of all phases are on the stack opened.
type serving struct {
	opt    Options
	stop   func()     // stops the notification of signals, so that a second signal kills the process
	opened undo.Stack // run at the end, even of a successful run
	hung   bool       // work of the engine still runs, and may write to the home

	home *home
	out  io.Writer // the log of a daemon that was started automatically, or its stderr
	log  *slog.Logger
	mem  ownMemory

	// base is the context of commands. Commands outlive their requests; when the daemon exits, it detaches from
	// them.
	base     context.Context
	cancel   context.CancelCauseFunc
	programs *program.Set
	lines    *lines
	eng      backend
	started  time.Time

	tokens   *auth.Tokens
	file     *tokenFile    // nil: none
	watched  chan struct{} // closed when the watch of file has ended; nil: there is none
	ready    *readiness
	tcp      *tcpDoor // nil: none
	in       *inside
	previews *ports.Proxy
	api      *httpapi.Server
	born     time.Time // api's last activity before the first request

	open   callers
	srv    *http.Server // on the home's socket
	within *http.Server // on in
	failed chan error   // has room for the result of each server
}

// servers is the maximum number of servers.
const servers = 3

// onEnd registers a function to call at the end of the run.
func (s *serving) onEnd(do func()) {
	s.opened.Push(func() error {
		do()
		return nil
	})
}

// prepare locks the home, opens the log and limits the memory. errServed: another daemon serves the home.
func (s *serving) prepare(ctx context.Context) (err error) {
	wait := time.Duration(0)
	if s.opt.Ready != nil {
		wait = lockTimeout
	}
	if s.home, err = openHome(ctx, s.opt.Home, wait); err != nil {
		return err
	}
	s.onEnd(func() {
		if !s.hung { // otherwise the exit of the process unlocks the home: hung work may still write
			s.home.Close()
		}
	})

	s.out = s.opt.Stderr
	if s.opt.Ready != nil {
		log, err := s.home.openLog()
		if err != nil {
			return err
		}
		s.onEnd(func() { log.Close() })
		s.out = log
	}
	s.log = s.opt.Log.Logger(s.out)
	for _, w := range s.opt.Warnings {
		s.log.Warn(w)
	}
	s.home.regained.tell(s.log)

	mem, freely, err := limitMemory(s.opt.Memory, s.log)
	if err != nil {
		return err
	}
	s.mem = mem
	s.onEnd(freely)
	return nil
}

// openFrontDoor listens on TCP, where the probes of an orchestrator are answered from now on: recovering a home may
// take minutes. Everything else is refused until listen.
func (s *serving) openFrontDoor(ctx context.Context) (err error) {
	if s.tcp, err = openDoor(ctx, s.opt.HTTP, s.log, s.failed); err != nil {
		return err
	}
	s.onEnd(s.tcp.close)
	return nil
}

// openEngine opens the engine and its stores. It returns at the latest stopTime after the end of ctx.
func (s *serving) openEngine(ctx context.Context) error {
	s.base, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.onEnd(func() { s.cancel(nil) })
	s.programs = program.New(filepath.Join(s.opt.Home, "programs"), s.opt.ExecPath)
	s.onEnd(func() { _ = s.programs.Close() })                // only read from
	s.lines = newLines(s.base, s.opt.Home, s.mem.gate, s.log) //nolint:contextcheck // connections outlive the call
	removeLeft(s.opt.Home, s.log)                             // before the engine resumes removals of sandboxes
	removeProbes(ctx, s.opt.Home, time.Now(), s.log)
	eng, inTime, err := openBy(ctx, stopTime, func() (backend, error) { return newEngine(ctx, s.engineConfig()) })
	if s.hung = !inTime; s.hung || err != nil && ctx.Err() != nil {
		err = fault.New(fault.Unavailable, "stopped while recovering %s; the next start continues", s.opt.Home).Because(err)
	}
	if err != nil {
		return err
	}
	s.eng, s.started = eng, time.Now()
	return nil
}

func (s *serving) engineConfig() engineConfig {
	return engineConfig{
		Home:       s.opt.Home,
		RealUID:    s.opt.RealUID,
		RealGID:    s.opt.RealGID,
		UserHome:   s.opt.UserHome,
		UserConfig: s.opt.UserConfig,
		UserPath:   s.opt.UserPath,
		Memory:     s.mem.within,
		Log:        s.log,
		Lines:      s.lines,
		Programs:   s.programs,
	}
}

// closeEngine cleans up in a phase after openEngine that fails with err.
func (s *serving) closeEngine(err error) error {
	s.cancel(err)
	s.lines.close()
	return errors.Join(err, s.eng.Close())
}

// openDoors makes what serves all listeners. It does not serve yet.
func (s *serving) openDoors(ctx context.Context) error {
	configured := &auth.Configured{Store: tokenStore{s.eng.store()}}
	s.tokens = newTokens(s.eng, configured)
	if err := s.openTokenFile(ctx, configured); err != nil {
		return s.closeEngine(err)
	}
	s.ready = &readiness{base: s.base, log: s.log,
		check: func(ctx context.Context) error { return s.eng.Ready(ctx, s.opt.Defaults.Driver) }}
	s.in = newInside(s.tokens)
	// Through the home's socket, clients connect to ports, but get no previews. The TCP door passes the hosts of
	// previews to s.previews, and reports its address (ServedAt).
	domain, err := s.opt.HTTP.previews()
	if err != nil {
		return s.closeEngine(err)
	}
	s.previews = ports.New(ports.Options{Engine: s.eng, Home: s.opt.Home, Domain: domain, Allow: mayPreview,
		Proved: auth.Proved})
	s.onEnd(s.previews.Close)
	s.api = httpapi.New(httpapi.Options{
		Roles:     roles(swept{s.eng, s.lines, s.opt.Defaults}),
		Ready:     s.ready.ready,
		Sockets:   s.lines,
		MCP:       mcpHandler(s.base, s.in, s.opt.Version, s.log), //nolint:contextcheck // sessions outlive the call
		Tokens:    s.tokens,
		Previews:  s.previews,
		Answers:   s.eng,
		Grants:    s.tokens,
		Origins:   s.opt.HTTP.AllowHosts,
		Single:    s.opt.HTTP.Single,
		Admission: s.mem.gate,
		Base:      s.base,
		Log:       s.log,
		Status:    s.status,
	})
	_, s.born = s.api.Active()
	return nil
}

// openTokenFile reads the token file, if one is configured.
func (s *serving) openTokenFile(ctx context.Context, configured *auth.Configured) error {
	if s.opt.HTTP.TokenFile == "" {
		return nil
	}
	private, err := unseen(s.opt.Home)
	if err != nil {
		return err
	}
	owner := os.Getuid()
	if s.opt.RealUID >= 0 {
		owner = -1
	}
	s.file = &tokenFile{name: s.opt.HTTP.TokenFile, private: private, owner: owner,
		tokens: configured, drop: s.tokens.Ended, log: s.log}
	return s.file.load(ctx)
}

func (s *serving) status() wire.DaemonStatus {
	return wire.DaemonStatus{
		Version:   s.opt.Version,
		PID:       os.Getpid(),
		Home:      s.opt.Home,
		Started:   s.started,
		Listeners: s.opt.listeners(s.tcp),
		Memory:    s.mem.status(),
	}
}

// listen creates the home's socket, starts to serve, and reports that.
func (s *serving) listen() error {
	ln, err := s.home.listen()
	if err != nil {
		return s.closeEngine(err)
	}
	s.lines.serve(adapted{s.eng})
	s.srv = &http.Server{
		Handler:           s.api,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		ConnState:         s.open.note,
		// The owner is the only user that can connect to the socket.
		BaseContext: func(net.Listener) context.Context { return auth.With(context.Background(), auth.Owner()) },
	}
	s.within = s.in.server(s.api, s.log)
	s.tokens.Revoked = append(s.tokens.Revoked, s.in.drop)
	s.tcp.serve(s.api, s.previews, s.tokens, s.log) // first: it must be informed of revoked tokens
	if s.file != nil {
		s.watched = make(chan struct{})
		go func() {
			defer close(s.watched)
			s.file.watch(s.base)
		}()
	}
	go func() { s.failed <- s.srv.Serve(ln) }()
	go func() { s.failed <- s.within.Serve(s.in) }()
	if s.opt.Ready != nil {
		tell(s.opt.Ready, nil)
		s.log.Info("serving", "home", s.opt.Home, "pid", os.Getpid())
		return nil
	}
	if s.opt.Log.Format == LogJSON {
		s.log.Info("serving", "home", s.opt.Home, "pid", os.Getpid())
		if s.tcp != nil {
			s.log.Info("listening", "url", s.tcp.url())
		}
		return nil
	}
	fmt.Fprintf(s.out, "coppice: serving %s\n", s.opt.Home)
	if s.tcp != nil {
		fmt.Fprintf(s.out, "coppice: listening on %s\n", s.tcp.url())
	}
	return nil
}

// wait returns when it is time to stop, with the error of a server that has failed.
func (s *serving) wait(ctx context.Context) error {
	isIdle := func(now time.Time) bool {
		n, last := s.api.Active()
		return n == 0 && now.Sub(last) >= s.opt.Idle && !s.open.expected(now, s.born, last)
	}
	isBusy := func() bool { return s.lines.busy() || s.eng.Busy() }
	return waitForEnd(ctx, s.opt.Idle, isIdle, isBusy, s.failed)
}

// shut ends all requests and closes the engine. err is the result of wait.
func (s *serving) shut(ctx context.Context, err error) error {
	s.ready.stopping.Store(true)
	s.home.unlisten()
	idle := err == nil && ctx.Err() == nil // stop cancels ctx
	s.stop()
	if idle {
		// Clients that connected before the socket's name was removed are still served.
		s.home.acceptLast()
	}
	s.cancel(fault.New(fault.Unavailable, "the daemon is stopping"))
	latest := time.NewTimer(stopTime)
	defer latest.Stop()
	s.drain(context.WithoutCancel(ctx))
	inTime, cerr := closeBy(latest.C, func() error {
		if s.watched != nil {
			<-s.watched // the watch of the token file reads the database until s.base ends
		}
		s.lines.close()
		return s.eng.Close()
	})
	if s.hung = !inTime; s.hung {
		cerr = fault.New(fault.Timeout,
			"background work did not end within %v of the stop; the next start recovers what it left", stopTime).
			WithHint("see %s", LogPath(s.opt.Home))
		s.log.Error("exiting with work still in progress", "err", cerr)
	}
	if s.opt.Ready != nil || s.opt.Log.Format == LogJSON {
		s.log.Info("stopped")
	}
	return errors.Join(err, cerr)
}

// drain waits for requests to end, and cancels those that have not ended after the time drain.
func (s *serving) drain(ctx context.Context) {
	end, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	shut := make(chan struct{})
	go func() { // concurrently: clients on TCP must not use up the time of others
		defer close(shut)
		s.tcp.shutdown(end)
	}()
	if err := s.srv.Shutdown(end); err != nil {
		_ = s.srv.Close()
	}
	<-shut
	if err := s.within.Shutdown(end); err != nil {
		_ = s.within.Close()
	}
	waitIdle(end, s.api)
	if end.Err() != nil {
		s.log.Warn("closed connections that were still being served", "after", drain)
	}
}
