package httpapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Protocol is the name of exec streams in the Upgrade header.
const Protocol = "coppice-frames"

// The first frame of an upgraded connection must come within this time.
const firstFrame = 30 * time.Second

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n"

// exec upgrades the connection and hands its frames to the engine. Errors after
// the upgrade are Failed frames.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), Protocol) {
		w.Header().Set("Upgrade", Protocol)
		w.Header().Set("Connection", "Upgrade")
		b, _ := json.Marshal(wire.Problem{Type: "about:blank", Title: http.StatusText(http.StatusUpgradeRequired),
			Status: http.StatusUpgradeRequired, Detail: "exec is a stream of frames", Kind: string(fault.Invalid),
			Hint: "send the header Upgrade: " + Protocol})
		send(w, http.StatusUpgradeRequired, "application/problem+json", b)
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.fail(w, r, fault.Wrap(err, "upgrade the connection"))
		return
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, switching); err != nil {
		return
	}
	st := &duplex{Conn: conn, r: buf.Reader}
	exit, err := s.run(st, r)
	switch {
	case errors.Is(err, errGone):
	case err != nil && s.opt.Base.Err() != nil:
		// The daemon stops and the command runs on: the client sees a lost
		// connection, and attaches again to the next daemon.
	case err != nil:
		_ = wire.WriteJSON(conn, wire.FrameFailed, s.wireError(r, err)) // the client may be gone
	default:
		_ = wire.WriteJSON(conn, wire.FrameExit, exit) // the client may be gone; it can attach again
	}
}

func (s *Server) run(st *duplex, r *http.Request) (wire.Exit, error) {
	_ = st.SetReadDeadline(time.Now().Add(firstFrame))
	t, payload, err := wire.ReadFrame(st, nil)
	if err != nil {
		return wire.Exit{}, errGone
	}
	_ = st.SetReadDeadline(time.Time{})
	var req wire.ExecRequest
	if t != wire.FrameRequest {
		return wire.Exit{}, fault.New(fault.Invalid, "the first frame has type %d, and not the request", t)
	}
	if err := json.Unmarshal(payload, &req); err != nil {
		return wire.Exit{}, fault.New(fault.Invalid, "the request is not the JSON that is wanted").Because(err)
	}
	if req.Attach == "" && len(req.Cmd) == 0 {
		return wire.Exit{}, fault.New(fault.Invalid, "exec without a command").WithHint("give it as \"cmd\", a list of words")
	}
	return s.opt.Engine.Exec(s.opt.Base, r.PathValue("name"), req, st)
}

// duplex is a hijacked connection whose first bytes may lie in a buffer.
type duplex struct {
	net.Conn
	r *bufio.Reader
}

func (d *duplex) Read(p []byte) (int, error) { return d.r.Read(p) }
