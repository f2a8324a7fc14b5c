//go:build linux && (amd64 || arm64)

package keeper

import (
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
)

// gateway holds the process of the gate, which may start while the box is being ended. Its methods are safe for
// concurrent use.
type gateway struct {
	closing chan struct{} // closed by close, under mu

	mu sync.Mutex
	p  *control.Process // guarded by mu; nil until it was started
}

func newGateway() *gateway { return &gateway{closing: make(chan struct{})} }

// start starts the process, unless the box is being ended. It fails when late is closed or close is called, although
// start itself, which waits for the host's file systems, cannot be cancelled: a process that it returns later is
// stopped.
func (g *gateway) start(late <-chan struct{}, start func() (*control.Process, error)) (*control.Process, error) {
	if g.closed() {
		return nil, errGatewayClosed()
	}
	type outcome struct {
		p   *control.Process
		err error
	}
	started, abandoned := make(chan outcome), make(chan struct{})
	defer close(abandoned)
	go func() { // ends with start
		p, err := start()
		select {
		case started <- outcome{p, err}:
		case <-abandoned:
			if err == nil {
				p.Close()
			}
		}
	}()
	select {
	case o := <-started:
		if o.err != nil {
			return nil, o.err
		}
		return g.hold(o.p)
	case <-g.closing:
		return nil, errGatewayClosed()
	case <-late:
		return nil, fault.New(fault.Timeout, "the gate did not start in time").
			WithHint("restart the sandbox: coppice stop NAME; the next command starts it")
	}
}

// hold takes ownership of p, which it stops if the box is being ended.
func (g *gateway) hold(p *control.Process) (*control.Process, error) {
	g.mu.Lock()
	closed := g.closed()
	if !closed {
		g.p = p
	}
	g.mu.Unlock()
	if closed {
		p.Close()
		return nil, errGatewayClosed()
	}
	return p, nil
}

// process returns the process, which may have exited. It fails if the process was not started or was stopped.
func (g *gateway) process() (*control.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.p == nil || g.closed() {
		return nil, fault.New(fault.Unavailable, "the sandbox's gate could not be started: the network is unreachable").
			WithHint("restart the sandbox: coppice stop NAME; the next command starts it")
	}
	return g.p, nil
}

// close stops the process, waits until it has exited, and prevents that it is started again. It does not wait for a
// start in progress, which it makes fail.
func (g *gateway) close() {
	g.mu.Lock()
	p := g.p
	if !g.closed() {
		close(g.closing)
	}
	g.mu.Unlock()
	if p != nil {
		p.Close()
	}
}

// closed reports whether close was called.
func (g *gateway) closed() bool {
	select {
	case <-g.closing:
		return true
	default:
		return false
	}
}

func errGatewayClosed() error { return fault.New(fault.Unavailable, "the sandbox is being stopped") }
