package daemon

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestHTTP_RefusesUnsafeOptions(t *testing.T) {
	t.Parallel()
	const cert, key = "c", "k"
	for _, c := range []struct {
		h    HTTP
		kind fault.Kind // "" is allowed
	}{
		{HTTP{}, ""},
		{HTTP{Addr: "127.0.0.1:0"}, ""},
		{HTTP{Addr: "localhost:8080"}, ""},
		{HTTP{Addr: "[::1]:8080", NoAuth: true}, ""},
		{HTTP{Addr: "[::ffff:127.0.0.1]:8080", NoAuth: true}, ""},
		{HTTP{Addr: "127.0.0.1:1", NoAuth: true, TLSCert: cert, TLSKey: key}, ""},
		{HTTP{Addr: ":8443", TLSCert: cert, TLSKey: key, AllowHosts: []string{"a.example.com"}}, ""},
		{HTTP{Addr: "10.0.0.1:80", BehindProxy: true}, ""},
		{HTTP{Addr: "127.0.0.1:1", TokenFile: "/run/secrets/token"}, ""},

		{HTTP{TokenFile: "/run/secrets/token"}, fault.Invalid},
		{HTTP{Addr: "127.0.0.1:1", NoAuth: true, TokenFile: "/run/secrets/token"}, fault.Invalid},
		{HTTP{Addr: ":8443"}, fault.Denied},
		{HTTP{Addr: "0.0.0.0:8443"}, fault.Denied},
		{HTTP{Addr: "[::]:8443"}, fault.Denied},
		{HTTP{Addr: "10.0.0.1:80"}, fault.Denied},
		{HTTP{Addr: "[::ffff:10.0.0.1]:80"}, fault.Denied},
		{HTTP{Addr: ":8443", NoAuth: true, TLSCert: cert, TLSKey: key}, fault.Denied},
		{HTTP{Addr: "10.0.0.1:80", NoAuth: true, BehindProxy: true}, fault.Denied},
		{HTTP{Addr: "127.0.0.1:80", NoAuth: true, BehindProxy: true}, fault.Denied},
		{HTTP{Addr: "127.0.0.1:80", TLSCert: cert}, fault.Invalid},
		{HTTP{Addr: ":80", BehindProxy: true, TLSKey: key}, fault.Invalid},
		{HTTP{Addr: "127.0.0.1:80", AllowHosts: []string{"https://a"}}, fault.Invalid},
		{HTTP{Addr: "127.0.0.1:80", AllowHosts: []string{"*"}}, fault.Invalid},
		{HTTP{Addr: "127.0.0.1"}, fault.Invalid},
		{HTTP{Addr: "127.0.0.1:http"}, fault.Invalid},
		{HTTP{Addr: "127.0.0.1:99999"}, fault.Invalid},
		{HTTP{Addr: "myhost:80", NoAuth: true}, fault.Invalid},
		{HTTP{NoAuth: true}, fault.Invalid},
		{HTTP{AllowHosts: []string{"a"}}, fault.Invalid},
	} {
		err := c.h.check(false)
		if fault.KindOf(err) != c.kind || err != nil && fault.HintOf(err) == "" {
			t.Errorf("%+v: %v (%s)", c.h, err, fault.HintOf(err))
		}
	}
	if err := (HTTP{Addr: "127.0.0.1:0"}).
		check(true); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "started automatically") {
		t.Errorf("started automatically: %v", err)
	}
}
