package gate

import (
	"encoding/binary"
	"slices"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// A ClientHello (RFC 8446, 4.1.2; older versions are the same up to here) and its layers:
//
//	record     1 type (22), 2 version (3.x), 2 length (1..16384), fragment
//	handshake  1 type (1), 3 length, body; over as many records as the client likes
//	body       2 version, 32 random, 1+n session id, 2+n cipher suites, 1+n compression,
//	           2+n extensions, each 2 type, 2+n data
const (
	recordHeader = 5
	maxFragment  = 1 << 14
	recordCCS    = 20
	recordHello  = 22
	recordData   = 23

	handshakeHeader = 4
	clientHello     = 1

	extServerName = 0
	extPSK        = 41
	extEarlyData  = 42
	extVersions   = 43
	tls12         = 0x0303
)

// hiding returns how an extension would hide a name from the gate, or "".
func hiding(ext uint16) string {
	switch ext {
	case 0xfe0d: // RFC 9849; GREASE looks the same, by design
		return "encrypted_client_hello"
	case 0xfd00:
		return "ech_outer_extensions"
	case 0xffce, 0xff02, 0xff03, 0xfe08, 0xfe09, 0xfe0a, 0xfe0b, 0xfe0c: // its drafts
		return "a draft of encrypted_client_hello"
	}
	return ""
}

// helloError is why a connection is refused as TLS.
type helloError string

func (e helloError) Error() string { return string(e) }

const (
	errNoTLS   helloError = "the data is not TLS"
	errBadTLS  helloError = "the ClientHello is malformed"
	errLongTLS helloError = "the ClientHello is too long"
)

// hello is the relevant content of a ClientHello.
type hello struct {
	name  policy.Host // the server name; zero if it has none
	early bool        // data may follow before the server has answered
	tls13 bool        // TLS 1.3 is offered: the server may ask for a second ClientHello
}

// hailing assembles the ClientHello at the start of a stream, from input split anywhere.
type hailing struct {
	record []byte // header and partial fragment
	body   []byte // the handshake message so far
	fed    int
}

// feed adds the next bytes. It is done when the ClientHello is complete at the end of a record; n is then the number of
// bytes of b that belong to it. It must not be called again after an error or when done.
func (h *hailing) feed(b []byte) (got hello, n int, done bool, err error) {
	for n < len(b) {
		if len(h.record) < recordHeader {
			h.record = append(h.record, b[n])
			n++
			if err := checkRecordHeader(h.record); err != nil {
				return hello{}, n, false, err
			}
			continue
		}
		size := int(binary.BigEndian.Uint16(h.record[3:])) + recordHeader
		take := min(size-len(h.record), len(b)-n)
		h.record = append(h.record, b[n:n+take]...)
		n += take
		if len(h.record) < size {
			break
		}
		if h.fed += size; h.fed > limit.HelloWire {
			return hello{}, n, false, errLongTLS
		}
		h.body = append(h.body, h.record[recordHeader:]...)
		h.record = h.record[:0]
		whole, err := checkHandshake(h.body)
		if err != nil {
			return hello{}, n, false, err
		}
		if whole {
			got, err = parseHello(h.body[handshakeHeader:])
			return got, n, err == nil, err
		}
	}
	return hello{}, n, false, nil
}

// checkRecordHeader returns an error as soon as a byte shows that this is not a handshake record.
func checkRecordHeader(r []byte) error {
	if r[0] != recordHello || len(r) > 1 && r[1] != 3 || len(r) > 2 && r[2] > 3 {
		return errNoTLS
	}
	if len(r) == recordHeader {
		if n := binary.BigEndian.Uint16(r[3:]); n == 0 || n > maxFragment {
			return errBadTLS
		}
	}
	return nil
}

// checkHandshake reports whether body is a complete ClientHello. One that ends inside a record is an error: no other
// message may share the record (RFC 8446, 5.1).
func checkHandshake(body []byte) (whole bool, err error) {
	if body[0] != clientHello {
		return false, errBadTLS
	}
	if len(body) < handshakeHeader {
		return false, nil
	}
	n := int(body[1])<<16 | int(body[2])<<8 | int(body[3])
	switch {
	case n > limit.HelloBytes:
		return false, errLongTLS
	case len(body) > handshakeHeader+n:
		return false, errBadTLS
	}
	return len(body) == handshakeHeader+n, nil
}

// cut is the unparsed rest.
type cut []byte

// take takes n bytes.
func (c *cut) take(n int) ([]byte, bool) {
	if len(*c) < n {
		return nil, false
	}
	b := (*c)[:n]
	*c = (*c)[n:]
	return b, true
}

// vector takes a vector with a length field of size bytes, of lo to hi bytes in whole items.
func (c *cut) vector(size, lo, hi, item int) (cut, bool) {
	l, ok := c.take(size)
	if !ok {
		return nil, false
	}
	n := 0
	for _, b := range l {
		n = n<<8 | int(b)
	}
	if n < lo || n > hi || n%item != 0 {
		return nil, false
	}
	v, ok := c.take(n)
	return v, ok
}

func (c *cut) uint16() (uint16, bool) {
	b, ok := c.take(2)
	if !ok {
		return 0, false
	}
	return binary.BigEndian.Uint16(b), true
}

// parseHello parses the body of a ClientHello completely and strictly: whatever a lenient server could read
// differently is refused.
func parseHello(body []byte) (h hello, err error) {
	c := cut(body)
	version, ok := c.uint16()
	if !ok || version>>8 != 3 {
		return hello{}, errBadTLS
	}
	if _, ok = c.take(32); !ok {
		return hello{}, errBadTLS
	}
	if _, ok = c.vector(1, 0, 32, 1); !ok {
		return hello{}, errBadTLS
	}
	if _, ok = c.vector(2, 2, 1<<16-2, 2); !ok {
		return hello{}, errBadTLS
	}
	compression, ok := c.vector(1, 1, 255, 1)
	if !ok || !slices.Contains(compression, 0) {
		return hello{}, errBadTLS
	}
	if len(c) == 0 {
		return hello{}, nil // before RFC 3546 there were no extensions, and no names
	}
	exts, ok := c.vector(2, 0, 1<<16-1, 1)
	if !ok || len(c) != 0 {
		return hello{}, errBadTLS
	}
	var seen []uint16
	for len(exts) > 0 {
		kind, ok := exts.uint16()
		if !ok {
			return hello{}, errBadTLS
		}
		data, ok := exts.vector(2, 0, 1<<16-1, 1)
		if !ok || slices.Contains(seen, kind) || len(seen) > 64 {
			return hello{}, errBadTLS
		}
		seen = append(seen, kind)
		if what := hiding(kind); what != "" {
			return hello{}, helloError("the ClientHello has " + what + ", which hides the server's name")
		}
		switch kind {
		case extServerName:
			if h.name, err = parseSNI(data); err != nil {
				return hello{}, err
			}
		case extEarlyData:
			if h.early = true; len(data) != 0 {
				return hello{}, errBadTLS
			}
		case extPSK:
			if len(exts) != 0 { // RFC 8446, 4.2.11: the last one
				return hello{}, errBadTLS
			}
		case extVersions:
			v, ok := data.vector(1, 2, 254, 2)
			if !ok || len(data) != 0 {
				return hello{}, errBadTLS
			}
			for len(v) > 0 {
				if x, _ := v.uint16(); x > tls12 { // its drafts have other numbers
					h.tls13 = true
				}
			}
		}
	}
	return h, nil
}

// parseSNI parses the only name of a server_name extension (RFC 6066, 3): a DNS host name in ASCII, without a
// trailing dot.
func parseSNI(data cut) (policy.Host, error) {
	list, ok := data.vector(2, 1, 1<<16-1, 1)
	if !ok || len(data) != 0 {
		return policy.Host{}, errBadTLS
	}
	kind, ok := list.take(1)
	if !ok || kind[0] != 0 {
		return policy.Host{}, errBadTLS
	}
	text, ok := list.vector(2, 1, maxName, 1)
	if !ok || len(list) != 0 {
		return policy.Host{}, errBadTLS
	}
	name, err := policy.ParseHost(string(text))
	if err != nil || text[len(text)-1] == '.' {
		return policy.Host{}, helloError("the server name " + printable(text) + " is not a host name")
	}
	return name, nil
}
