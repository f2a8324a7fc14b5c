package line

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

// hintStart says how to start a broker.
const hintStart = "start it, and see whether the secret can be read: coppice secret ls"

// unreachable is the error of a broker that does not answer.
func unreachable(err error) error {
	return fault.New(fault.Unavailable, "cannot reach the broker of secrets").Because(err).WithHint("%s", hintStart)
}

// Dial connects to the broker's socket at path, says the ticket, and returns the connected socket once the broker has
// accepted it. The caller closes it, and may pass it to another process. Dial returns Unavailable if no broker answers
// within patience, and Denied if the broker does not know the ticket.
func Dial(path string, ticket []byte, patience time.Duration) (*os.File, error) {
	conn, err := unixsock.DialPackets(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return nil, unreachable(err)
	}
	defer conn.Close()
	buffer := make([]byte, maxText)
	var m message
	if err = conn.SetDeadline(time.Now().Add(patience)); err == nil {
		err = send(conn, message{Ticket: ticket}, nil)
	}
	if err == nil {
		m, _, err = receive(conn, buffer)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	switch {
	case err != nil:
		return nil, unreachable(err)
	case m.Not != "":
		return nil, m.refusal()
	case !m.OK:
		return nil, unreachable(errMessage())
	}
	f, err := conn.File()
	if err != nil {
		return nil, unreachable(err)
	}
	return f, nil
}

// refusal returns the error of a Not.
func (m message) refusal() error {
	kind := fault.Denied
	if m.Retry > 0 {
		kind = fault.Unavailable
	}
	return &fault.Error{Kind: kind, Message: m.Why, Hint: m.Hint}
}

// maxPending is the maximum number of gets without an answer. As many fit into the buffer of the socket, so that a
// write does not wait.
const maxPending = 64

// Client is the gate's end of a line. Its methods are safe for concurrent use.
type Client struct {
	conn    *net.UnixConn // nil: it is broken from the start
	dropped func(grant string)
	slots   chan struct{} // one element for each pending get
	ended   chan struct{} // closed when the reader ends

	mu      sync.Mutex
	last    uint64             // id of a get
	pending map[uint64]pending // by id
	drops   map[string]uint64  // by grant
	closed  bool
}

type pending struct {
	grant  string
	answer chan answer // has room for one
}

type answer struct {
	value Value
	err   error
}

// NewClient returns the client of a connection from Dial, which it owns. It starts one goroutine, which calls dropped
// for each grant whose value must be forgotten, in the order of the broker's messages, and with "" as the last call if
// the line broke, after which every Get fails. dropped must not call Close.
func NewClient(conn *os.File, dropped func(grant string)) *Client {
	c := &Client{dropped: dropped, slots: make(chan struct{}, maxPending), ended: make(chan struct{}),
		pending: map[uint64]pending{}, drops: map[string]uint64{}}
	if own, err := net.FileConn(conn); err == nil {
		c.conn, _ = own.(*net.UnixConn)
	}
	conn.Close()
	go c.read()
	return c
}

// read receives messages until the line breaks or Close closes it.
func (c *Client) read() {
	defer close(c.ended)
	buffer := make([]byte, maxText)
	for c.conn != nil {
		m, value, err := receive(c.conn, buffer)
		if err == nil {
			err = c.heard(m, value)
		}
		clear(buffer)
		if err != nil {
			c.conn.Close()
			break
		}
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if !closed {
		c.dropped("")
	}
}

// heard handles a message of the broker.
func (c *Client) heard(m message, value []byte) error {
	if m.Drop != "" {
		c.mu.Lock()
		c.drops[m.Drop]++
		c.mu.Unlock()
		c.dropped(m.Drop)
		return nil
	}
	if m.Is == "" && m.Not == "" {
		return errMessage()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p, waits := c.pending[m.ID]
	switch {
	case !waits: // its context has ended
	case p.grant != m.Is+m.Not:
		return errMessage()
	case m.Not != "":
		p.answer <- answer{err: m.refusal()}
	default:
		p.answer <- answer{value: Value{Bytes: append([]byte(nil), value...), Until: m.Until, Version: m.Version,
			drops: c.drops[m.Is]}}
	}
	delete(c.pending, m.ID)
	return nil
}

// Get asks for the value of a grant, for a request to a host. It returns Denied if the broker refuses, and Unavailable
// if the store of the secret cannot be reached or the line broke; both have a hint. The caller closes the Value.
func (c *Client) Get(ctx context.Context, grant, host, method, path string) (Value, error) {
	return c.ask(ctx, grant, message{Get: grant, Host: host, Method: method, Path: path}, nil)
}

// Sign asks for a signature of data by the key of a grant for SSH, or without data for its public key, as Get does for
// a value. Both are in the wire format of SSH.
func (c *Client) Sign(ctx context.Context, grant, host, method, path string, data []byte) ([]byte, error) {
	if len(data) > maxSign {
		return nil, fault.New(fault.TooLarge, "the data to sign is longer than %d bytes", maxSign)
	}
	v, err := c.ask(ctx, grant, message{Sign: grant, Host: host, Method: method, Path: path}, data)
	return v.Bytes, err
}

// ask sends a question with data, and waits for its answer.
func (c *Client) ask(ctx context.Context, grant string, m message, data []byte) (Value, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ended:
		return Value{}, unreachable(nil)
	case <-ctx.Done():
		return Value{}, fault.Wrap(ctx.Err(), "wait for the broker of secrets")
	}
	id, p := c.expect(grant)
	m.ID, m.Method, m.Path = id, cut(m.Method, maxName), cut(m.Path, maxPath)
	err := c.send(grant, m, data)
	if err != nil {
		c.forget(id, p)
		return Value{}, err
	}
	select {
	case a := <-p.answer:
		return a.value, a.err
	case <-c.ended:
		c.forget(id, p)
		return Value{}, unreachable(nil)
	case <-ctx.Done():
		c.forget(id, p)
		return Value{}, fault.Wrap(ctx.Err(), "wait for the broker of secrets")
	}
}

// expect makes room for the answer to a new get.
func (c *Client) expect(grant string) (uint64, pending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	p := pending{grant, make(chan answer, 1)}
	c.pending[c.last] = p
	return c.last, p
}

// forget wipes the answer to a get that nothing waits for, also if it comes later.
func (c *Client) forget(id uint64, p pending) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	select {
	case a := <-p.answer:
		a.value.Close()
	default:
	}
}

// send sends a question about a grant.
func (c *Client) send(grant string, m message, data []byte) error {
	if err := m.check(data); err != nil {
		return fault.New(fault.Denied, "invalid request for a value of grant %.64q", grant).
			WithHint("use a host name of at most %d bytes", maxHost)
	}
	if c.conn == nil {
		return unreachable(nil)
	}
	if err := send(c.conn, m, data); err != nil {
		return unreachable(err)
	}
	return nil
}

// cut returns the first n bytes of s at most, as valid UTF-8.
func cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// Fresh reports whether no drop of the grant was received since v was. To keep values without a race, a caller holds
// one lock while it calls Fresh and keeps the value, and takes the same lock in dropped to forget it.
func (c *Client) Fresh(grant string, v Value) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drops[grant] == v.drops
}

// Close closes the connection, and waits for the goroutine. It does not cause a call dropped("").
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
	}
	<-c.ended
}
