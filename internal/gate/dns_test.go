package gate

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// ask builds a query as programs send it.
func ask(name string, t dnsmessage.Type, edns bool) []byte {
	m := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		m = append(m, byte(len(label)))
		m = append(m, label...)
	}
	m = append(m, 0)
	m = binary.BigEndian.AppendUint16(m, uint16(t))
	m = binary.BigEndian.AppendUint16(m, uint16(dnsmessage.ClassINET))
	if edns {
		m[11] = 1
		m = append(m, 0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8)
	}
	return m
}

func TestParseQuery_ReadsQueries(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		m    []byte
		name string
		text string
		size int
	}{
		{ask("example.com", dnsmessage.TypeA, false), "example.com", "example.com", 512},
		{ask("eXamPle.COM", dnsmessage.TypeAAAA, true), "example.com", "eXamPle.COM", 1232},
		{ask("_sip._tcp.example.com", 33, true), "_sip._tcp.example.com", "_sip._tcp.example.com", 1232},
		{ask("a\x00b.example.com", dnsmessage.TypeA, false), "", `a\x00b.example.com`, 512},
		{ask("127.0.0.1", dnsmessage.TypeA, false), "", "127.0.0.1", 512},
		{ask("\x1b[2Jx.com", dnsmessage.TypeA, false), "", `\x1b[2Jx.com`, 512},
	} {
		q, _, _, ok := parseQuery(x.m)
		if !ok || q.name.String() != x.name || q.text != x.text || q.size != x.size || q.header.ID != 0x1234 ||
			!q.header.RecursionDesired || q.header.CheckingDisabled {
			t.Errorf("%q: %+v, %v", x.text, q, ok)
		}
	}
	// A label with a dot inside is not the same name as two labels.
	m := ask("exampleXcom", dnsmessage.TypeA, false)
	m[dnsHeader+8] = '.'
	q, _, _, ok := parseQuery(m)
	if !ok || !q.name.IsZero() || q.text != "example.com" {
		t.Errorf("a dot in a label: %+v", q)
	}
	if r := q.reply(dnsmessage.RCodeNameError, nil, 0, 512); !bytes.Equal(r[dnsHeader:], m[dnsHeader:]) || r[3] != 0x83 {
		t.Errorf("a dot in a label: % x is the reply to % x", r, m)
	}
}

func TestParseQuery_RefusesInvalid(t *testing.T) {
	t.Parallel()
	change := func(f func([]byte) []byte) []byte { return f(ask("example.com", dnsmessage.TypeA, true)) }
	for what, x := range map[string]struct {
		m      []byte
		answer bool
		code   dnsmessage.RCode
	}{
		"nothing":        {nil, false, 0},
		"half a header":  {make([]byte, 11), false, 0},
		"an answer":      {change(func(m []byte) []byte { m[2] |= 0x80; return m }), false, 0},
		"a notify":       {change(func(m []byte) []byte { m[2] |= 4 << 3; return m }), true, dnsmessage.RCodeNotImplemented},
		"an update":      {change(func(m []byte) []byte { m[2] |= 5 << 3; return m }), true, dnsmessage.RCodeNotImplemented},
		"truncated":      {change(func(m []byte) []byte { m[2] |= 2; return m }), true, dnsmessage.RCodeFormatError},
		"authoritative":  {change(func(m []byte) []byte { m[2] |= 4; return m }), true, dnsmessage.RCodeFormatError},
		"Z":              {change(func(m []byte) []byte { m[3] |= 0x40; return m }), true, dnsmessage.RCodeFormatError},
		"a reply code":   {change(func(m []byte) []byte { m[3] |= 3; return m }), true, dnsmessage.RCodeFormatError},
		"no question":    {change(func(m []byte) []byte { m[5] = 0; return m }), true, dnsmessage.RCodeFormatError},
		"two questions":  {change(func(m []byte) []byte { m[5] = 2; return m }), true, dnsmessage.RCodeFormatError},
		"answers":        {change(func(m []byte) []byte { m[7] = 1; return m }), true, dnsmessage.RCodeFormatError},
		"authorities":    {change(func(m []byte) []byte { m[9] = 1; return m }), true, dnsmessage.RCodeFormatError},
		"two additional": {change(func(m []byte) []byte { m[11] = 2; return m }), true, dnsmessage.RCodeFormatError},
		"trailing byte":  {change(func(m []byte) []byte { return append(m, 0) }), true, dnsmessage.RCodeFormatError},
		"missing byte":   {change(func(m []byte) []byte { return m[:len(m)-1] }), true, dnsmessage.RCodeFormatError},
		"uncounted OPT":  {change(func(m []byte) []byte { m[11] = 0; return m }), true, dnsmessage.RCodeFormatError},
		"no OPT":         {change(func(m []byte) []byte { return m[:dnsHeader+13+4] }), true, dnsmessage.RCodeFormatError},
		"named OPT": {change(func(m []byte) []byte { m[dnsHeader+17] = 1; return m }), true,
			dnsmessage.RCodeFormatError},
		"a TSIG": {change(func(m []byte) []byte { m[dnsHeader+19] = 250; return m }), true,
			dnsmessage.RCodeFormatError},
		"EDNS 1": {change(func(m []byte) []byte { m[dnsHeader+17+6] = 1; return m }), true, rcodeVersions},
		"compressed OPT": {
			change(func(m []byte) []byte { return slices.Replace(m, dnsHeader+17, dnsHeader+18, 0xc0, dnsHeader+12) }), true,
			dnsmessage.RCodeFormatError},
		"a short OPT": {change(func(m []byte) []byte { m[dnsHeader+17+10]--; return m }), true,
			dnsmessage.RCodeFormatError},
		"a long option": {change(func(m []byte) []byte { m[len(m)-9] = 9; return m }), true, dnsmessage.RCodeFormatError},
		"compressed": {append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0xc0, 12, 0, 1, 0, 1), true,
			dnsmessage.RCodeFormatError},
		"compressed end": {append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 1, 'a', 0xc0, 12, 0, 1, 0, 1), true,
			dnsmessage.RCodeFormatError},
		"a bit label": {append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0x41, 1, 0, 0, 1, 0, 1), true,
			dnsmessage.RCodeFormatError},
		"chaos": {change(func(m []byte) []byte { m[dnsHeader+16] = 3; return m }), true,
			dnsmessage.RCodeNotImplemented},
		"no type": {ask("example.com", dnsmessage.TypeA, false)[:dnsHeader+13], true, dnsmessage.RCodeFormatError},
		"too long": {ask(strings.Repeat("aaaaaaa.", 32)+"com", dnsmessage.TypeA, false), true,
			dnsmessage.RCodeFormatError},
		"trailing zeros": {append(ask("example.com", dnsmessage.TypeA, false), make([]byte, 600)...), true,
			dnsmessage.RCodeFormatError},
	} {
		if q, code, answer, ok := parseQuery(x.m); ok || answer != x.answer || code != x.code {
			t.Errorf("%s: %+v, code %d, answer %v, ok %v", what, q, code, answer, ok)
		}
	}
	// 255 bytes on the wire are the longest.
	if _, _, _, ok := parseQuery(ask(strings.Repeat("aaaaaaa.", 31)+"aaaaa", dnsmessage.TypeA, false)); !ok {
		t.Error("the longest name is refused")
	}
	if _, _, _, ok := parseQuery(ask(strings.Repeat("aaaaaaa.", 31)+"aaaaaa", dnsmessage.TypeA, false)); ok {
		t.Error("a name of 256 bytes is accepted")
	}
}

func TestReply_EchoesQuestion(t *testing.T) {
	t.Parallel()
	m := ask("eXample.cOm", dnsmessage.TypeA, true)
	q, _, _, _ := parseQuery(m)
	r := q.reply(dnsmessage.RCodeSuccess, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
		90*time.Second, 1232)
	want := bytes.Clone(m[:dnsHeader+17])
	want[2], want[3], want[7] = 0x81, 0x80, 2
	want = append(want, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 90, 0, 4, 192, 0, 2, 1)
	want = append(want, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 90, 0, 4, 192, 0, 2, 2)
	want = append(want, 0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0)
	if !bytes.Equal(r, want) {
		t.Errorf("% x\nwant\n% x", r, want)
	}
	// A reply that does not fit is truncated, so that the client retries over TCP.
	r = q.reply(dnsmessage.RCodeSuccess, make([]netip.Addr, 0), 0, 512)
	if r[7] != 0 || r[2]&2 != 0 {
		t.Errorf("no answers: % x", r)
	}
	var many []netip.Addr
	for i := range 64 {
		many = append(many, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	if r = q.reply(dnsmessage.RCodeSuccess, many, time.Minute, 512); len(r) > 512 || r[2]&2 == 0 || r[7] != 0 {
		t.Errorf("too many answers: % x", r)
	}
	_, code, _, _ := parseQuery(nil)
	if code != 0 {
		t.Error(code)
	}
}

func FuzzQuery(f *testing.F) {
	f.Add(ask("example.com", dnsmessage.TypeA, false))
	f.Add(ask("eXample.com", dnsmessage.TypeAAAA, true))
	f.Add(ask("a\x00.b", 65, true))
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, m []byte) {
		before := bytes.Clone(m)
		q, code, answer, ok := parseQuery(m)
		if !bytes.Equal(m, before) {
			t.Fatal("the message was changed")
		}
		if ok && (code != 0 || !answer || len(m) > limit.DNSQuery || q.size < 512 || q.size > limit.DNSDatagram) {
			t.Fatalf("%+v %v %v", q, code, answer)
		}
		if ok && !q.name.IsZero() {
			again, err := policy.ParseHost(q.name.String())
			if err != nil || again != q.name {
				t.Fatalf("%q", q.name.String())
			}
		}
		for _, c := range []byte(q.text) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q", q.text)
			}
		}
		if !answer {
			return
		}
		if !ok && code == 0 {
			t.Fatal("refused without a code")
		}
		r := q.reply(code, []netip.Addr{netip.AddrFrom4([4]byte{1, 2, 3, 4})}, time.Minute, q.size)
		if len(r) > q.size || r[2]&0x80 == 0 || r[0] != m[0] || r[1] != m[1] {
			t.Fatalf("% x is the reply to % x", r, m)
		}
		if _, _, answer, _ := parseQuery(r); answer {
			t.Fatal("a reply gets a reply")
		}
	})
}

// name returns s as a host name, which it must be; "" is the zero Host.
func name(s string) policy.Host {
	h, err := policy.ParseHost(s)
	if err != nil && s != "" {
		panic(err)
	}
	return h
}
