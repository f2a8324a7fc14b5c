package inspect

import (
	"net"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2/hpack"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// watched is an HTTP/2 connection from the sandbox, which net/http serves. Requests that net/http itself refuses never
// reach ServeHTTP; watched recognizes them:
//
//	RST_STREAM  with an error that no exchange ends with: the request of its stream
//	GOAWAY      with an error: the request whose head was being read, if there was one
//	400, 431    for a head that is too long, or has headers that only HTTP/1 allows
//	body        that ends before its Content-Length
//
// It parses only what is recorded of a request, and reports a denial before it passes on the bytes in question. A
// malformed frame ends the connection.
type watched struct {
	net.Conn
	host func(authority string) policy.Host
	deny func(Request, string)

	mu      sync.Mutex // guards the fields below
	in, out frames
	preface int // bytes of the preface received
	hpack   *hpack.Decoder
	reading *head2 // the head that is being read; nil between heads, and with trailers
	open    uint32 // the stream of an unfinished head or trailers; 0 is none
	highest uint32 // highest stream
	heads   map[uint32]*head2
	pending []refused2
	err     error // of all further reads
}

// head2 is an HTTP/2 request that has not been answered yet.
type head2 struct {
	method, authority, path string // truncated if long
	size                    int    // as SETTINGS_MAX_HEADER_LIST_SIZE counts it
	tes                     int
	length, got             int64  // bytes of the body: Content-Length, -1 without one, and those received
	whole                   bool   // nothing more follows
	why                     string // why net/http will refuse it
	told                    bool
}

// refused2 is a denial that has not been reported yet.
type refused2 struct {
	q   Request
	why string
}

// Reasons to deny HTTP/2 requests, besides the errors of framing.
const (
	errPreface    framingError = "the connection does not start with the HTTP/2 preface, although HTTP/2 was negotiated"
	errFrames     framingError = "malformed HTTP/2 frame"
	errHPACK      framingError = "the compressed headers of a request are malformed"
	errMany       framingError = "the sandbox has too many open requests on one connection"
	errConnection              = "the request has connection headers, which HTTP/2 does not allow"
	errShort                   = "the body of the request is shorter than its Content-Length"
	errStream                  = "the HTTP/2 stream was reset: "
	errAway                    = "the HTTP/2 connection was closed: "
)

const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

func newWatched(c net.Conn, host func(string) policy.Host, deny func(Request, string)) *watched {
	w := &watched{Conn: c, host: host, deny: deny, heads: map[uint32]*head2{}}
	w.hpack = hpack.NewDecoder(4096, w.field) // the default, which our SETTINGS do not change
	w.hpack.SetMaxStringLength(limit.HeadBytes)
	return w
}

// Read reads from the sandbox, and reports the requests that net/http will refuse.
func (w *watched) Read(p []byte) (int, error) {
	w.mu.Lock()
	err := w.err
	w.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := w.Conn.Read(p)
	if bad := w.look(func() error { return w.received(p[:n]) }); bad != nil {
		return 0, bad
	}
	return n, err
}

// Write writes to the sandbox, and reports the requests that net/http refuses with the frames in p.
func (w *watched) Write(p []byte) (int, error) {
	if bad := w.look(func() error { return w.out.feed(p, w.sent) }); bad != nil {
		return 0, bad
	}
	return w.Conn.Write(p)
}

// look calls at with the lock held, and then reports the queued denials without it. An error of at is reported as a
// denial too, and ends further reads.
func (w *watched) look(at func() error) error {
	w.mu.Lock()
	err := at()
	if err != nil {
		w.err = err
		w.refuse(w.reading, err.Error())
	}
	pending := w.pending
	w.pending = nil
	w.mu.Unlock()
	for _, r := range pending {
		w.deny(r.q, r.why)
	}
	return err
}

// refuse queues a denial of h, unless one was queued before; nil is an unknown request.
func (w *watched) refuse(h *head2, why string) {
	var q Request
	if h != nil {
		if h.told {
			return
		}
		h.told = true
		q.Host = w.host(h.authority)
		q.Method = h.method
		q.Path, q.Query, _ = strings.Cut(h.path, "?")
	}
	w.pending = append(w.pending, refused2{q, why})
}

func (w *watched) received(b []byte) error {
	for len(b) > 0 && w.preface < len(clientPreface) {
		if b[0] != clientPreface[w.preface] {
			return errPreface
		}
		w.preface++
		b = b[1:]
	}
	return w.in.feed(b, w.handleFrame)
}

// handleFrame handles a frame from the sandbox.
func (w *watched) handleFrame(f frame2) error {
	if (w.open != 0) != (f.kind == frameContinuation) || w.open != 0 && w.open != f.stream {
		return errFrames
	}
	switch f.kind {
	case frameHeaders:
		if err := w.begin(f); err != nil {
			return err
		}
		return w.decode(f)
	case frameContinuation:
		return w.decode(f)
	case frameData:
		if h := w.heads[f.stream]; h != nil && !h.whole {
			h.got += f.data()
			w.ends(f)
		}
	case frameReset:
		delete(w.heads, f.stream)
	}
	return nil
}

// begin handles the start of a head, or of trailers.
func (w *watched) begin(f frame2) error {
	w.reading = nil
	if f.stream <= w.highest {
		w.ends(f)
		return nil
	}
	if len(w.heads) >= limit.UnansweredHeads {
		return errMany
	}
	w.highest = f.stream
	w.reading = &head2{length: -1, whole: f.has(endStream)}
	w.heads[f.stream] = w.reading
	return nil
}

// decode decodes a fragment of a head, or of trailers.
func (w *watched) decode(f frame2) error {
	b, ok := f.fragment()
	if !ok {
		return errFrames
	}
	if _, err := w.hpack.Write(b); err != nil {
		return errHPACK
	}
	w.open = f.stream
	if !f.has(endHeaders) {
		return nil
	}
	if err := w.hpack.Close(); err != nil {
		return errHPACK
	}
	if h := w.reading; h != nil && h.why != "" {
		w.refuse(h, h.why)
	}
	w.open, w.reading = 0, nil
	return nil
}

// field handles one header.
func (w *watched) field(f hpack.HeaderField) {
	h := w.reading
	if h == nil {
		return
	}
	switch f.Name {
	case ":method":
		h.method = known(h.method, f.Value, limit.ToldName)
	case ":authority":
		h.authority = known(h.authority, f.Value, limit.ToldName)
	case ":path":
		h.path = known(h.path, f.Value, limit.ToldPath)
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		h.why = errConnection
	case "te":
		if h.tes++; h.tes > 1 || f.Value != "trailers" && f.Value != "" {
			h.why = errConnection
		}
	case "content-length":
		if n, err := strconv.ParseInt(f.Value, 10, 64); err == nil && h.length < 0 {
			h.length = n
		}
	}
	if h.size += int(f.Size()); h.size > head2List {
		h.why = string(errLong)
	}
}

// known returns the first value of a pseudo-header, truncated as it is recorded.
func known(first, value string, most int) string {
	if first != "" {
		return first
	}
	return value[:min(len(value), most)]
}

// ends handles the end of a body.
func (w *watched) ends(f frame2) {
	h := w.heads[f.stream]
	if h == nil || h.whole || !f.has(endStream) {
		return
	}
	h.whole = true
	if h.got < h.length {
		w.refuse(h, errShort)
	}
}

// sent handles a frame from net/http.
func (w *watched) sent(f frame2) error {
	h := w.heads[f.stream]
	switch f.kind {
	case frameData, frameHeaders:
		if f.has(endStream) {
			delete(w.heads, f.stream)
		}
	case frameReset:
		delete(w.heads, f.stream)
		switch code := f.code(0); {
		case code == codeNone, code == codeInternal: // after an answer, or after an exchange that has reported why it ended
		case code == codeClosed && h == nil: // frames after an answer are not a request
		default:
			w.refuse(h, errStream+codeName(code))
		}
	case frameGoAway:
		if code := f.code(4); code != codeNone {
			w.refuse(w.reading, errAway+codeName(code))
		}
	}
	return nil
}
