package gate

import (
	"bytes"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// dnsHeader is the length of a message's header, which precedes the question.
const dnsHeader = 12

// rcodeVersions is BADVERS (RFC 6891, section 9). Four of its bits are in the header, the rest in the OPT record.
const rcodeVersions dnsmessage.RCode = 16

// query is a parsed query.
type query struct {
	header   dnsmessage.Header   // of the reply: ID, RD and CD are the query's
	question []byte              // name, type and class as received; a part of the message
	asked    dnsmessage.Question // the same, with dots inside labels replaced
	text     string              // the name as received, for events
	name     policy.Host         // the name, if it is a valid host name
	edns     bool
	size     int // maximum size of a reply over UDP
}

// parseQuery parses a query: one question, and optionally an OPT record (RFC 6891). If it is anything else, ok is
// false, and fail is the error code to reply with if answer is set. A message that may be a reply, or has no header,
// gets no reply.
func parseQuery(m []byte) (q query, fail dnsmessage.RCode, answer, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(m)
	if err != nil || h.Response {
		return q, 0, false, false
	}
	q.header = dnsmessage.Header{
		ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired,
		RecursionAvailable: true, CheckingDisabled: h.CheckingDisabled,
	}
	q.size = 512
	if h.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, true, false
	}
	// A query may have AD set (RFC 6840, 5.7), but not AA, TC, RA or a code.
	may := dnsmessage.Header{
		ID: h.ID, RecursionDesired: h.RecursionDesired,
		AuthenticData: h.AuthenticData, CheckingDisabled: h.CheckingDisabled,
	}
	if len(m) > limit.DNSQuery || h != may {
		return q, dnsmessage.RCodeFormatError, true, false
	}
	text, end, plain := undot(m)
	var d dnsmessage.Message
	err = d.Unpack(plain)
	if len(d.Questions) != 1 {
		return q, dnsmessage.RCodeFormatError, true, false
	}
	q.text = printable([]byte(text))
	if d.Questions[0].Class != dnsmessage.ClassINET {
		return q, dnsmessage.RCodeNotImplemented, true, false
	}
	if err != nil || !isExact(d, plain) || len(d.Answers)+len(d.Authorities) > 0 || len(d.Additionals) > 1 {
		return q, dnsmessage.RCodeFormatError, true, false
	}
	q.question, q.asked = m[dnsHeader:end], d.Questions[0]
	// An invalid host name is not looked up; the error does not matter.
	q.name, _ = policy.ParseHost(strings.TrimSuffix(q.asked.Name.String(), "."))
	for _, r := range d.Additionals {
		// Options are ignored: they hold cookies, client subnets and padding.
		if _, isOPT := r.Body.(*dnsmessage.OPTResource); !isOPT || r.Header.Name.String() != "." {
			return q, dnsmessage.RCodeFormatError, true, false
		}
		q.edns = true
		q.size = min(max(int(r.Header.Class), 512), limit.DNSDatagram)
		if version := byte(r.Header.TTL >> 16); version != 0 {
			return q, rcodeVersions, true, false
		}
	}
	return q, 0, true, true
}

// undot returns the name of m's question, the end of the question, and m with a NUL for each dot inside a label,
// because dnsmessage rejects such names. A host name contains no NUL either, so that a label with a dot is not taken
// for two labels. The results are meaningful only if the message turns out to be well-formed.
func undot(m []byte) (name string, end int, plain []byte) {
	plain = bytes.Clone(m)
	var labels []string
	at := dnsHeader
	for at < len(m) && m[at] != 0 {
		label := plain[at+1 : min(at+1+int(m[at]), len(m))]
		labels = append(labels, string(label))
		for i, c := range label {
			if c == '.' {
				label[i] = 0
			}
		}
		at += 1 + len(label)
	}
	return strings.Join(labels, "."), min(at+5, len(m)), plain // the root, the type, the class
}

// isExact reports whether m, which was parsed as d, contains nothing else: no compressed name, no reserved bit, no
// trailing bytes.
func isExact(d dnsmessage.Message, m []byte) bool {
	again, err := d.Pack()
	return err == nil && bytes.Equal(again, m)
}

// reply returns the reply to q with addrs, all of the requested type, or none. It echoes the question byte by byte,
// because clients mix upper and lower case to recognize replies. most is the maximum size of the reply.
func (q query) reply(code dnsmessage.RCode, addrs []netip.Addr, ttl time.Duration, most int) []byte {
	a := dnsmessage.Message{Header: q.header}
	a.RCode = code & 15
	if q.question != nil {
		a.Questions = []dnsmessage.Question{q.asked}
		for _, addr := range addrs {
			a.Answers = append(a.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.asked.Name, Class: dnsmessage.ClassINET, TTL: uint32(ttl / time.Second)},
				Body:   addressBody(addr),
			})
		}
	}
	if q.edns {
		opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
		_ = opt.Header.SetEDNS0(limit.DNSDatagram, code, false)
		a.Additionals = []dnsmessage.Resource{opt}
	}
	m, err := a.Pack()
	if err == nil && len(m) > most {
		// A truncated reply has no answers at all: the client retries over TCP.
		a.Answers, a.Truncated = nil, true
		m, err = a.Pack()
	}
	if err != nil {
		return nil // cannot happen: the question was packed when it was parsed
	}
	copy(m[dnsHeader:], q.question)
	return m
}

func addressBody(a netip.Addr) dnsmessage.ResourceBody {
	if a.Is4() {
		return &dnsmessage.AResource{A: a.As4()}
	}
	return &dnsmessage.AAAAResource{AAAA: a.As16()}
}
