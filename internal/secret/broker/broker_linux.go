package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/secret/line"
	"github.com/coppice-dev/coppice/internal/secret/sshkey"
)

const (
	ticketPatience = 10 * time.Second
	maxAsks        = 64 // that a line may have open
	// maxLife is how long a gate may keep a value.
	maxLife = time.Minute
	// endPatience is how long a call that withdraws grants waits for their leases to be revoked.
	endPatience = 5 * time.Second
)

// broker is the running broker.
type broker struct {
	boot     string
	catalog  *catalog
	registry *registry
	leases   *leases
	idle     *idle
	log      *slog.Logger

	mu   sync.Mutex
	busy map[string]func() // keeps the broker running, by registered sandbox
}

func newBroker(c *catalog, after time.Duration, log *slog.Logger) *broker {
	b := &broker{boot: rand.Text(), catalog: c, registry: &registry{boxes: map[string]*box{}}, idle: newIdle(after),
		log: log, busy: map[string]func(){}}
	b.leases = &leases{catalog: c, log: log, work: b.idle, live: map[string]bool{}}
	return b
}

// serveLines accepts lines until the listener is closed.
func (b *broker) serveLines(ctx context.Context, ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			b.log.Warn("accept a line", "error", err)
			if !sleep(ctx, 100*time.Millisecond) {
				return
			}
			continue
		}
		done := b.idle.enter()
		go func() {
			defer done()
			b.serveLine(ctx, conn.(*net.UnixConn))
		}()
	}
}

// serveLine answers the questions on a line until it is closed.
func (b *broker) serveLine(ctx context.Context, conn *net.UnixConn) {
	l, ticket, err := line.Accept(conn, ticketPatience)
	if err != nil {
		return
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, l.Close)
	defer stop()
	box, err := b.registry.join(ticket, l)
	if err != nil {
		l.Reject(err)
		return
	}
	defer b.registry.leave(box, l)
	asking, cancel := context.WithCancel(ctx)
	var asks sync.WaitGroup
	defer asks.Wait()
	defer cancel()
	slots := make(chan struct{}, maxAsks)
	for {
		ask, err := l.Next()
		if err != nil {
			return
		}
		slots <- struct{}{}
		asks.Go(func() {
			defer func() { <-slots }()
			b.answer(asking, box, l, ask)
		})
	}
}

// answer answers a question. An error of the connection has closed it.
func (b *broker) answer(ctx context.Context, box *box, l *line.Server, ask line.Ask) {
	g, err := b.registry.permit(box, l, ask, b.catalog.now())
	for range 3 { // the grant or the secret may change meanwhile
		if err != nil {
			break
		}
		var given bool
		switch {
		case ask.Sign:
			given, err = b.sign(ctx, box, l, ask, g)
		case g.User != "":
			err = fault.New(fault.Denied, "the key of grant %s does not leave the broker", g.Name)
		default:
			given, err = b.give(ctx, box, l, ask, g)
		}
		if given {
			return
		}
		if now, perr := b.registry.permit(box, l, ask, b.catalog.now()); perr != nil || now != g {
			g, err = now, perr
		}
	}
	if err == nil {
		err = fault.New(fault.Unavailable, "secret %s changes too often", g.Secret).WithHint("try again")
	}
	_ = l.Refuse(ask, err)
}

// give reads the value of a grant and sends it. It reports whether the question is answered.
func (b *broker) give(ctx context.Context, box *box, l *line.Server, ask line.Ask, g *granted) (bool, error) {
	v, err := b.leases.value(ctx, g)
	if err != nil {
		return false, err
	}
	defer v.Close()
	if sshkey.IsValue(v.Bytes()) {
		return false, fault.New(fault.Denied, "secret %s is a private key, which does not leave the broker", g.Secret).
			WithHint("give a grant for SSH")
	}
	version, err := b.catalog.version(ctx, v.Bytes())
	if err != nil {
		return false, err
	}
	return b.send(box, l, ask, g, line.Value{Bytes: v.Bytes(), Version: version}, v.Until)
}

// send answers a question with a value that ends at some time, or does not end.
func (b *broker) send(
	box *box, l *line.Server, ask line.Ask, g *granted, out line.Value, until time.Time,
) (bool, error) {
	out.Until = b.catalog.now().Add(maxLife)
	for _, end := range []time.Time{g.Until, until} {
		if !end.IsZero() && end.Before(out.Until) {
			out.Until = end
		}
	}
	given, err := l.Give(ask, out, &b.registry.mu, func() bool { return box.current(l, g) })
	return given || err != nil, nil
}

// register registers the grants of a sandbox.
func (b *broker) register(ctx context.Context, r client.Registration) error {
	gone, err := b.registry.register(r)
	if err != nil {
		return err
	}
	b.hold(r.Sandbox, true)
	b.end(ctx, gone)
	return nil
}

// withdraw removes the registration of a sandbox.
func (b *broker) withdraw(ctx context.Context, sandbox string) {
	gone := b.registry.withdraw(sandbox)
	b.hold(sandbox, false)
	b.end(ctx, gone)
}

// hold keeps the broker running while a sandbox is registered.
func (b *broker) hold(sandbox string, registered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	done := b.busy[sandbox]
	switch {
	case registered && done == nil:
		b.busy[sandbox] = b.idle.enter()
	case !registered && done != nil:
		delete(b.busy, sandbox)
		done()
	}
}

// end revokes the leases of grants, and waits for that, but not for a server that does not answer.
func (b *broker) end(ctx context.Context, gone []*granted) {
	if len(gone) == 0 {
		return
	}
	done, ended := b.idle.enter(), make(chan struct{})
	go func() {
		defer done()
		defer close(ended)
		var all sync.WaitGroup
		for _, g := range gone {
			all.Go(func() { b.leases.end(context.WithoutCancel(ctx), g) })
		}
		all.Wait()
	}()
	late := time.NewTimer(endPatience)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
	case <-ctx.Done():
	}
}

// set stores a secret. Gates get its new value with their next request.
func (b *broker) set(ctx context.Context, name string, r client.SetRequest) (client.Secret, error) {
	s, err := b.catalog.set(ctx, name, r)
	if err != nil {
		return client.Secret{}, err
	}
	b.end(ctx, b.registry.rotate(name))
	_, s.Grants = b.registry.users(name)
	return s, nil
}

// remove removes a secret, unless a grant of it is registered.
func (b *broker) remove(ctx context.Context, name string, force bool) error {
	if users, _ := b.registry.users(name); len(users) > 0 && !force {
		return fault.New(fault.Conflict, "sandbox %s has a grant of secret %s", users[0], name).
			WithHint("revoke it first, or remove the secret in any case: coppice secret rm --force %s", name)
	}
	if err := b.catalog.remove(ctx, name); err != nil {
		return err
	}
	b.end(ctx, b.registry.rotate(name))
	return nil
}

// list describes all secrets.
func (b *broker) list(ctx context.Context) ([]client.Secret, error) {
	all, err := b.catalog.list(ctx)
	for i, s := range all {
		_, all[i].Grants = b.registry.users(s.Name)
	}
	return all, err
}

// status describes this process.
func (b *broker) status() client.Status { return client.Status{Boot: b.boot, PID: os.Getpid()} }

// close withdraws everything, and waits until leases are revoked or written down.
func (b *broker) close(ctx context.Context) {
	for _, sandbox := range b.registry.sandboxes() {
		b.withdraw(ctx, sandbox)
	}
	b.idle.wait()
	b.catalog.close()
}
