//go:build linux && (amd64 || arm64)

package box_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/ports"
)

// webServer serves a page, events and a WebSocket that echoes.
const webServer = `
import base64, hashlib, http.server, threading
more = threading.Semaphore(0)
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        if self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for i in range(3):
                self.wfile.write(b"data: %d\n\n" % i)
                self.wfile.flush()
                more.acquire()
            self.close_connection = True
        elif self.path == "/more":
            more.release()
            self.send_response(204)
            self.end_headers()
        elif self.path == "/ws":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "websocket")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8:
                    break
                n, mask = head[1] & 127, self.rfile.read(4)
                text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
                self.wfile.write(bytes([0x81, len(text)]) + text)
                self.wfile.flush()
            self.close_connection = True
        else:
            body = ("%s\n%s" % (self.path, self.headers)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Set-Cookie", "own=1; Path=/")
            self.send_header("Set-Cookie", "wide=1; Domain=localhost")
            self.end_headers()
            self.wfile.write(body)
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
print(s.server_address[1], flush=True)
s.serve_forever()
`

// one is an Engine with a single box.
type one struct{ *boxtest.Box }

func (o one) Identify(context.Context, string) (id, name string, err error) {
	return "0123456789ab", "box", nil
}

func (o one) DialPort(ctx context.Context, _ string, port int) (net.Conn, error) {
	return o.Box.DialPort(ctx, port)
}

// TestPreview opens a link to a real server in a box, as a browser would.
func TestPreview(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skip("needs python3: it serves")
	}
	hosts := func(t testing.TB) plan.Config {
		c := config(t)
		c.Net = plan.NetHost
		return c
	}
	for name, config := range map[string]func(testing.TB) plan.Config{"its own network": config,
		"host's network": hosts, "ports of a locked workspace": ruled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: config}).Start(t)
			if b.Enforced.State("proc") == plan.Weak {
				t.Skip("needs own-proc: parts of the outer /proc are masked")
			}
			s := b.Open(t, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "-u", "-c", webServer}})
			boxtest.WaitStarted(t, s)
			var port int
			if _, err := fmt.Sscan(boxtest.WaitOutput(t, s, "\n"), &port); err != nil {
				t.Fatal(err)
			}
			p := ports.New(ports.Options{Engine: one{b}, Home: t.TempDir()})
			defer p.Close()
			front := httptest.NewServer(p)
			defer front.Close()
			at := front.Listener.Addr().String()
			p.ServedAt(ports.Listener{Addr: netip.MustParseAddrPort(at)})
			link, err := p.Preview(t.Context(), "box", port, 0)
			if err != nil {
				t.Fatal(err)
			}
			jar, _ := cookiejar.New(nil)
			tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", at)
			}}
			defer tr.CloseIdleConnections()
			browser := &http.Client{Jar: jar, Transport: tr, Timeout: 5 * time.Minute}
			res, err := browser.Get(link.URL)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			u, _ := url.Parse(link.URL)
			if !strings.HasPrefix(string(body), "/\n") || !strings.Contains(string(body), "Host: "+u.Host) ||
				!strings.Contains(string(body), "X-Forwarded-Host: "+u.Host) ||
				strings.Contains(string(body), "coppice_preview") || len(res.Cookies()) != 1 {
				t.Errorf("%s %v", body, res.Header)
			}
			u.RawQuery = ""
			events(t, browser, *u)
			webSocket(t, at, *u, jar.Cookies(u))
			s.Close()
		})
	}
}

func events(t *testing.T, browser *http.Client, u url.URL) {
	t.Helper()
	u.Path = "/events"
	res, err := browser.Get(u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	u.Path = "/more"
	n := 0
	for lines.Scan() {
		if lines.Text() == "" {
			continue
		}
		if want := fmt.Sprintf("data: %d", n); lines.Text() != want {
			t.Errorf("%q, want %q", lines.Text(), want)
		}
		n++
		// The server sends the next event when this one has arrived.
		res, err := browser.Get(u.String())
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	if n != 3 {
		t.Errorf("%d events", n)
	}
}

func webSocket(t *testing.T, at string, u url.URL, cookies []*http.Cookie) {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Minute))
	r, _ := http.NewRequest("GET", "http://"+u.Host+"/ws", nil)
	for _, c := range cookies {
		r.AddCookie(c)
	}
	r.Header.Set("Origin", "http://"+u.Host)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, r)
	// RFC 6455, 1.3
	if err != nil || res.StatusCode != 101 || res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("%+v, %v", res, err)
	}
	defer res.Body.Close()
	if _, err := conn.Write([]byte{0x81, 0x85, 1, 2, 3, 4, 'h' ^ 1, 'e' ^ 2, 'l' ^ 3, 'l' ^ 4, 'o' ^ 1}); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 7)
	if _, err := io.ReadFull(br, frame); err != nil || !bytes.Equal(frame, append([]byte{0x81, 5}, "hello"...)) {
		t.Errorf("%q, %v", frame, err)
	}
}
