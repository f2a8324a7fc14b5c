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
	four := append([]byte{1, 0, 0x01, 0xbb}, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x5d\xb8\xd8\x22"...)
	six := append([]byte{1, 0, 0, 53}, "\x26\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"...)
	for to, want := range map[string][]byte{"93.184.216.34:443": four, "[2606::1]:53": six} {
		at := netip.MustParseAddrPort(to)
		if got := Header(at); !bytes.Equal(got[:], want) {
			t.Errorf("%s: % x", to, got)
		}
		if got, err := ParseHeader(want); got != at || err != nil {
			t.Errorf("%v, %v, want %s", got, err, to)
		}
	}
	mapped := netip.MustParseAddrPort("[::ffff:93.184.216.34]:443")
	if got := Header(mapped); !bytes.Equal(got[:], four) {
		t.Errorf("%v: % x", mapped, got)
	}
}

func TestParse_RefusesInvalid(t *testing.T) {
	t.Parallel()
	good := Header(netip.MustParseAddrPort("93.184.216.34:443"))
	for name, b := range map[string][]byte{
		"nothing": nil, "a short header": good[:19], "a long header": append(good[:], 0),
		"another version": append([]byte{2}, good[1:]...), "a flag": append([]byte{1, 1}, good[2:]...),
	} {
		if at, err := ParseHeader(b); !fault.Is(err, fault.Invalid) {
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
	good := Header(netip.MustParseAddrPort("93.184.216.34:443"))
	f.Add(good[:])
	f.Add([]byte("\x01\x00\x00\x35\x26\x06 a server of names"))
	f.Fuzz(func(t *testing.T, b []byte) {
		to, err := ParseHeader(b)
		if err != nil {
			return
		}
		if again := Header(to); !bytes.Equal(again[:], b) {
			t.Errorf("% x is read as %v, whose header is % x", b, to, again)
		}
	})
}
