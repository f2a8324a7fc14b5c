package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	bound "github.com/coppice-dev/coppice/internal/limit"
)

// PortProtocol is the name of a connection to a port in the Upgrade header: raw bytes in both directions, each of
// which can be closed separately.
const PortProtocol = "coppice-port"

// Previews makes links to ports.
type Previews interface {
	// Preview creates a link that is valid for ttl; 0 is the default duration.
	Preview(ctx context.Context, name string, port int, ttl time.Duration) (wire.PreviewResult, error)
}

// AtPort is the input of an operation on one port.
type AtPort struct {
	Named
	Port int `path:"port" doc:"1 to 65535"`
}

func (in *AtPort) check() error {
	if in.Port < 1 || in.Port > 0xffff {
		return fault.New(fault.Invalid, "invalid port %d", in.Port).WithHint("ports are 1 to 65535")
	}
	return nil
}

// addPorts adds the operations on the ports of a sandbox.
func (s *Server) addPorts(api huma.API) {
	const at = box + "/ports"
	plain(s, api,
		operation("GET", at, "listPorts", "List the TCP ports that processes of a sandbox listen on", tagExec, auth.Read),
		func(ctx context.Context, in *Named) (wire.PortsResult, error) {
			return s.opt.PortDialer.Ports(ctx, in.Name)
		})
	plain(s, api,
		operation("POST", at+"/{port}/preview", "previewPort", "Create a signed, expiring link to a "+
			"port", tagExec, auth.Operate),
		s.preview)

	op := streams(
		operation("POST", at+"/{port}/connect", "connectPort",
			"Connect to a port, by Upgrade: "+PortProtocol+": raw bytes in both directions", tagExec, auth.Operate))
	answers(&op, http.StatusSwitchingProtocols, "", "connected", nil)
	answers(&op, http.StatusUpgradeRequired, asProblem, http.StatusText(http.StatusUpgradeRequired),
		schemaOf[problemDocument](api))
	raw(s, api, op, s.connect)
}

func (s *Server) preview(ctx context.Context, in *struct {
	AtPort
	Body *wire.PreviewRequest
}) (wire.PreviewResult, error) {
	if err := in.check(); err != nil {
		return wire.PreviewResult{}, err
	}
	if s.opt.Previews == nil {
		return wire.PreviewResult{}, fault.New(fault.Unsupported, "this daemon cannot create links to ports")
	}
	req := orZero(in.Body)
	if !bound.InLife(req.TTLMS) {
		return wire.PreviewResult{}, fault.New(fault.Invalid, "invalid ttl_ms %d: out of range", req.TTLMS).
			WithHint("send \"ttl_ms\" as a number of milliseconds; 0 is an hour")
	}
	return s.opt.Previews.Preview(ctx, in.Name, in.Port, time.Duration(req.TTLMS)*time.Millisecond)
}

// connect upgrades the connection to a raw connection to a port, once the port has been dialed.
func (s *Server) connect(in *AtPort, w http.ResponseWriter, r *http.Request) {
	if err := in.check(); err != nil {
		s.fail(w, r, err)
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), PortProtocol) {
		w.Header().Set("Upgrade", PortProtocol)
		w.Header().Set("Connection", "Upgrade")
		b, _ := json.Marshal(wire.Problem{Type: "about:blank", Title: http.StatusText(http.StatusUpgradeRequired),
			Status: http.StatusUpgradeRequired, Detail: "connecting to a port requires an upgrade", Kind: string(fault.Invalid),
			Hint: "send the header Upgrade: " + PortProtocol})
		send(w, http.StatusUpgradeRequired, "application/problem+json", b)
		return
	}
	inner, err := s.dialPort(r.Context(), in)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer inner.Close()
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.fail(w, r, fault.Wrap(err, "upgrade the connection"))
		return
	}
	defer conn.Close()
	if _, err := io.WriteString(conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+PortProtocol+"\r\n\r\n"); err != nil {
		return
	}
	s.join(conn, buf.Reader, inner)
}

// dialPort connects to a port.
func (s *Server) dialPort(ctx context.Context, in *AtPort) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.untilTheEnd(cancel)()
	return s.opt.PortDialer.DialPort(ctx, in.Name, in.Port)
}

// halfIdle is how long a port may be silent after the client has closed its half. The client may have
// disconnected completely, which looks the same.
const halfIdle = 10 * time.Minute

// join copies bytes in both directions between a client and a port, until both directions have ended, one has
// failed, or the daemon stops. r may hold the first bytes from the client. join closes both connections.
func (s *Server) join(client net.Conn, r *bufio.Reader, inner net.Conn) {
	end := func() {
		client.Close()
		inner.Close()
	}
	defer end()
	unhook := context.AfterFunc(s.opt.Base, end)
	defer unhook()
	var half atomic.Bool // the client has closed its half
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.CopyN(inner, r, int64(r.Buffered()))
		if err == nil {
			_, err = io.Copy(inner, client)
		}
		half.Store(true)
		_ = inner.SetReadDeadline(time.Now().Add(halfIdle)) // fails only for a closed connection
		if !finish(inner, err) {
			end()
		}
	}()
	if !finish(client, copyOut(client, inner, &half)) {
		end()
	}
	<-done
}

// copyOut copies the output of a port to the client.
func copyOut(client io.Writer, inner net.Conn, half *atomic.Bool) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := inner.Read(buf)
		if n > 0 {
			if _, err := client.Write(buf[:n]); err != nil {
				return err
			}
			if half.Load() {
				_ = inner.SetReadDeadline(time.Now().Add(halfIdle)) // fails only for a closed connection
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// finish closes one direction of a connection after all bytes were written. It returns false if the whole
// connection must be closed.
func finish(to net.Conn, err error) bool {
	half, ok := to.(interface{ CloseWrite() error })
	return err == nil && ok && half.CloseWrite() == nil
}
