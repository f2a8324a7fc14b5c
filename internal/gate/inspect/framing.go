package inspect

import (
	"bytes"
	"net/url"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/limit"
)

// framing checks a client's HTTP/1 as strictly as RFC 9112 permits a server to be, before a more lenient parser reads
// it. Input may be split anywhere. It returns what may be forwarded: a head only when it is complete and unambiguous,
// a body as it arrives. An error ends the connection.
//
//	head    request line, headers, an empty line     at most limit.HeadBytes
//	body    Content-Length bytes, or chunks, or none
//	chunks  size in hexadecimal, CRLF, data, CRLF; then trailers and an empty line
type framing struct {
	state framingState
	line  []byte // a partial head, line of a chunk's size, or trailers
	left  uint64 // bytes of the body or chunk
	heads int    // number of complete heads
}

type framingState uint8

const (
	inHead framingState = iota
	inBody
	inSize    // a line with a chunk's size
	inChunk   // the data of a chunk
	afterData // the CRLF after the data
	inTrailers
	beyond // after the head of a WebSocket request; nothing more is parsed
)

// framingError is why the input of a connection is refused as HTTP.
type framingError string

func (e framingError) Error() string { return string(e) }

const (
	errHead    framingError = "the head of a request is malformed"
	errLong    framingError = "the head of a request is too long"
	errExpect  framingError = "a request has an expectation other than 100-continue"
	errHost    framingError = "a request has no valid Host, or more than one"
	errLengths framingError = "a request has an ambiguous or invalid length"
	errChunk   framingError = "a chunk of a request is malformed"
	errTarget  framingError = "the target of a request is not a path: absolute-form and * are not passed on"
	errEscape  framingError = "the target of the request has characters that must be escaped"
	errConnect framingError = "CONNECT makes a tunnel to anywhere"
	errUpgrade framingError = "Upgrade to anything but a WebSocket is not passed on"
	errH2C     framingError = "HTTP/2 without TLS is not passed on"
)

// feed takes the next bytes and returns what may be forwarded, as a new slice.
func (f *framing) feed(b []byte) (out []byte, err error) {
	for len(b) > 0 {
		var n int
		switch f.state {
		case beyond:
			return append(out, b...), nil
		case inBody, inChunk:
			n = int(min(f.left, uint64(len(b))))
			out = append(out, b[:n]...)
			if f.left -= uint64(n); f.left == 0 {
				if f.state++; f.state == inSize {
					f.state = inHead
				}
			}
		default:
			var whole bool
			if n, whole, err = f.gather(b); err != nil {
				return out, err
			}
			if whole {
				line := f.line
				f.line = nil
				if err = f.judge(line); err != nil {
					return out, err
				}
				out = append(out, line...)
			}
		}
		b = b[n:]
	}
	return out, nil
}

// whole returns the number of complete requests.
func (f *framing) whole() int {
	if f.state == inHead {
		return f.heads
	}
	return f.heads - 1
}

// gather appends bytes of b to line until it is complete: a head or trailers up to the empty line, else one line.
func (f *framing) gather(b []byte) (n int, whole bool, err error) {
	end, most, long := "\r\n", limit.ChunkLine, errChunk
	switch f.state {
	case inHead:
		end, most, long = "\r\n\r\n", limit.HeadBytes, errLong
	case inTrailers:
		end, most = "\r\n\r\n", limit.TrailerBytes
	}
	for n < len(b) {
		c := b[n]
		n++
		f.line = append(f.line, c)
		if len(f.line) > most {
			return n, false, long
		}
		// Each line ends in CRLF, and CR and LF appear nowhere else.
		last := len(f.line) - 1
		if (c == '\n') != (last > 0 && f.line[last-1] == '\r') {
			return n, false, f.malformed()
		}
		if c == '\n' && (bytes.HasSuffix(f.line, []byte(end)) || f.state == inTrailers && len(f.line) == 2) {
			return n, true, nil
		}
	}
	return n, false, nil
}

func (f *framing) malformed() error {
	if f.state == inHead {
		return errHead
	}
	return errChunk
}

// judge parses a complete line, head or trailers, and sets the next state.
func (f *framing) judge(line []byte) error {
	switch f.state {
	case inHead:
		return f.head(string(line))
	case inSize:
		n, err := strconv.ParseUint(string(line[:len(line)-2]), 16, 60)
		if err != nil { // includes chunk extensions
			return errChunk
		}
		f.left, f.state = n, inChunk
		if n == 0 {
			f.state = inTrailers
		}
	case afterData:
		if len(line) != 2 {
			return errChunk
		}
		f.state = inSize
	case inTrailers:
		f.state = inHead
		for l := range strings.SplitSeq(strings.TrimSuffix(string(line), "\r\n"), "\r\n") {
			if l == "" {
				continue
			}
			name, _, err := header(l)
			if err != nil {
				return errChunk
			}
			switch name {
			case "host", "content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te":
				return errChunk
			}
		}
	}
	return nil
}

// head parses the head of a request.
func (f *framing) head(text string) error {
	lines := strings.Split(strings.TrimSuffix(text, "\r\n\r\n"), "\r\n")
	method, rest, _ := strings.Cut(lines[0], " ")
	target, version, ok := strings.Cut(rest, " ")
	old := version == "HTTP/1.0"
	switch {
	case method == "PRI" && target == "*":
		return errH2C
	case !ok || !token(method) || !old && version != "HTTP/1.1":
		return errHead
	case method == "CONNECT":
		return errConnect
	case checkTarget(target) != nil:
		return checkTarget(target)
	case len(lines)-1 > limit.HeadFields:
		return errLong
	}
	var hosts, lengths, codings, upgrades int
	f.left = 0
	for _, l := range lines[1:] {
		name, value, err := header(l)
		if err != nil {
			return err
		}
		switch name {
		case "host":
			if hosts++; strings.Trim(strings.ToLower(value), "abcdefghijklmnopqrstuvwxyz0123456789.-_:[]") != "" {
				return errHost
			}
		case "content-length":
			lengths++
			n, err := strconv.ParseUint(value, 10, 60)
			if err != nil {
				return errLengths
			}
			f.left = n
		case "transfer-encoding":
			codings++
			if !strings.EqualFold(value, "chunked") || old {
				return errLengths
			}
		case "trailer": // trailers must not be headers that frame the request
			if namesFraming(value) {
				return errLengths
			}
		case "expect":
			if !strings.EqualFold(value, "100-continue") {
				return errExpect
			}
		case "http2-settings":
			return errH2C
		case "upgrade":
			upgrades++
			if !strings.EqualFold(value, "websocket") || method != "GET" || old {
				return errUpgrade
			}
		}
	}
	switch {
	case hosts != 1:
		return errHost
	case lengths+codings > 1:
		return errLengths
	case upgrades > 1 || upgrades == 1 && (f.left > 0 || codings > 0):
		return errUpgrade
	}
	f.heads++
	switch {
	case upgrades == 1: // the bytes that follow are not a request, whatever the answer
		f.state = beyond
	case codings == 1:
		f.state = inSize
	case f.left > 0:
		f.state = inBody
	}
	return nil
}

// namesFraming reports whether a list of trailers includes one that frames a request.
func namesFraming(list string) bool {
	for name := range strings.SplitSeq(strings.ToLower(list), ",") {
		switch strings.Trim(name, " \t") {
		case "content-length", "transfer-encoding", "trailer":
			return true
		}
	}
	return false
}

// checkTarget refuses a request target, of either version of HTTP, that is not a path or has bytes that RFC 3986
// escapes: the forwarded target must have the same text as the one that was judged.
func checkTarget(target string) error {
	if !strings.HasPrefix(target, "/") {
		return errTarget
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return errEscape
		}
	}
	if _, err := url.ParseRequestURI(target); err != nil {
		return errTarget
	}
	return nil
}

// header parses a header line. It returns the name in lower case.
func header(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	if !ok || !token(name) { // a folded line begins with a space, which is not a token
		return "", "", errHead
	}
	value = strings.Trim(value, " \t")
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return "", "", errHead
		}
	}
	return strings.ToLower(name), value, nil
}

// token reports whether s is a token (RFC 9110, 5.6.2).
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') &&
			strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
