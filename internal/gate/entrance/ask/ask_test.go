package ask

import (
	"bytes"
	"net/netip"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestHeader_IsTheProtocol checks headers against their bytes: init and gate may be of different builds.
func TestHeader_IsTheProtocol(t *testing.T) {
	t.Parallel()
	four := append([]byte{2, 0, 0x01, 0xbb}, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x5d\xb8\xd8\x22\x80\x01"...)
	six := append([]byte{2, 0, 0, 53}, "\x26\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00"...)
	for _, tt := range []struct {
		to   string
		from uint16
		want []byte
	}{{"93.184.216.34:443", 0x8001, four}, {"[2606::1]:53", 0, six}} {
		at := netip.MustParseAddrPort(tt.to)
		if got := Header(at, tt.from); !bytes.Equal(got[:], tt.want) {
			t.Errorf("%s: % x", tt.to, got)
		}
		if got, from, err := ParseHeader(tt.want); got != at || from != tt.from || err != nil {
			t.Errorf("%v, %d, %v, want %s, %d", got, from, err, tt.to, tt.from)
		}
	}
	mapped := netip.MustParseAddrPort("[::ffff:93.184.216.34]:443")
	if got := Header(mapped, 0x8001); !bytes.Equal(got[:], four) {
		t.Errorf("%v: % x", mapped, got)
	}
}

func TestParse_RefusesInvalid(t *testing.T) {
	t.Parallel()
	good := Header(netip.MustParseAddrPort("93.184.216.34:443"), 7)
	for name, b := range map[string][]byte{
		"nothing": nil, "a short header": good[:HeaderSize-1], "a long header": append(good[:], 0),
		"another version": append([]byte{1}, good[1:]...), "a flag": append([]byte{2, 1}, good[2:]...),
	} {
		if at, _, err := ParseHeader(b); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, %v", name, at, err)
		}
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "a short status": {0, 0, 0}, "a long status": {0, 0, 0, 0, 0}, "no errno": {0, 0x10, 0, 0},
	} {
		if no, err := ParseStatus(b); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, %v", name, no, err)
		}
	}
}

func TestStatus_RoundTrips(t *testing.T) {
	t.Parallel()
	if got := Status(syscall.ECONNREFUSED); got != [StatusSize]byte{byte(syscall.ECONNREFUSED)} {
		t.Errorf("% x", got)
	}
	for no := range syscall.Errno(maxErrno + 1) {
		s := Status(no)
		if got, err := ParseStatus(s[:]); got != no || err != nil {
			t.Errorf("%d, %v, want %d", got, err, no)
		}
	}
}

// FuzzHeader checks that a header is either refused, or is that of its address.
func FuzzHeader(f *testing.F) {
	good := Header(netip.MustParseAddrPort("93.184.216.34:443"), 32768)
	f.Add(good[:])
	f.Add([]byte("\x02\x00\x00\x35\x26\x06 the server of names"))
	f.Fuzz(func(t *testing.T, b []byte) {
		to, from, err := ParseHeader(b)
		if err != nil {
			return
		}
		if again := Header(to, from); !bytes.Equal(again[:], b) {
			t.Errorf("% x is read as %v, whose header is % x", b, to, again)
		}
	})
}
