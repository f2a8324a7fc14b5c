package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Ports lists the TCP ports that processes of a sandbox listen on. A stopped sandbox has none.
func (c *Client) Ports(ctx context.Context, name string) (wire.PortsResult, error) {
	return get[wire.PortsResult](ctx, c, at(name)+"/ports")
}

// Preview creates a link to a port, for browsers on the daemon's machine.
func (c *Client) Preview(ctx context.Context, name string, port int, ttl time.Duration) (wire.PreviewResult, error) {
	return post[wire.PreviewResult](ctx, c, atPort(name, port)+"/preview", wire.PreviewRequest{TTLMS: ttl.Milliseconds()})
}

// DialPort connects to a TCP port that a process of a sandbox listens on. If none does, the error is KindNotFound. A
// stopped sandbox with a supervised command, which may then listen, is started. The connection can be half-closed
// with its CloseWrite method. ctx applies to connecting only.
func (c *Client) DialPort(ctx context.Context, name string, port int) (net.Conn, error) {
	conn, err := c.opt.Dial(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	inner, err := upgradePort(conn, name, port)
	if !stop() && err == nil {
		err = ctx.Err() // the deadline is set, or about to be
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = unavailable(ctx.Err())
		}
		return nil, err
	}
	return inner, nil
}

func upgradePort(conn net.Conn, name string, port int) (net.Conn, error) {
	_, werr := fmt.Fprintf(conn,
		"POST %s/connect HTTP/1.1\r\nHost: coppice\r\nConnection: Upgrade\r\nUpgrade: coppice-port\r\n\r\n",
		atPort(name, port))
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		return nil, unavailable(errors.Join(werr, err))
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer res.Body.Close()
		return nil, problem(res)
	}
	return &portConn{conn, br}, nil
}

func atPort(name string, port int) string { return at(name) + "/ports/" + strconv.Itoa(port) }

// portConn is a connection whose first bytes may be in a buffer.
type portConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *portConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// CloseWrite closes the sending half of the connection.
func (c *portConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("%T does not support half-close", c.Conn)
	}
	return half.CloseWrite()
}
