//go:build linux && (amd64 || arm64)

package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inetPrograms are scripts of ordinary programs in a sandbox whose network is 203.0.113.5: port 80 serves HTTP, 7
// echoes TCP and UDP, 81 refuses, 82 never answers, and 53 is a resolver. Python scripts begin with inetPrelude and
// print ok.
var inetPrograms = []struct{ name, tool, script string }{
	{"own http server", "python3", `
import http.server, threading, urllib.request
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(self.client_address[0].encode())
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)
threading.Thread(target=s.serve_forever, daemon=True).start()
want(urllib.request.urlopen('http://127.0.0.1:%d/' % s.server_port).read(), b'127.0.0.1')
want(urllib.request.urlopen('http://localhost:%d/' % s.server_port).read(), b'127.0.0.1')`},
	{"http by name", "python3", `
import urllib.request
want(urllib.request.urlopen('http://www.example.com/').read(), b'hello')`},
	{"asyncio", "python3", `
import asyncio
async def main():
    async def serve(r, w):
        w.write(await r.readline()); await w.drain(); w.close()
    s = await asyncio.start_server(serve, '127.0.0.1', 8123)
    for _ in range(20):
        r, w = await asyncio.open_connection('127.0.0.1', 8123)
        want(w.get_extra_info('peername'), ('127.0.0.1', 8123))
        w.write(b'line\n'); want(await r.readline(), b'line\n'); w.close()
    s.close()
    r, w = await asyncio.open_connection('203.0.113.5', 7)
    w.write(b'far\n'); want(await r.readline(), b'far\n'); w.close()
asyncio.run(main())`},
	{"options and names", "python3", `
l = socket.socket(); want(l.getsockname(), ('0.0.0.0', 0))
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
l.bind(('127.0.0.1', 8080)); l.listen(); want(l.getsockname(), ('127.0.0.1', 8080))
c = socket.create_connection(('127.0.0.1', 8080))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
want(c.getpeername(), ('127.0.0.1', 8080)); want(c.getsockname()[0], '127.0.0.1')
s, peer = l.accept()
want(peer[0], '127.0.0.1'); want(s.getsockname(), ('127.0.0.1', 8080)); want(s.getpeername(), peer)
want(s.family, socket.AF_INET)
again = socket.socket(fileno=os.dup(s.fileno()))
want((again.family, again.type, again.proto), (socket.AF_INET, socket.SOCK_STREAM, 6))
fails(errno.ENOTCONN, lambda: l.getpeername())
fails(errno.EADDRINUSE, lambda: socket.socket().bind(('0.0.0.0', 8080)))
fails(errno.EADDRNOTAVAIL, lambda: socket.socket().bind(('203.0.113.5', 8081)))
l.close(); l = socket.create_server(('', 8080)); want(l.getsockname(), ('0.0.0.0', 8080))
socket.create_connection(('127.0.0.1', 8080)); want(l.accept()[1][0], '127.0.0.1')
l6 = socket.create_server(('::1', 8082), family=socket.AF_INET6)
want(socket.create_connection(('::1', 8082)).getpeername()[:2], ('::1', 8082)); want(l6.accept()[1][0], '::1')
far = socket.create_connection(('203.0.113.5', 7))
want(far.getsockname()[0], '192.0.0.2'); want(far.getpeername(), ('203.0.113.5', 7))
any = socket.socket(); any.listen(); want(any.getsockname()[0], '0.0.0.0'); assert any.getsockname()[1] >= 32768
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('', 0))
fails(errno.EADDRNOTAVAIL, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('', 5353)))
p = os.path.abspath('unix'); u = socket.socket(socket.AF_UNIX); u.bind(p); u.listen(); want(u.getsockname(), p)
v = socket.socket(socket.AF_UNIX); v.connect(p); want(v.getpeername(), p); want(u.accept()[1], '')`},
	{"refusals", "python3", `
def connect(*to):
    socket.create_connection(to, timeout=20)
fails(errno.ECONNREFUSED, lambda: connect('127.0.0.1', 9999))
fails(errno.ECONNREFUSED, lambda: connect('203.0.113.5', 81))
fails(errno.EHOSTUNREACH, lambda: connect('203.0.113.9', 80))
s = socket.socket() # the same socket again
want(s.connect_ex(('203.0.113.5', 81)), errno.ECONNREFUSED); want(s.connect_ex(('127.0.0.1', 9999)), errno.ECONNREFUSED)
want(s.connect_ex(('203.0.113.5', 7)), 0); want(s.connect_ex(('203.0.113.5', 7)), errno.EISCONN)
s.sendall(b'x'); want(s.recv(1), b'x')
fails(errno.EACCES, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
fails(errno.EACCES, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))`},
	{"many threads accept", "python3", `
import threading
l = socket.create_server(('127.0.0.1', 0)); got = []
def serve():
    while True:
        c, peer = l.accept(); got.append(peer[0]); c.sendall(c.recv(100)); c.close()
for _ in range(8): threading.Thread(target=serve, daemon=True).start()
def ask(i):
    c = socket.create_connection(l.getsockname()); c.sendall(b'%d' % i); want(c.recv(100), b'%d' % i)
all = [threading.Thread(target=ask, args=(i,)) for i in range(50)]
for t in all: t.start()
for t in all: t.join()
want(got, ['127.0.0.1'] * 50)`},
	{"non-blocking", "python3", `
import select
for to in ('127.0.0.1', 8200), ('203.0.113.5', 7):
    l = socket.create_server(('127.0.0.1', 8200)); l.setblocking(False)
    fails(errno.EAGAIN, lambda: l.accept())
    e = select.epoll(); s = socket.socket(); s.setblocking(False); e.register(s, select.EPOLLOUT)
    assert s.connect_ex(to) in (0, errno.EINPROGRESS)
    while not any(w & select.EPOLLOUT and not w & select.EPOLLHUP for _, w in e.poll()): pass
    want(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0); want(s.getpeername(), to)
    if to[0] == '127.0.0.1':
        select.select([l], [], []); l.accept()[0].send(b'x')
    else: s.send(b'x')
    select.select([s], [], []); want(s.recv(1), b'x'); l.close()
s = socket.socket(); s.setblocking(False); begun = time.monotonic()
want(s.connect_ex(('203.0.113.5', 82)), 0) # it is only said later that it fails
s = socket.socket(); s.settimeout(0.2); want(s.connect_ex(('203.0.113.5', 81)), errno.ECONNREFUSED)
l = socket.create_server(('127.0.0.1', 8201)); l.settimeout(0.1)
try: l.accept(); raise AssertionError
except TimeoutError: pass
l.setblocking(True); l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 50000))
fails(errno.EAGAIN, lambda: l.accept())`},
	{"signals", "python3", `
import signal, threading
l = socket.create_server(('127.0.0.1', 0)); seen = []
signal.signal(signal.SIGALRM, lambda *a: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.1)
def later():
    while not seen: time.sleep(0.01) # the handler runs while accept waits
    socket.create_connection(l.getsockname())
threading.Thread(target=later).start()
want(l.accept()[1][0], '127.0.0.1')
class Alarm(Exception): pass
def alarm(*a): raise Alarm
signal.signal(signal.SIGALRM, alarm); signal.setitimer(signal.ITIMER_REAL, 0.1)
s = socket.socket()
try: s.connect(('203.0.113.5', 82)); raise AssertionError
except Alarm: pass
want(s.connect_ex(('203.0.113.5', 7)), errno.EALREADY) # the dial goes on, as in the kernel
signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05) # a call that begins again does not dial again
s = socket.socket(); want(ctypes.CDLL(None).connect(s.fileno(), struct.pack('=H', 2) + struct.pack('!H4B8x', 84, 203, 0, 113, 5), 16), 0)
signal.setitimer(signal.ITIMER_REAL, 0); want(s.connect_ex(('203.0.113.5', 84)), errno.EISCONN)
signal.signal(signal.SIGALRM, alarm)
full = socket.create_server(('127.0.0.1', 0), backlog=0); waiting = [] # a queue that is full
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    while True: waiting.append(socket.create_connection(full.getsockname()))
except Alarm: pass
s = socket.socket(); s.setblocking(False); want(s.connect_ex(full.getsockname()), errno.ETIMEDOUT)
s = socket.socket(); threading.Thread(target=lambda: (time.sleep(0.3), full.accept())).start()
s.connect(full.getsockname()); want(s.getblocking(), True)
signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, False)
if os.fork() == 0:
    time.sleep(0.5); socket.create_connection(l.getsockname()); os._exit(0)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05) # calls begin again after a handler with SA_RESTART
libc = ctypes.CDLL(None, use_errno=True)
assert libc.accept(l.fileno(), ctypes.create_string_buffer(16), ctypes.byref(ctypes.c_int(16))) >= 0, ctypes.get_errno()
signal.setitimer(signal.ITIMER_REAL, 0); os.wait()
pid = os.fork()
if pid == 0: # dies while it waits
    signal.signal(signal.SIGALRM, signal.SIG_DFL); signal.setitimer(signal.ITIMER_REAL, 0.1); print(l.accept()); os._exit(7)
want(os.waitpid(pid, 0)[1], signal.SIGALRM)`},
	{"sharing", "python3", `
import array
s = socket.create_connection(('203.0.113.5', 7)); a, b = socket.socketpair()
pid = os.fork()
if pid == 0:
    _, anc, _, _ = b.recvmsg(1, 100); got = socket.socket(fileno=array.array('i', anc[0][2])[0])
    want(got.getpeername(), ('203.0.113.5', 7)); got.sendall(b'passed'); os._exit(0)
socket.send_fds(a, [b'x'], [s.fileno()]); want(os.waitpid(pid, 0)[1], 0); want(s.recv(6), b'passed')
n = socket.socket(); os.dup2(n.fileno(), 77); m = socket.socket(fileno=77)
m.connect(('203.0.113.5', 7)); n.sendall(b'dup'); want(m.recv(3), b'dup'); want(n.getpeername(), ('203.0.113.5', 7))
l = socket.create_server(('127.0.0.1', 0))
if os.fork() == 0:
    c, peer = l.accept(); want(peer[0], '127.0.0.1'); c.sendall(b'child'); os._exit(0)
want(socket.create_connection(l.getsockname()).recv(5), b'child')`},
	{"udp", "python3", `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('203.0.113.5', 7))
s.send(b'one'); s.send(b'three'); want(s.recv(100), b'one'); want(s.recvfrom(100), (b'three', ('203.0.113.5', 7)))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
want(s.sendto(b'to', ('203.0.113.5', 7)), 2); want(s.recvfrom(1), (b't', ('203.0.113.5', 7)))
want(s.sendto(b'x' * 60000, ('203.0.113.5', 7)), 60000); want(s.recvfrom(65536)[0], b'x' * 60000)
fails(errno.EHOSTUNREACH, lambda: s.sendto(b'to', ('203.0.113.6', 7))); fails(errno.ENOTCONN, s.getpeername)
s.connect(('203.0.113.5', 7)); fails(errno.EISCONN, lambda: s.sendto(b'to', ('203.0.113.6', 7)))
fails(errno.EMSGSIZE, lambda: s.sendto(b'x' * 65508, ('203.0.113.5', 7)))
fails(errno.EINVAL, lambda: s.sendto(b'x', ('203.0.113.5', 0)))
fails(errno.ECONNREFUSED, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9)))
s.connect(('127.0.0.1', 9)); fails(errno.EHOSTUNREACH, lambda: s.connect(('203.0.113.9', 9))) # again
s.connect(('203.0.113.5', 7)); s.send(b'again'); want(s.recv(9), b'again'); want(os.get_inheritable(s.fileno()), False)
s.settimeout(0.1)
try: s.recvfrom(1); raise AssertionError
except TimeoutError: pass`},
	{"names by glibc", "python3", `
want(sorted(set(a[4] for a in socket.getaddrinfo('name.example.com', 80))), [('203.0.113.5', 80)])
want(socket.gethostbyname('other.example.com'), '203.0.113.5')`},
	{"much data", "python3", `
import threading
s = socket.create_connection(('203.0.113.5', 7)); n = 64 << 20; block = os.urandom(1 << 20)
def send():
    for _ in range(64): s.sendall(block)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start(); got = 0
while True:
    b = s.recv(1 << 20)
    if not b: break
    got += len(b)
want(got, n)`},
	{"curl", "curl", `curl -sS http://www.example.com/ | grep -qx hello && curl -sS http://203.0.113.5/ | grep -qx hello &&
! curl -sS --max-time 20 http://203.0.113.5:81/ 2>err && grep -qi 'connect' err && echo ok`},
	{"node", "node", `node -e '
const http = require("http")
const s = http.createServer((q, r) => r.end(q.socket.remoteAddress)).listen(0, "127.0.0.1", async () => {
  const own = await (await fetch("http://127.0.0.1:" + s.address().port)).text()
  const far = await (await fetch("http://www.example.com/")).text()
  let no; try { await fetch("http://203.0.113.5:81/") } catch (e) { no = e.cause.code }
  const ns = new (require("dns").promises.Resolver)(); ns.setServers(["198.51.100.1"])
  const a = await ns.resolve4("a.example.com")
  console.log(own == "127.0.0.1" && far == "hello" && no == "ECONNREFUSED" && a[0] == "203.0.113.5" ? "ok" : [own, far, no, a])
  s.close()
})'`},
	{"openssl", "openssl", `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout k -out c -subj /CN=x 2>/dev/null &&
openssl s_server -accept 4433 -key k -cert c -www >log 2>&1 & p=$!
for i in $(seq 500); do echo | openssl s_client -connect 127.0.0.1:4433 2>&1 | grep -q 'subject=CN *= *x' && echo ok && break; sleep .01; done
kill $p`},
	{"git", "git", `git init -q -b main r && git -C r -c user.name=n -c user.email=e commit -q --allow-empty -m m &&
git daemon --base-path=. --export-all --listen=127.0.0.1 --reuseaddr . & p=$!
for i in $(seq 500); do git ls-remote git://127.0.0.1/r 2>/dev/null | grep -q main && echo ok && break; sleep .01; done
kill $p`},
}

// inetPrelude begins the scripts in Python.
const inetPrelude = `
import ctypes, errno, faulthandler, os, socket, struct, sys, time
faulthandler.dump_traceback_later(300, exit=True)
def want(got, want):
    if got != want: raise AssertionError('got %r, want %r' % (got, want))
def fails(number, f):
    try: f()
    except OSError as e:
        if e.errno != number: raise
        return
    raise AssertionError('no error')
`

// bothPorts listens on one port of loopback for TCP and UDP.
func bothPorts(t testing.TB) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 100 { // another test may have the other port
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l, p
		}
		l.Close()
	}
	t.Fatal("no port is free for both")
	return nil, nil
}

// outside starts the network of inetPrograms.
func outside(t testing.TB) map[string]string {
	t.Helper()
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = web.Serve(l) }()
	t.Cleanup(func() { web.Close() })
	echo, packets := bothPorts(t)
	t.Cleanup(func() { echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.(*net.TCPConn).ReadFrom(c)
			}()
		}
	}()
	t.Cleanup(func() { packets.Close() })
	go func() {
		b := make([]byte, maxDatagram)
		for {
			n, from, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(b[:n], from)
		}
	}()
	return map[string]string{"203.0.113.5:80": l.Addr().String(), "203.0.113.5:7": echo.Addr().String(),
		"203.0.113.5:81": "111", "203.0.113.5:82": "-", "203.0.113.5:84": "slow " + echo.Addr().String(), "dns": resolver(t, [4]byte{203, 0, 113, 5})}
}

func TestInet_ServesPrograms(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		for _, p := range inetPrograms {
			t.Run(who+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(p.tool); err != nil {
					t.Skipf("needs %s: to run it in the sandbox", p.tool)
				}
				e := newEntrance(t, uid, outside(t))
				program := []string{"/bin/sh", "-c", p.script}
				if p.tool == "python3" {
					program = []string{python(t), "-c", inetPrelude + p.script + "\nprint('ok', flush=True); os._exit(0)"}
				}
				if out, err := e.run(program); err != nil || !strings.HasSuffix(out, "ok\n") {
					t.Errorf("%v\n%s", err, out)
				}
				if n := e.wanted("203.0.113.5:84"); n > 1 {
					t.Errorf("one connect(2) dialled %d times", n)
				}
			})
		}
	}
}

// TestInet_EndsTheDialsOfItsCallers checks that the entrance notices when a caller was killed, although another process
// has the socket, and when the socket of an interrupted one is closed.
func TestInet_EndsTheDialsOfItsCallers(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			hosts := outside(t)
			hosts["203.0.113.5:83"], hosts["203.0.113.5:84"] = "until given up", "until begun"
			e := newEntrance(t, uid, hosts)
			out, err := e.run([]string{python(t), "-c", inetPrelude + `
import signal
held = []
for end in 'killed', 'interrupted':
    s = socket.socket(); held.append(s); pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGUSR1, lambda *a: os._exit(0)); os.write(1, b''); s.connect(('203.0.113.5', 82))
    n = socket.create_connection(('203.0.113.5', 84)); want(n.recv(1), b'')
    os.kill(pid, signal.SIGKILL if end == 'killed' else signal.SIGUSR1); os.waitpid(pid, 0)
    if end == 'interrupted': s.close(); held.clear()
    n = socket.create_connection(('203.0.113.5', 83)); want(n.recv(1), b'') # the entrance closes it
print('ok', flush=True); os._exit(0)`})
			if err != nil || out != "ok\n" || e.wanted("given up") != 2 {
				t.Errorf("%v\n%s\n%d dials were given up", err, out, e.wanted("given up"))
			}
		})
	}
}

// argInetGo is the argv[0] of a program in Go in a sandbox.
const argInetGo = "notify-inet-go"

// beInetGo uses the network of inetPrograms as programs in Go do, with Go's own resolver.
func beInetGo() int {
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.RemoteAddr[:strings.LastIndexByte(r.RemoteAddr, ':')])
	}))
	defer own.Close()
	for address, want := range map[string]string{own.URL: "127.0.0.1", "http://www.example.com/": "hello"} {
		r, err := http.Get(address)
		if err != nil {
			return complain("%v", err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || string(b) != want {
			return complain("%s: %v %q, want %q", address, err, b, want)
		}
	}
	if _, err := net.Dial("tcp", "203.0.113.5:81"); !errors.Is(err, unix.ECONNREFUSED) {
		return complain("refused: %v", err)
	}
	// A dial that is given up.
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	if c, err := new(net.Dialer).DialContext(ctx, "tcp", "203.0.113.5:82"); err == nil {
		c.Close()
	}
	for network, host := range map[string]string{"tcp4": "127.0.0.1", "tcp6": "[::1]"} {
		l, err := net.Listen(network, host+":0")
		if err != nil {
			return complain("%v", err)
		}
		c, err := net.Dial(network, l.Addr().String())
		if err != nil {
			return complain("%v", err)
		}
		if c.RemoteAddr().String() != l.Addr().String() {
			return complain("connected to %v, not %v", c.RemoteAddr(), l.Addr())
		}
		l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			return complain("closed: %v", err)
		}
	}
	p, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return complain("%v", err)
	}
	for range 10 {
		err := p.SetDeadline(time.Now().Add(time.Minute))
		if err == nil {
			_, err = p.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("203.0.113.5:7")))
		}
		if err != nil {
			return complain("%v", err)
		}
		if _, from, err := p.ReadFrom(make([]byte, 1)); err != nil || from.String() != "203.0.113.5:7" {
			return complain("udp: %v %v", from, err)
		}
		if err := p.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			return complain("%v", err)
		}
		if _, from, err := p.ReadFrom(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return complain("udp: %v %v", from, err)
		}
		_, _ = p.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("203.0.113.9:7"))) // no such host
	}
	fmt.Println("ok")
	return 0
}

func TestInet_ServesGo(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			if out, err := newEntrance(t, uid, outside(t)).run([]string{argInetGo}); err != nil || out != "ok\n" {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// python returns an interpreter that every user can execute.
func python(t testing.TB) string {
	t.Helper()
	for _, p := range []string{"/usr/bin/python3", "/usr/local/bin/python3"} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	t.Skip("needs python3: to run it in the sandbox")
	return ""
}
