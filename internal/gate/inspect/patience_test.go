package inspect

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// TestServe_TimesOut checks that Serve does not wait for a sandbox that starts a handshake or a head and does not
// finish it.
func TestServe_TimesOut(t *testing.T) {
	t.Parallel()
	for what, say := range map[string]string{"nothing of TLS": "", "part of a ClientHello": "\x16\x03\x01\x02\x00",
		"part of a head": "GET / HTTP/1.1\r\n"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, err := NewAuthority(time.Now())
				must(t, err)
				inside, in := net.Pipe()
				outside, out := net.Pipe()
				defer outside.Close()
				o := Options{Inside: in, Outside: out, Port: 80, Authority: a, Judge: &court{allow: all}, Now: time.Now,
					Patience: limit.GateHelloSeconds * time.Second}
				if plain := say != "" && say[0] == 'G'; plain {
					o.Names = []policy.Host{name(t, "example.com")}
				} else {
					o.Name = name(t, "example.com")
				}
				ended := make(chan error)
				begun := time.Now()
				go func() { ended <- Serve(t.Context(), o) }()
				_, err = inside.Write([]byte(say))
				must(t, err)
				buf := make([]byte, 1<<10)
				for err == nil {
					_, err = inside.Read(buf)
				}
				if err := <-ended; (err == nil) != (o.Name.IsZero()) {
					t.Errorf("ended with %v", err)
				}
				if d := time.Since(begun); d < o.Patience || d > o.Patience+2*time.Second {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}
