package gate

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// A message of DNS, as RFC 1035, section 4 has it:
//
//	offset  bytes  header                         after it
//	0       2      ID, echoed                     question: labels, type, class
//	2       2      QR OPCODE AA TC RD RA Z AD CD RCODE
//	4       2      questions: 1                   perhaps one OPT (RFC 6891):
//	6       2      answers: 0 in a query          0, 41, size, flags, length, options
//	8       2      authorities: 0
//	10      2      additional: 0 or 1, an OPT
const dnsHeader = 12

const (
	flagQR = 1 << 15
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagRA = 1 << 7
	flagAD = 1 << 5
	flagCD = 1 << 4
)

type rcode uint16

const (
	rcodeOK       rcode = 0
	rcodeFormat   rcode = 1
	rcodeServer   rcode = 2
	rcodeNoName   rcode = 3
	rcodeNoWay    rcode = 4 // NOTIMP
	rcodeVersions rcode = 16
)

type qtype uint16

const (
	typeA    qtype = 1
	typeAAAA qtype = 28
	typeOPT  qtype = 41

	classIN = 1
)

// query is what one query asks.
type query struct {
	id       uint16
	flags    uint16      // those of RD and CD, to be echoed
	question []byte      // name, type and class as they came; a part of the message
	text     string      // the name as it came, for events
	name     policy.Host // the name, if it is that of a host
	qtype    qtype
	edns     bool
	size     int // what the asker takes over UDP
}

// parseQuery reads one query. If it is not exactly that, ok is false, and fail is what
// to answer, if an answer is due at all: nothing answers what may be an answer, or has
// no header.
func parseQuery(m []byte) (q query, fail rcode, answer, ok bool) {
	if len(m) < dnsHeader {
		return q, 0, false, false
	}
	be := binary.BigEndian
	q.id = be.Uint16(m)
	flags := be.Uint16(m[2:])
	if flags&flagQR != 0 {
		return q, 0, false, false
	}
	q.flags = flags & (flagRD | flagCD)
	q.size = 512
	if flags>>11&15 != 0 {
		return q, rcodeNoWay, true, false
	}
	// AD may be set in queries (RFC 6840, 5.7); AA, TC, RA, Z and a code may not.
	if len(m) > limit.DNSQuery || flags&^(flagRD|flagAD|flagCD) != 0 ||
		be.Uint16(m[4:]) != 1 || be.Uint16(m[6:]) != 0 || be.Uint16(m[8:]) != 0 || be.Uint16(m[10:]) > 1 {
		return q, rcodeFormat, true, false
	}
	end, ok := q.readName(m)
	if !ok || len(m) < end+4 {
		return q, rcodeFormat, true, false
	}
	q.qtype = qtype(be.Uint16(m[end:]))
	if be.Uint16(m[end+2:]) != classIN {
		return q, rcodeNoWay, true, false
	}
	q.question = m[dnsHeader : end+4]
	rest := m[end+4:]
	if be.Uint16(m[10:]) == 1 {
		if fail, ok = q.readOPT(rest); !ok {
			return q, fail, true, false
		}
	} else if len(rest) != 0 {
		return q, rcodeFormat, true, false
	}
	return q, 0, true, true
}

// readName reads the name of the question, which no compression can shorten, and says
// where it ends. A name that is no host's is read all the same: q.name stays zero.
func (q *query) readName(m []byte) (end int, ok bool) {
	at := dnsHeader
	var text []byte
	host := true
	for {
		if at >= len(m) {
			return 0, false
		}
		n := int(m[at])
		at++
		if n == 0 {
			break
		}
		if n > 63 || at+n > len(m) || at+n-dnsHeader > 254 { // above 63 are pointers and what never came to be
			return 0, false
		}
		if len(text) > 0 {
			text = append(text, '.')
		}
		for _, c := range m[at : at+n] {
			host = host && c != '.' // a dot inside of a label would read as two labels
		}
		text = append(text, m[at:at+n]...)
		at += n
	}
	q.text = printable(text)
	if host {
		// What is no host's name is not looked up; which of the errors it is matters to nobody.
		q.name, _ = policy.ParseHost(string(text))
	}
	return at, true
}

// readOPT reads the one additional record, which has to be an OPT and the end. What
// options say is passed over: they hold cookies, client subnets and padding.
func (q *query) readOPT(b []byte) (rcode, bool) {
	be := binary.BigEndian
	if len(b) < 11 || b[0] != 0 || qtype(be.Uint16(b[1:])) != typeOPT {
		return rcodeFormat, false
	}
	q.edns = true
	q.size = min(max(int(be.Uint16(b[3:])), 512), limit.DNSDatagram)
	data := b[11:]
	if int(be.Uint16(b[9:])) != len(data) {
		return rcodeFormat, false
	}
	for len(data) > 0 {
		if len(data) < 4 || len(data)-4 < int(be.Uint16(data[2:])) {
			return rcodeFormat, false
		}
		data = data[4+int(be.Uint16(data[2:])):]
	}
	if b[6] != 0 {
		return rcodeVersions, false
	}
	return 0, true
}

// reply writes the answer to q: addrs, all of them of the type that was asked for, or
// none. The question is echoed byte by byte, so that whoever mixes cases to know his
// answers finds them as they were. most is how long it may be.
func (q query) reply(code rcode, addrs []netip.Addr, ttl time.Duration, most int) []byte {
	be := binary.BigEndian
	m := make([]byte, dnsHeader, dnsHeader+len(q.question)+28*len(addrs)+11)
	be.PutUint16(m, q.id)
	flags := flagQR | flagRA | q.flags | uint16(code)&15
	if q.question != nil {
		be.PutUint16(m[4:], 1)
		m = append(m, q.question...)
	}
	opt := 0
	if q.edns {
		opt = 11
	}
	before := len(m)
	for _, a := range addrs {
		b := a.AsSlice()
		if len(m)+12+len(b)+opt > most {
			// No answer rather than a part of one: the asker comes again over TCP.
			m, flags = m[:before], flags|flagTC
			be.PutUint16(m[6:], 0)
			break
		}
		m = append(m, 0xc0, dnsHeader)
		m = be.AppendUint16(m, uint16(q.qtype))
		m = be.AppendUint16(m, classIN)
		m = be.AppendUint32(m, uint32(ttl/time.Second))
		m = be.AppendUint16(m, uint16(len(b)))
		m = append(m, b...)
		be.PutUint16(m[6:], be.Uint16(m[6:])+1)
	}
	if q.edns {
		be.PutUint16(m[10:], 1)
		m = append(m, 0)
		m = be.AppendUint16(m, uint16(typeOPT))
		m = be.AppendUint16(m, limit.DNSDatagram)
		m = append(m, byte(code>>4), 0, 0, 0, 0, 0)
	}
	be.PutUint16(m[2:], flags)
	return m
}
