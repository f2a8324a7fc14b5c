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

// dnsHeader is the length of a message's header, which the question follows.
const dnsHeader = 12

// rcodeVersions is BADVERS (RFC 6891, section 9). Four of its bits are in the header, the
// others in the OPT.
const rcodeVersions dnsmessage.RCode = 16

// query is what one query asks.
type query struct {
	header   dnsmessage.Header   // of the answer: ID, RD and CD are the query's
	question []byte              // name, type and class as they came; a part of the message
	asked    dnsmessage.Question // the same, with another character for dots inside labels
	text     string              // the name as it came, for events
	name     policy.Host         // the name, if it is that of a host
	edns     bool
	size     int // what the asker takes over UDP
}

// parseQuery reads one query: one question, and perhaps an OPT (RFC 6891). If it is not
// exactly that, ok is false, and fail is what to answer, if an answer is due at all:
// nothing answers what may be an answer, or has no header.
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
	// AD may be set in queries (RFC 6840, 5.7); AA, TC, RA and a code may not.
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
	// What is no host's name is not looked up; which of the errors it is matters to nobody.
	q.name, _ = policy.ParseHost(strings.TrimSuffix(q.asked.Name.String(), "."))
	for _, r := range d.Additionals {
		// What options say is passed over: they hold cookies, client subnets and padding.
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

// undot returns the name of m's question, where the question ends, and m with a NUL for
// each dot inside a label: dnsmessage reads no name that has one. No name of a host has a
// NUL either, so that what a dot would make two labels of is not taken for them. The
// results are of use only if the message turns out to be well-formed.
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

// isExact reports whether m, which was read as d, holds nothing that d does not: no
// compressed name, no reserved bit, nothing behind the end.
func isExact(d dnsmessage.Message, m []byte) bool {
	again, err := d.Pack()
	return err == nil && bytes.Equal(again, m)
}

// reply writes the answer to q: addrs, all of them of the type that was asked for, or
// none. The question is echoed byte by byte: a client that mixes upper and lower case
// knows its answers by that. most is how long the answer may be.
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
		// No answer rather than a part of one: the asker comes again over TCP.
		a.Answers, a.Truncated = nil, true
		m, err = a.Pack()
	}
	if err != nil {
		return nil // never: the question was packed when it was read
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
