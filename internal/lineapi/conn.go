package lineapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"time"

	"github.com/coppice-dev/coppice/internal/admission"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// conn is one connection. Only its own goroutine reads.
type conn struct {
	*Server
	net   net.Conn
	lines *lines
	long  bool // the connection holds a place in Guard.long
	peers Peers
}

// converse serves a connection until the client disconnects.
func (s *Server) converse(nc net.Conn, peers Peers) {
	c := &conn{Server: s, net: nc, lines: newLines(nc, s.limit), peers: peers}
	if s.opt.Guard != nil {
		c.lines.long = c.beginLong
	}
	defer s.end(nc)
	defer c.endLong()
	for {
		line, err := c.lines.next()
		switch {
		case errors.Is(err, errTooLong):
			c.endLong()
			err = c.write(errorFrame(fault.New(fault.Invalid, "skipped a line of more than %d bytes", s.limit)))
		case err == nil:
			err = c.turn(line)
			c.endLong()
		case errors.Is(err, errSlow), errors.Is(err, os.ErrDeadlineExceeded):
			_ = c.write(errorFrame(fault.New(fault.Timeout, "a line took longer than %s", longTime))) // the last one
		}
		if err != nil {
			return
		}
	}
}

// turn answers one line. Its error is that of the connection.
func (c *conn) turn(line []byte) error {
	if c.pace == nil {
		frame, _ := c.carryOut(line)
		return c.write(frame)
	}
	if !c.pace.enter(c.ctx) {
		return errClosed
	}
	begun := time.Now()
	frame, least := c.carryOut(line)
	took := time.Since(begun)
	var err error
	if len(frame) > bigAnswer {
		err = c.write(frame)
	}
	c.pace.leave(took, least)
	if len(frame) <= bigAnswer {
		err = c.write(frame)
	}
	return err
}

// carryOut returns the last frame of the answer to a line, and the minimum rest of the turn after it.
func (c *conn) carryOut(line []byte) (frame []byte, least time.Duration) {
	o, err := c.find(line)
	var v any
	if err == nil {
		if o.snapshot {
			least = snapshotRest
		}
		v, err = c.perform(o, line)
	}
	if err == nil {
		if frame, err = okFrame(v); err == nil {
			return frame, least
		}
	}
	return errorFrame(c.presentable(err)), least
}

// perform carries out an operation. A costly one first waits for memory of the daemon, until its client
// disconnects.
func (c *conn) perform(o op, line []byte) (any, error) {
	if c.opt.Admission == nil || !o.costly {
		return o.run(c, line)
	}
	cost := int64(limit.CostLarge)
	if c.opt.Guard != nil { // its answers are short
		cost = limit.CostSmall
	}
	ctx, stop := c.whileThere()
	leave, err := c.opt.Admission.Enter(ctx,
		admission.Request{What: o.name, Cost: cost, Parties: []admission.Party{admission.Sandbox(c.opt.Sandbox)}})
	stop()
	if err != nil {
		return nil, err
	}
	defer leave()
	return o.run(c, line)
}

// presentable hides the details of internal errors from untrusted clients, and logs them.
func (c *conn) presentable(err error) error {
	if fault.KindOf(err) != fault.Internal {
		return err
	}
	c.opt.Log.Error("internal error", "sandbox", c.opt.Sandbox, "err", err)
	if c.opt.Guard != nil {
		return fault.New(fault.Internal, "internal error").WithHint("see the daemon's log")
	}
	return err
}

// write sends a whole frame. An untrusted client that does not read it in time is disconnected.
func (c *conn) write(frame []byte) error {
	if c.opt.Guard != nil {
		if err := c.net.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
			return err
		}
	}
	_, err := c.net.Write(frame)
	return err
}

// beginLong waits for a place for a long line, and sets its deadline.
func (c *conn) beginLong() error {
	select {
	case c.opt.Guard.long <- struct{}{}:
	case <-c.ctx.Done():
		return errClosed
	}
	c.long = true
	return c.net.SetReadDeadline(time.Now().Add(longTime))
}

// endLong frees the place of a long line after the answer.
func (c *conn) endLong() {
	if !c.long {
		return
	}
	c.long = false
	c.lines.buf = nil
	_ = c.net.SetReadDeadline(time.Time{}) // fails only for a closed connection
	<-c.opt.Guard.long
}

// okFrame returns the last line of an answer: "ok":true followed by the fields of v, an object.
func okFrame(v any) ([]byte, error) {
	b, err := encode(v)
	if err != nil {
		return nil, fault.Wrap(err, "encode the response")
	}
	if string(b) == "{}\n" || string(b) == "null\n" {
		return []byte("{\"ok\":true}\n"), nil
	}
	return append([]byte(`{"ok":true,`), b[1:]...), nil
}

// errorFrame returns the last line of a failed answer.
func errorFrame(err error) []byte {
	b, e := encode(failure{err.Error(), string(fault.KindOf(err)), fault.HintOf(err)})
	if e != nil {
		return []byte("{\"error\":\"internal error\"}\n")
	}
	return b
}

type failure struct {
	Error string `json:"error"`
	Kind  string `json:"kind,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// encode encodes v as one line.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

func errCrowd(most int) error {
	return fault.New(fault.Unavailable, "too many connections: %d", most).
		WithHint("close one, or send several requests over one")
}
