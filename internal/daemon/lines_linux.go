package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/lineapi"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

// Names in a sandbox's directory.
const (
	lineSocket  = "line.sock"    // its name is the same after a restart
	lineSpawned = "spawned.json" // commands started through the socket
)

// levels are the access levels of clients inside, by policy. Other values have no socket.
var levels = map[string]lineapi.Level{wire.SelfRead: lineapi.Read, wire.SelfRewind: lineapi.Rewind}

// lines are the sockets of the line protocol: outside, one for each sandbox whose owner requested it, and inside, one
// in each live sandbox whose policy has it. Only the socket files survive this process.
type lines struct {
	home   string
	base   context.Context
	log    *slog.Logger
	guard  *lineapi.Guard
	memory *admission.Gate // nil: no limit

	ready chan struct{} // closed when eng is set
	eng   lineEngine

	mu      sync.Mutex
	closed  bool             // guarded by mu: no new work is started
	outside map[string]*door // guarded by mu; by the sandbox's id
	inside  map[string]*door // guarded by mu; by the sandbox's id
	work    sync.WaitGroup
}

// door is one socket, or one with a second name for clients of the sandbox's user.
type door struct {
	dir, name string
	ln        net.Listener
	peers     lineapi.Peers
	user      net.Listener // of clients that run as the sandbox's user; nil: the first listener tells their users
	once      sync.Once
	closing   chan struct{} // closed by shut
	gone      chan struct{} // closed when all connections have ended
}

func newDoor(dir, name string, ln net.Listener) *door {
	return &door{dir: dir, name: name, ln: ln, closing: make(chan struct{}), gone: make(chan struct{})}
}

// shut closes all connections. The socket file is kept.
func (d *door) shut() {
	d.once.Do(func() { close(d.closing); d.stopListening() })
	<-d.gone
}

// stopListening closes the listeners. It may be called again.
func (d *door) stopListening() {
	d.ln.Close()
	if d.user != nil {
		d.user.Close()
	}
}

// remove removes the socket file.
func (d *door) remove() {
	_ = os.Remove(filepath.Join(d.dir, d.name)) // it may have been removed with its sandbox
	if d.user != nil {
		_ = os.Remove(filepath.Join(d.dir, plan.SelfUser)) // likewise
	}
}

// lineEngine is the engine for the line protocol.
type lineEngine interface {
	lineapi.Engine
	Sandbox(ctx context.Context, name string) (wire.Sandbox, error)
	// derive returns a secret of the home for a purpose.
	derive(purpose string) []byte
}

func newLines(base context.Context, home string, memory *admission.Gate, log *slog.Logger) *lines {
	return &lines{home: home, base: base, memory: memory, log: log, guard: lineapi.NewGuard(), ready: make(chan struct{}),
		outside: map[string]*door{}, inside: map[string]*door{}}
}

// serve starts to answer, and reopens the sockets of the previous daemon.
func (l *lines) serve(eng lineEngine) {
	l.eng = eng
	close(l.ready)
	l.do(l.restore)
}

// do runs fn in a goroutine, unless close was called.
func (l *lines) do(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.work.Go(fn)
	}
	return !l.closed
}

// close returns when all connections have ended. The base context has ended; socket files are kept for the next
// daemon.
func (l *lines) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.work.Wait()
}

// busy reports whether clients may connect. The daemon then does not exit.
func (l *lines) busy() bool {
	l.sweep()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.outside)+len(l.inside) > 0
}

// sweep closes the sockets of removed sandboxes.
func (l *lines) sweep() {
	l.mu.Lock()
	var dead []*door
	for id, d := range l.outside {
		if _, err := os.Lstat(d.dir); errors.Is(err, fs.ErrNotExist) {
			delete(l.outside, id)
			dead = append(dead, d)
		}
	}
	l.mu.Unlock()
	for _, d := range dead {
		d.shut()
	}
}

func (l *lines) sandboxDir(id string) string { return filepath.Join(l.home, "sandboxes", id) }

// OpenSocket implements httpapi.Sockets.
func (l *lines) OpenSocket(ctx context.Context, name string) (string, error) {
	sb, err := l.eng.Sandbox(ctx, name)
	if err != nil {
		return "", err
	}
	return filepath.Join(l.sandboxDir(sb.ID), lineSocket), l.openOutside(sb.ID) //nolint:contextcheck // connections outlive the call
}

func (l *lines) openOutside(id string) error {
	dir := l.sandboxDir(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outside[id] != nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(err, "create the directory of sandbox %s", id)
	}
	ln, err := unixsock.Listen(dir, lineSocket, 0o600)
	if err != nil {
		return fault.Wrap(err, "create the socket %s/%s", dir, lineSocket)
	}
	own := unixsock.Own{UnixListener: ln}
	l.outside[id] = l.open(newDoor(dir, lineSocket, own),
		lineapi.Options{Sandbox: id, Level: lineapi.Owner, Spawned: filepath.Join(dir, lineSpawned)})
	return nil
}

// CloseSocket implements httpapi.Sockets.
func (l *lines) CloseSocket(ctx context.Context, name string) error {
	sb, err := l.eng.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	d := l.outside[sb.ID]
	delete(l.outside, sb.ID)
	if d != nil {
		d.remove()
	}
	l.mu.Unlock()
	if d != nil {
		d.shut()
	}
	return nil
}

// openInside opens the socket for a box that is about to start, or one that survived a daemon; nil if its policy has
// none. shutInside closes it.
func (l *lines) openInside(id, runDir, self, tier string) (*door, error) {
	level, ok := levels[self]
	if !ok {
		return nil, nil
	}
	dir := filepath.Join(runDir, plan.SelfDir)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fault.Wrap(err, "create the sandbox's own socket")
	}
	if err := os.Chmod(dir, 0o755); err != nil { // despite the umask
		return nil, fault.Wrap(err, "create the sandbox's own socket")
	}
	// Any user inside may connect. Processes outside cannot: the run directory is closed to others.
	ln, err := unixsock.Listen(dir, plan.SelfName, 0o666)
	if err != nil {
		return nil, fault.Wrap(err, "create the socket %s/%s", dir, plan.SelfName)
	}
	next := newDoor(dir, plan.SelfName, ln)
	if tier == plan.TierGvisor { // there all clients connect through the keeper, which tells the user by the name
		next.peers = lineapi.PeersUnknown
		if next.user, err = unixsock.Listen(dir, plan.SelfUser, 0o600); err != nil {
			ln.Close()
			return nil, fault.Wrap(err, "create the socket %s/%s", dir, plan.SelfUser)
		}
	}
	if before := l.inside[id]; before != nil && !l.closed {
		l.work.Go(before.shut)
	}
	d := l.open(next, lineapi.Options{Sandbox: id, Level: level, Guard: l.guard})
	l.inside[id] = d
	return d, nil
}

// shutInside closes a door and removes its name, unless another door has replaced it.
func (l *lines) shutInside(id string, d *door) {
	l.mu.Lock()
	if l.inside[id] == d {
		delete(l.inside, id)
		d.remove()
		_ = os.Remove(d.dir) // the next start creates it again
	}
	l.mu.Unlock()
	d.shut()
}

// until closes an inside door when its box exits.
func (l *lines) until(id string, d *door, ended <-chan struct{}) {
	l.do(func() {
		select {
		case <-ended:
			l.shutInside(id, d)
		case <-d.gone:
		}
	})
}

// open starts to serve a door. l.mu is held.
func (l *lines) open(d *door, opt lineapi.Options) *door {
	opt.Base, opt.Admission, opt.Log = l.base, l.memory, l.log
	if opt.Guard != nil {
		opt.Base = audit.FromInside(opt.Base)
	}
	if l.closed {
		d.stopListening()
		close(d.gone)
		return d
	}
	l.work.Go(func() {
		defer close(d.gone)
		defer d.stopListening()
		select { // boxes may start before the engine is set
		case <-l.ready:
		case <-d.closing:
			return
		case <-l.base.Done():
			return
		}
		opt.Engine, opt.Key = l.eng, l.eng.derive("spawned "+opt.Sandbox)
		srv := lineapi.New(opt)
		defer srv.Close()
		unhook := context.AfterFunc(l.base, d.stopListening)
		defer unhook()
		if d.user != nil {
			served := make(chan struct{})
			defer func() { d.stopListening(); <-served }()
			go func() {
				defer close(served)
				l.serveAt(srv, d.user, lineapi.PeersUser, opt.Sandbox)
			}()
		}
		l.serveAt(srv, d.ln, d.peers, opt.Sandbox)
	})
	return d
}

// serveAt serves one listener of a door.
func (l *lines) serveAt(srv *lineapi.Server, ln net.Listener, peers lineapi.Peers, sandbox string) {
	if err := srv.Serve(ln, peers); err != nil {
		l.log.Error("stopped serving a socket", "sandbox", sandbox, "err", err)
	}
}

// restore reopens the sockets of the previous daemon: outside, those that were not closed, and inside, those of
// surviving boxes.
func (l *lines) restore() {
	names, err := filepath.Glob(filepath.Join(l.home, "sandboxes", "*", lineSocket))
	if err != nil {
		l.log.Error("could not reopen sockets", "err", err)
		return
	}
	for _, name := range names {
		id := filepath.Base(filepath.Dir(name))
		if _, err := l.eng.Sandbox(l.base, id); err != nil {
			continue // the sandbox is being removed
		}
		if err := l.openOutside(id); err != nil {
			l.log.Error("could not reopen a socket", "sandbox", id, "err", err)
		}
	}
	// The pattern is valid: see above.
	selves, _ := filepath.Glob(filepath.Join(l.home, "sandboxes", "*", "run", plan.SelfDir))
	for _, dir := range selves {
		if l.base.Err() != nil {
			return
		}
		if err := l.restoreInside(filepath.Dir(dir)); err != nil && !fault.Is(err, fault.NotFound) {
			l.log.Error("could not reopen a sandbox's own socket", "dir", dir, "err", err)
		}
	}
}

// restoreInside opens the socket of a box that is still running.
func (l *lines) restoreInside(runDir string) error {
	id := filepath.Base(filepath.Dir(runDir))
	b, err := box.Attach(l.base, runDir)
	if err != nil {
		return err // NotFound: the box has exited
	}
	sb, err := l.eng.Sandbox(l.base, id)
	l.mu.Lock()
	started := l.inside[id] != nil // by the engine, in the meantime
	l.mu.Unlock()
	if err != nil || started {
		return errors.Join(err, b.Close())
	}
	d, err := l.openInside(id, runDir, sb.Self, sb.Tier)
	if err != nil || d == nil {
		return errors.Join(err, b.Close())
	}
	l.until(id, d, b.Gone())
	l.do(func() {
		<-d.gone
		_ = b.Close() // it only detaches
	})
	return nil
}
