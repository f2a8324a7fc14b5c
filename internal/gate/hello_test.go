package gate

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// hail returns the ClientHello that Go's client sends, as one record.
func hail(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		tls.Client(b, c).Handshake()
		b.Close()
	}()
	buf := make([]byte, 64<<10)
	n, err := a.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func realHello(t testing.TB, name string) []byte {
	return hail(t, &tls.Config{ServerName: name})
}

// ext encodes one extension.
func ext(kind uint16, data ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

func sni(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(list, 0)
		list = binary.BigEndian.AppendUint16(list, uint16(len(n)))
		list = append(list, n...)
	}
	return ext(extServerName, append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...)...)
}

var offers13 = ext(extVersions, 4, 3, 4, 3, 3)

// handmade returns a ClientHello message with exts.
func handmade(exts ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 0x01, 1, 0)
	all := bytes.Join(exts, nil)
	body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	return append([]byte{clientHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// records splits a message into records of size bytes.
func records(m []byte, size int) []byte {
	var out []byte
	for len(m) > 0 {
		n := min(size, len(m))
		out = append(out, recordHello, 3, 1, byte(n>>8), byte(n))
		out = append(out, m[:n]...)
		m = m[n:]
	}
	return out
}

// read feeds wire to a hailing in pieces of size bytes.
func read(wire []byte, size int) (h hello, used int, done bool, err error) {
	var x hailing
	for used < len(wire) {
		end := min(used+size, len(wire))
		var n int
		h, n, done, err = x.feed(wire[used:end])
		used += n
		if done || err != nil {
			return h, used, done, err
		}
	}
	return h, used, false, nil
}

func TestHello_IsReadInAnyPieces(t *testing.T) {
	t.Parallel()
	wire := realHello(t, "Example.COM")
	for _, piece := range []int{1, 2, 5, 7, 100, len(wire)} {
		for _, record := range []int{1, 3, 50, 1 << 14} {
			again := append(records(wire[recordHeader:], record), "what follows"...)
			h, used, done, err := read(again, piece)
			if err != nil || !done || h.name != name("example.com") || !h.tls13 || h.early ||
				used != len(again)-len("what follows") {
				t.Errorf("pieces of %d, records of %d: %+v, %d of %d, %v, %v", piece, record, h, used, len(again), done, err)
			}
		}
	}
	h, _, done, err := read(hail(t, &tls.Config{InsecureSkipVerify: true}), 9)
	if err != nil || !done || h.name != name("") {
		t.Errorf("without a name: %+v, %v, %v", h, done, err)
	}
	h, _, done, err = read(hail(t, &tls.Config{ServerName: "a.example", MaxVersion: tls.VersionTLS12}), 9)
	if err != nil || !done || h.name != name("a.example") || h.tls13 {
		t.Errorf("TLS 1.2: %+v, %v, %v", h, done, err)
	}
	if h, _, done, err := read(records(handmade(), 99), 9); err != nil || !done || h != (hello{}) {
		t.Errorf("no extensions: %+v, %v, %v", h, done, err)
	}
}

func TestHello_RefusesInvalid(t *testing.T) {
	t.Parallel()
	good := handmade(sni("a.example"), offers13)
	if _, _, done, err := read(records(good, 1<<14), 1<<14); err != nil || !done {
		t.Fatal(done, err)
	}
	change := func(at int, to byte) []byte {
		m := bytes.Clone(good)
		m[at] = to
		return m
	}
	for what, wire := range map[string][]byte{
		"ssh":              []byte("SSH-2.0-OpenSSH_9.9\r\n"),
		"http":             []byte("GET / HTTP/1.1\r\n\r\n"),
		"SSLv2":            {0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0},
		"an alert first":   append([]byte{21, 3, 1, 0, 2, 1, 0}, records(good, 1<<14)...),
		"data":             {recordData, 3, 3, 0, 1, 0},
		"an empty record":  {recordHello, 3, 1, 0, 0},
		"a long record":    {recordHello, 3, 1, 0x40, 1},
		"version 4":        {recordHello, 4, 0, 0, 10},
		"a ServerHello":    records(change(0, 2), 1<<14),
		"1-byte records":   records(handmade(sni("a.example"), ext(21, make([]byte, limit.HelloBytes-1000)...)), 1),
		"too long":         records([]byte{1, 0, 0x40, 1, 3, 3}, 100),
		"trailing byte":    records(append(bytes.Clone(good), 1), 1<<14),
		"short length":     records(change(3, good[3]-1), 1<<14),
		"session id":       records(change(38, 33), 1<<14),
		"compression":      records(change(44, 1), 1<<14),
		"extension length": records(change(46, good[46]+1), 1<<14),
		"two names":        records(handmade(sni("a.example", "b.example")), 1<<14),
		"no names":         records(handmade(sni()), 1<<14),
		"an empty name":    records(handmade(sni("")), 1<<14),
		"two SNI":          records(handmade(sni("a.example"), sni("a.example")), 1<<14),
		"two unknown":      records(handmade(ext(0x1234), sni("a.example"), ext(0x1234)), 1<<14),
		"a dot at the end": records(handmade(sni("a.example.")), 1<<14),
		"a NUL":            records(handmade(sni("a.example\x00.b.example")), 1<<14),
		"an address":       records(handmade(sni("192.0.2.1")), 1<<14),
		"UTF-8":            records(handmade(sni("bücher.example")), 1<<14),
		"unknown type":     records(handmade(ext(extServerName, 0, 4, 1, 0, 1, 'a')), 1<<14),
		"ECH":              records(handmade(sni("a.example"), ext(0xfe0d, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0)), 1<<14),
		"empty ECH":        records(handmade(sni("a.example"), ext(0xfe0d)), 1<<14),
		"ESNI":             records(handmade(sni("a.example"), ext(0xffce)), 1<<14),
		"PSK not last":     records(handmade(ext(extPSK, 0), sni("a.example")), 1<<14),
		"versions":         records(handmade(sni("a.example"), ext(extVersions, 3, 3, 4, 3)), 1<<14),
		"CCS in between":   append(append(records(good[:20], 20), recordCCS, 3, 3, 0, 1, 1), records(good[20:], 99)...),
		"truncated body":   records(append([]byte{1, 0, 0, 10}, good[4:14]...), 99),
	} {
		for _, piece := range []int{1, 3, len(wire)} {
			if h, _, done, err := read(wire, piece); err == nil || done {
				t.Errorf("%s in pieces of %d: %+v, done %v", what, piece, h, done)
			}
		}
	}
	// A record per byte is accepted, up to the limit of the total size.
	long := handmade(sni("a.example"), ext(21, make([]byte, 16000)...))
	if _, _, done, err := read(records(long, 1<<14), 1<<14); err != nil || !done {
		t.Error(done, err)
	}
	if _, _, _, err := read(records(long, 1), 1<<14); err != errLongTLS {
		t.Error(err)
	}
}

// TestHello_RefusesECH sends the extension encrypted_client_hello, with which clients such as Go's hide the server
// name.
func TestHello_RefusesECH(t *testing.T) {
	t.Parallel()
	wire := records(handmade(sni("public.example"), ext(0xfe0d, bytes.Repeat([]byte{7}, 180)...), offers13), 1<<14)
	if _, _, _, err := read(wire, 17); err == nil || !strings.Contains(err.Error(), "encrypted_client_hello") {
		t.Error(err)
	}
}

// through passes wire through w in pieces and returns the output.
func through(w *watch, wire []byte, size int) (out []byte, err error) {
	for len(wire) > 0 {
		n := min(size, len(wire))
		b, err := w.pass(wire[:n])
		if err != nil {
			return out, err
		}
		out = append(out, b...)
		wire = wire[n:]
	}
	return out, nil
}

func TestSecondHello_RequiresSameName(t *testing.T) {
	t.Parallel()
	first := hello{name: name("a.example"), tls13: true}
	early := hello{name: name("a.example"), tls13: true, early: true}
	same, other := handmade(sni("a.example"), offers13), handmade(sni("b.example"), offers13)
	ccs := []byte{recordCCS, 3, 3, 0, 1, 1}
	data := append([]byte{recordData, 3, 3, 0, 40}, make([]byte, 40)...)
	alert := []byte{21, 3, 3, 0, 2, 1, 0}
	join := func(b ...[]byte) []byte { return bytes.Join(b, nil) }
	long := handmade(sni("b.example"), offers13, ext(21, make([]byte, limit.HelloBytes)...))
	more := append(slices.Clone(other), 20, 0, 0, 0)
	finished := append([]byte{recordHello, 3, 3, 0, 40, clientHello, 0xff}, make([]byte, 38)...)
	for what, x := range map[string]struct {
		first hello
		wire  []byte
		bad   bool
	}{
		"none":                     {first, join(ccs, data, data), false},
		"the same":                 {first, join(records(same, 1<<14), ccs, data), false},
		"the same after CCS":       {first, join(ccs, records(same, 1<<14), data), false},
		"the same in tiny records": {first, join(ccs, records(same, 3), data), false},
		"another":                  {first, records(other, 1<<14), true},
		"another after CCS":        {first, join(ccs, records(other, 1<<14)), true},
		"another in tiny records":  {first, join(ccs, records(other, 1)), true},
		"another in two records":   {first, join(ccs, records(other, 40)), true},
		"another after an alert":   {first, join(alert, records(other, 1<<14)), true},
		"another after early data": {early, join(ccs, data, data, records(other, 1<<14)), true},
		"the same after early":     {early, join(ccs, data, data, records(same, 1<<14), data), false},
		"another, long, after CCS": {first, join(ccs, records(long, 1<<14)), true},
		"another, long, split":     {first, join(ccs, records(long, 40)), true},
		"another, trailing data":   {first, join(ccs, records(more, 1<<14)), true},
		"no name":                  {first, records(handmade(offers13), 1<<14), true},
		"ECH":                      {first, records(handmade(sni("a.example"), ext(0xfe0d)), 1<<14), true},
		"another, split by CCS":    {first, join(records(other[:30], 30), ccs, records(other[30:], 99)), true},
		"TLS 1.2":                  {first, join(records([]byte{16, 0, 0, 4, 1, 2, 3, 4}, 99), ccs, finished, data), false},
		"TLS 1.2 resumed":          {first, join(ccs, finished, data), false},
		"an empty record":          {first, []byte{recordHello, 3, 3, 0, 0}, true},
		"any record after data":    {first, join(data, records(other, 1<<14)), false},
	} {
		for _, piece := range []int{1, 2, 3, 7, 64, len(x.wire)} {
			out, err := through(newWatch(x.first), x.wire, piece)
			if (err != nil) != x.bad {
				t.Errorf("%s in pieces of %d: %v", what, piece, err)
			}
			if err == nil && !bytes.Equal(out, x.wire) {
				t.Errorf("%s in pieces of %d: the output differs: %d of %d bytes", what, piece, len(out), len(x.wire))
			}
			if err != nil && bytes.Contains(out, []byte("b.example")) {
				t.Errorf("%s in pieces of %d: the other name was passed", what, piece)
			}
		}
	}
	if newWatch(hello{name: name("a.example")}) != nil {
		t.Error("TLS 1.2 is watched")
	}
}

func FuzzHello(f *testing.F) {
	f.Add(realHello(f, "example.com"), 3)
	f.Add(records(handmade(sni("a.example"), offers13), 7), 1)
	f.Add(records(handmade(sni("a.example"), ext(0xfe0d)), 99), 100)
	f.Add([]byte("GET / HTTP/1.1\r\n"), 5)
	f.Fuzz(func(t *testing.T, wire []byte, size int) {
		if size < 1 {
			size = 1
		}
		h, used, done, err := read(wire, size)
		one, usedOne, doneOne, errOne := read(wire, len(wire)+1)
		if h != one || done != doneOne || (err == nil) != (errOne == nil) || done && used != usedOne {
			t.Fatalf("%+v %d %v %v in pieces, %+v %d %v %v at once", h, used, done, err, one, usedOne, doneOne, errOne)
		}
		if !h.name.IsZero() {
			if again, err := policy.ParseHost(h.name.String()); err != nil || again != h.name {
				t.Fatalf("%v", h.name)
			}
		}
	})
}

// FuzzWatch checks that watch passes the same bytes however the input is split, and invents none.
func FuzzWatch(f *testing.F) {
	f.Add(records(handmade(sni("b.example"), offers13), 7), 1, true)
	f.Add(append([]byte{recordCCS, 3, 3, 0, 1, 1}, records(handmade(sni("a.example"), offers13), 99)...), 3, false)
	f.Fuzz(func(t *testing.T, wire []byte, size int, early bool) {
		if size < 1 {
			size = 1
		}
		h := hello{name: name("a.example"), tls13: true, early: early}
		out, err := through(newWatch(h), wire, size)
		one, errOne := through(newWatch(h), wire, len(wire)+1)
		if (err == nil) != (errOne == nil) || !bytes.HasPrefix(wire, out) || !bytes.HasPrefix(wire, one) || err == nil &&
			!bytes.Equal(out, one) {
			t.Fatalf("%d bytes, %v in pieces; %d, %v at once", len(out), err, len(one), errOne)
		}
	})
}
