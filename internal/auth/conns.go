package auth

import (
	"container/list"
	"crypto/tls"
	"io"
	"net"
	"sync"
)

// crowd is a listener with a maximum number of connections. Beyond it, the oldest connection that has not been
// authenticated yet is closed, so that strangers cannot keep out authenticated clients; if all are authenticated, the
// new one is closed.
type crowd struct {
	net.Listener
	most int

	mu      sync.Mutex
	n       int       // guarded by mu
	unknown list.List // of *conn; oldest first; guarded by mu
}

// Accept returns the next connection.
func (l *crowd) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(c); c != nil {
			return c, nil
		}
		c.Close()
	}
}

func (l *crowd) admit(c net.Conn) *conn {
	l.mu.Lock()
	var out *conn
	if l.n >= l.most {
		e := l.unknown.Front()
		if e == nil {
			l.mu.Unlock()
			return nil
		}
		out = l.unknown.Remove(e).(*conn)
		out.place = nil
	}
	in := &conn{Conn: c, of: l}
	in.place = l.unknown.PushBack(in)
	l.n++
	l.mu.Unlock()
	if out != nil {
		_ = out.Close() // it is not authenticated
	}
	return in
}

// conn is a connection of a crowd.
type conn struct {
	net.Conn
	of    *crowd
	once  sync.Once
	place *list.Element // in of.unknown; nil: known; guarded by of.mu
}

// known marks the connection as authenticated.
func (c *conn) known() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.forget()
}

func (c *conn) forget() {
	if c.place != nil {
		c.of.unknown.Remove(c.place)
		c.place = nil
	}
}

// Close closes the connection. It may be called again.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		c.of.mu.Lock()
		c.forget()
		c.of.n--
		c.of.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}

// ReadFrom lets the kernel copy files to the connection.
func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// connOf returns the *conn that wraps c or is wrapped by it.
func connOf(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, _ := c.(*conn)
	return own
}
