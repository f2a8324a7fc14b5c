package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

const (
	readyFD = 3
	// lockPatience is how long a broker waits for an earlier one that exits, and lockAgain how often it looks.
	lockPatience = 30 * time.Second
	lockAgain    = 10 * time.Millisecond
	// maxLog is the size of the log, in bytes, at which a new broker starts it again.
	maxLog = 1 << 20
)

// errServed means that another broker serves the home already.
var errServed = errors.New("another broker of secrets serves this home")

// Main runs the broker for client.Start, with its arguments and environment, and returns the exit code. It says on
// descriptor 3 when it serves, or why it cannot.
func Main(args, env []string) int {
	if len(args) != 3 {
		fmt.Fprintln(os.Stderr, "coppice-broker is started by coppice: see coppice secret --help")
		return 2
	}
	after, err := time.ParseDuration(args[2])
	ready := os.NewFile(readyFD, "ready")
	unix.CloseOnExec(readyFD)
	if err == nil {
		err = run(args[1], env, after, ready)
	}
	if err == nil {
		return 0
	}
	if !errors.Is(err, errServed) {
		p := problemOf(err)
		say(ready, client.Ready{Problem: &p})
		return 1
	}
	say(ready, client.Ready{})
	return 0
}

// say says something once: later calls do nothing.
func say(to *os.File, m client.Ready) {
	_ = json.NewEncoder(to).Encode(m) // the client has gone otherwise
	to.Close()
}

// run serves a home until there is nothing to do.
func run(home string, env []string, after time.Duration, ready *os.File) error {
	if err := harden(); err != nil {
		return err
	}
	dir, err := openRun(home)
	if err != nil {
		return err
	}
	log, err := openLog(home)
	if err != nil {
		return err
	}
	lock, err := takeLock(home, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	identity, err := identityPath(env)
	if err != nil {
		return err
	}
	c, err := newCatalog(home, identity, env, time.Now)
	if err != nil {
		return err
	}
	control, err := unixsock.Listen(dir, filepath.Base(client.ControlSocket), 0o600)
	if err != nil {
		return fault.Wrap(err, "create the socket of the broker of secrets")
	}
	lines, err := unixsock.ListenPackets(dir, filepath.Base(client.LineSocket), 0o600)
	if err != nil {
		control.Close()
		return fault.Wrap(err, "create the socket of the broker of secrets")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	b := newBroker(c, after, log)
	log.Info("serving", "home", home, "pid", os.Getpid())
	b.serve(ctx, dir, control, lines, func() { say(ready, client.Ready{}) })
	log.Info("exiting", "pid", os.Getpid())
	return nil
}

// serve serves both sockets until ctx ends or there is nothing to do. It closes them and removes their names.
func (b *broker) serve(ctx context.Context, dir string, control, lines *net.UnixListener, ready func()) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var conns sync.WaitGroup
	server := &http.Server{Handler: b.handler(), ReadHeaderTimeout: ticketPatience, IdleTimeout: ticketPatience,
		ConnState: b.counter(&conns), ErrorLog: slog.NewLogLogger(b.log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return ctx }}
	var all sync.WaitGroup
	all.Go(func() { _ = server.Serve(unixsock.Own{UnixListener: control}) })
	all.Go(func() { b.serveLines(ctx, unixsock.Own{UnixListener: lines}) })
	all.Go(func() {
		for more := true; more; more = sleep(ctx, sweepEvery) {
			b.leases.sweep(ctx)
		}
	})
	ready()
	select {
	case <-ctx.Done():
	case <-b.idle.over:
	}
	for _, name := range []string{client.ControlSocket, client.LineSocket} {
		_ = os.Remove(filepath.Join(dir, filepath.Base(name))) // the next broker replaces it otherwise
	}
	lines.Close()
	cancel()
	_ = server.Close()
	all.Wait()
	conns.Wait() // a call may register a sandbox until then
	b.close(context.WithoutCancel(ctx))
}

// counter returns a hook that keeps the broker running while connections to the control socket are open, and counts
// those in all.
func (b *broker) counter(all *sync.WaitGroup) func(net.Conn, http.ConnState) {
	var mu sync.Mutex
	open := map[net.Conn]func(){}
	return func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch s {
		case http.StateNew:
			all.Add(1)
			open[c] = b.idle.enter()
		case http.StateClosed, http.StateHijacked:
			if done := open[c]; done != nil {
				delete(open, c)
				done()
				all.Done()
			}
		}
	}
}

// openRun creates the directory of the sockets, and returns its path.
func openRun(home string) (string, error) {
	dir := filepath.Join(home, "run")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fault.Wrap(err, "create %s", dir)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", fault.Wrap(err, "open %s", dir)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o022 != 0 {
		return "", fault.New(fault.Denied, "%s is not a directory that only you can write to", dir).
			WithHint("set COPPICE_HOME to a directory that you own")
	}
	return dir, nil
}

// openLog makes the log the standard output and error of the process, so that it also has crashes.
func openLog(home string) (*slog.Logger, error) {
	name := client.LogPath(home)
	if st, err := os.Lstat(name); err == nil && st.Size() > maxLog {
		_ = os.Remove(name) // it grows otherwise
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, "open the log of the broker of secrets")
	}
	defer f.Close()
	for fd := 1; fd <= 2; fd++ {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return nil, fault.Wrap(err, "open the log of the broker of secrets")
		}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)), nil
}

// takeLock locks the home for brokers. It waits for one that exits, and returns errServed if another one serves.
func takeLock(home, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "broker.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, "lock the secrets of %s", home)
	}
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockAgain) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return nil, fault.Wrap(err, "lock the secrets of %s", home)
		}
		conn, err := unixsock.Dial(dir, filepath.Base(client.ControlSocket))
		if err == nil {
			conn.Close()
			f.Close()
			return nil, errServed
		}
		if time.Now().After(end) {
			f.Close()
			return nil, fault.New(fault.Conflict, "another broker of secrets holds the lock of %s", home).
				WithHint("see which process has it: fuser %s", f.Name())
		}
	}
}

// identityPath returns the path of the identity that decrypts secrets: outside the home, so that a copy of it is worth
// nothing. The built-in policy hides this path from sandboxes. XDG_CONFIG_HOME does not change it: the daemon may have
// another one than the broker, or none, and would then hide another path.
func identityPath(env []string) (string, error) {
	home := lookup(env, "HOME")
	if !filepath.IsAbs(home) {
		return "", fault.New(fault.Invalid, "the directory of the secrets' identity is unknown").WithHint("set HOME")
	}
	return filepath.Join(home, ".config", "coppice", "identity"), nil
}
