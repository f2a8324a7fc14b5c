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

// watched is a connection of HTTP/2 to the sandbox, of which net/http makes requests.
// What net/http refuses by itself never comes to ServeHTTP; it is seen here:
//
//	RST_STREAM  with an error that no exchange ends with: what its stream asked for
//	GOAWAY      with an error: the request whose head was being read, if there was one
//	400, 431    for a head that says so: it is too long, or has headers of HTTP/1
//	body        that ends before its Content-Length
//
// Requests are read for what is recorded of them, and denials are reported before the bytes
// they are about go on. What is not understood here ends the connection.
type watched struct {
	net.Conn
	host func(authority string) policy.Host
	deny func(Request, string)

	mu      sync.Mutex // guards what follows
	in, out frames
	preface int // bytes of it that came
	hpack   *hpack.Decoder
	reading *head2 // the head that is being read; nil between heads, and with trailers
	open    uint32 // the stream of a head or of trailers that goes on; 0 is none
	highest uint32 // stream
	heads   map[uint32]*head2
	pending []refused2
	err     error // of all that is read from now on
}

// head2 is a request by HTTP/2 that was not answered yet.
type head2 struct {
	method, authority, path string // in part, where they are long
	size                    int    // as SETTINGS_MAX_HEADER_LIST_SIZE counts it
	tes                     int
	length, got             int64  // bytes of the body: those of Content-Length, -1 is none, and those that came
	whole                   bool   // no more than the head comes, or nothing more
	why                     string // net/http answers with a refusal
	told                    bool
}

// refused2 is a denial that is not reported yet.
type refused2 struct {
	q   Request
	why string
}

// What is denied of HTTP/2, besides the errors of framing.
const (
	errPreface    framingError = "the connection does not begin as HTTP/2 does, which was agreed on"
	errFrames     framingError = "a frame of HTTP/2 is malformed"
	errHPACK      framingError = "the headers of a request are compressed in a way that is not understood"
	errMany       framingError = "the sandbox has too many requests that are not answered on one connection"
	errConnection              = "the request has headers of a connection, which HTTP/2 does not have"
	errShort                   = "the body of the request is shorter than its Content-Length"
	errStream                  = "HTTP/2 refuses its stream with "
	errAway                    = "HTTP/2 ends the connection with "
)

const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

func newWatched(c net.Conn, host func(string) policy.Host, deny func(Request, string)) *watched {
	w := &watched{Conn: c, host: host, deny: deny, heads: map[uint32]*head2{}}
	w.hpack = hpack.NewDecoder(4096, w.field) // the size that holds where SETTINGS name none, as here
	w.hpack.SetMaxStringLength(limit.HeadBytes)
	return w
}

// Read gives what the sandbox sends, and reports what will be refused.
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

// Write sends what net/http writes, and reports what it refuses by that.
func (w *watched) Write(p []byte) (int, error) {
	if bad := w.look(func() error { return w.out.feed(p, w.sent) }); bad != nil {
		return 0, bad
	}
	return w.Conn.Write(p)
}

// look looks at bytes with the lock, and reports denials without it. An error is a denial,
// and ends what is read.
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

// refuse notes a denial of h, once; nil is a request of which nothing is known.
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
	return w.in.feed(b, w.took)
}

// took takes a frame of the sandbox's.
func (w *watched) took(f frame2) error {
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

// begin takes the begin of a head, or of trailers.
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

// decode reads more of a head, or of trailers.
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

// field reads one header.
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

// known gives the first value of a pseudo-header, as much as is recorded of it.
func known(first, value string, most int) string {
	if first != "" {
		return first
	}
	return value[:min(len(value), most)]
}

// ends takes the end of a body.
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

// sent takes a frame of net/http's.
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
		case code == codeNone, code == codeInternal: // after an answer; or the exchange ended, and reported why
		case code == codeClosed && h == nil: // what comes after an answer is no request
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
