package gate

import "encoding/binary"

// watch checks what follows a first ClientHello that offers TLS 1.3, until a second one is no longer possible. A server
// that lacks a key share requests one (HelloRetryRequest), and some servers use the server name of the second, which
// could bypass the check of the first. Input may be split anywhere; watch holds back no more than one handshake record
// or a second ClientHello until it is complete.
//
// What a client may send unencrypted after its ClientHello, and what it means:
//
//	22 ClientHello        the second one: it has the same name, or the connection ends
//	22 anything else      TLS 1.2, which has no second ClientHello
//	20 ChangeCipherSpec   before a second ClientHello, or before an encrypted Finished
//	23 data               TLS 1.3 has its keys; or early data, if that was offered
//	21 alert              passes
type watch struct {
	first  hello
	record []byte   // a partial header or handshake record
	left   int      // bytes of the current record still to pass
	sealed bool     // a ChangeCipherSpec was sent: a handshake record may be encrypted
	second *hailing // the second ClientHello, while it arrives
	held   []byte   // its records
	done   bool
}

// newWatch returns a watch to use after h; nil if none is needed.
func newWatch(h hello) *watch {
	if !h.tls13 {
		return nil
	}
	return &watch{first: h}
}

// pass takes what the client sent and returns what may be forwarded to the server, possibly nothing until more
// arrives, or an error that ends the connection. The result may alias b.
func (w *watch) pass(b []byte) ([]byte, error) {
	if w.done {
		return b, nil
	}
	if w.left >= len(b) { // early data in bulk
		w.left -= len(b)
		return b, nil
	}
	var out []byte
	for len(b) > 0 && !w.done {
		n := min(w.left, len(b))
		if n == 0 {
			n = min(w.wants(), len(b))
			w.record = append(w.record, b[:n]...)
			b = b[n:]
			if w.wants() > 0 {
				continue
			}
			free, err := w.whole()
			if err != nil {
				return nil, err
			}
			out = append(out, free...)
			continue
		}
		out, b = append(out, b[:n]...), b[n:]
		w.left -= n
	}
	return append(out, b...), nil
}

// wants returns how many bytes record lacks for a decision.
func (w *watch) wants() int {
	if len(w.record) < recordHeader {
		return recordHeader - len(w.record)
	}
	if w.record[0] != recordHello {
		return 0
	}
	return recordHeader + int(binary.BigEndian.Uint16(w.record[3:])) - len(w.record)
}

// whole checks the complete header or handshake record, and returns what may be forwarded.
func (w *watch) whole() ([]byte, error) {
	r := w.record
	size := int(binary.BigEndian.Uint16(r[3:]))
	w.record = nil
	if size > maxFragment+2048 || w.second != nil && r[0] != recordHello {
		return nil, errBadTLS
	}
	switch r[0] {
	case recordHello:
		return w.handshake(r)
	case recordCCS:
		w.sealed = true
	case recordData:
		w.done = !w.first.early
	}
	w.left = size
	return r, nil
}

// handshake checks a handshake record.
func (w *watch) handshake(r []byte) ([]byte, error) {
	body := r[recordHeader:]
	if len(body) == 0 {
		return nil, errBadTLS
	}
	if w.second == nil {
		if !w.repeats(body) {
			w.done = true
			return r, nil
		}
		w.second = &hailing{}
	}
	w.held = append(w.held, r...)
	h, _, done, err := w.second.feed(r)
	switch {
	case err != nil:
		return nil, err
	case !done:
		return nil, nil
	case h.name != w.first.name:
		return nil, helloError("a second ClientHello has a different server name")
	}
	w.done = true
	return w.held, nil
}

const (
	// minFinished is the length of the shortest encrypted Finished message of TLS 1.2.
	minFinished = 32
	// longestHello is more than any server accepts as a ClientHello: OpenSSL's limit is 131396 bytes.
	longestHello = 1<<18 - 1
)

// repeats reports whether a handshake record starts what a server could accept as a second ClientHello, even if it is
// too long or followed by something else; handshake then refuses it. An encrypted Finished that starts with the same
// byte and a small length looks the same, and ends its connection as well. That is a chance of one in 2^14, and only
// when a client that offered TLS 1.3 resumes a session of TLS 1.2.
func (w *watch) repeats(body []byte) bool {
	if body[0] != clientHello || !w.sealed || len(body) < minFinished {
		return body[0] == clientHello
	}
	n := int(body[1])<<16 | int(body[2])<<8 | int(body[3])
	return n <= longestHello
}
