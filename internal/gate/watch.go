package gate

import "encoding/binary"

// watch reads on after a first ClientHello that offers TLS 1.3, until no second one can
// come. A server that lacks a key share asks for one (HelloRetryRequest), and some take
// the server name of the second, which would be a way around the first. It is fed what
// the client sends, in whatever pieces arrive, and holds back no more than one
// handshake record or a second ClientHello, until that is whole.
//
// What a client may send in plain after its ClientHello, and what it means:
//
//	22 ClientHello        the second one: it has the same name, or the connection ends
//	22 anything else      TLS 1.2, which asks for no second one
//	20 ChangeCipherSpec   before a second ClientHello, or before an encrypted Finished
//	23 data               TLS 1.3 has its keys; or early data, if that was offered
//	21 alert              passes
type watch struct {
	first  hello
	record []byte   // a header, or a handshake record, that is not whole yet
	left   int      // bytes of another record that pass
	sealed bool     // a ChangeCipherSpec came: a handshake record may be encrypted
	second *hailing // the second ClientHello, while it comes
	held   []byte   // its records
	done   bool
}

// newWatch begins to watch after h; nil if nothing needs to be watched.
func newWatch(h hello) *watch {
	if !h.tls13 {
		return nil
	}
	return &watch{first: h}
}

// pass takes what the client sent and gives what may go on to the server, which may be
// nothing until more has come, or an error that ends the connection. The result may be
// b itself.
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

// wants is how many bytes record lacks until it can be judged.
func (w *watch) wants() int {
	if len(w.record) < recordHeader {
		return recordHeader - len(w.record)
	}
	if w.record[0] != recordHello {
		return 0
	}
	return recordHeader + int(binary.BigEndian.Uint16(w.record[3:])) - len(w.record)
}

// whole judges the header or handshake record that is whole, and gives what may pass.
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

// handshake judges a handshake record.
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
	// minFinished is the length of the shortest encrypted Finished of TLS 1.2.
	minFinished = 32
	// longestHello is more than any server takes for a ClientHello: OpenSSL's limit is
	// 131396 bytes.
	longestHello = 1<<18 - 1
)

// repeats reports whether a handshake record begins what a server could take for a second
// ClientHello, be it too long for us or with something behind it: that is refused then.
// An encrypted Finished, which nobody can tell from it, ends its connection as well, where
// it begins with the same byte and a small length: by chance one in 2^14, and only when a
// session of TLS 1.2 is resumed by a client that offered 1.3.
func (w *watch) repeats(body []byte) bool {
	if body[0] != clientHello || !w.sealed || len(body) < minFinished {
		return body[0] == clientHello
	}
	n := int(body[1])<<16 | int(body[2])<<8 | int(body[3])
	return n <= longestHello
}
