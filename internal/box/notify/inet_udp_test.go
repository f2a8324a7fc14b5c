//go:build linux && (amd64 || arm64)

package notify

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// inetDatagrams are scripts like inetPrograms about UDP. The network has besides 203.0.113.5:7 two hosts A and B,
// 203.0.113.10:9 and 203.0.113.11:9, which record what they get and never answer.
var inetDatagrams = []datagramScript{
	{name: "poll", tool: "python3", script: `
import select
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); p = select.poll(); p.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
idle = [(s.fileno(), select.POLLOUT)]; want(p.poll(0), idle); number = s.fileno(); inode = os.fstat(number).st_ino
e = select.epoll(); e.register(s, select.EPOLLIN | select.EPOLLET) # before there is a peer
for round in range(5):
    s.sendto(b'one', ECHO); want(e.poll(60), [(number, select.EPOLLIN)]); want(s.recvfrom(9), (b'one', ECHO)); want(p.poll(0), idle)
    s.connect(A); want(p.poll(0), idle); want(s.getpeername(), A)
    s.connect(ECHO); s.send(b'two'); want(e.poll(60), [(number, select.EPOLLIN)]); want(s.recv(9), b'two'); want(p.poll(0), idle)
    disconnect(s); want(p.poll(0), idle); fails(errno.ENOTCONN, s.getpeername)
want(os.fstat(number).st_ino, inode)`},
	{name: "without a peer", tool: "python3", script: `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(5000): s.send(b'lost') # does not wait
s.sendto(b'first', A); s.send(b'second')
disconnect(s)
for i in range(5000): s.send(b'lost')
s.connect(('127.0.0.1', 9))
for i in range(5000): s.send(b'lost')
fails(errno.EISCONN, lambda: s.sendto(b'lost', A)); fails(errno.ECONNREFUSED, lambda: s.sendto(b'lost', ('127.0.0.1', 9)))
s.connect(A); s.send(b'third')`, a: []string{"first", "second", "third"}},
	{name: "not dumpable", tool: "python3", script: `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'shown', A)
ctypes.CDLL(None).prctl(4, 0) # PR_SET_DUMPABLE
if os.geteuid() != 0: fails(errno.EACCES, lambda: s.sendto(b'hidden', B))
s.send(b'to the peer')`, a: []string{"shown", "to the peer"}},
	{name: "peers in turns under a flood", tool: "python3", script: `
import threading
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); over = []
def flood():
    while not over: s.send(b'flood')
for _ in range(2): threading.Thread(target=flood).start()
for i in range(25):
    for to, name in (A, b'a'), (B, b'b'):
        s.connect(to)
        for k in range(4): s.send(name + b'%d' % (4 * i + k))
over.append(1)`, a: tagged("a", 100), b: tagged("b", 100)},
	{name: "threads with a peer each", tool: "python3", script: `
import threading
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def work(to, name):
    for i in range(100): want(s.sendto(name + b'%d' % i, to), len(name + b'%d' % i))
all = [threading.Thread(target=work, args=w) for w in ((A, b'a'), (B, b'b'))]
for t in all: t.start()
for t in all: t.join()`, a: tagged("a", 100), b: tagged("b", 100)},
	{name: "much to two peers", tool: "python3", script: `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(40):
    for k in range(50): s.sendto(b'x' * 1000, A)
    s.sendto(b'a%d' % i, A); s.sendto(b'b%d' % i, B)
    for k in range(50): s.sendto(b'x' * 1000, B)
s.setblocking(False); full = 0
for k in range(20000):
    try: s.sendto(b'x' * 1000, B)
    except BlockingIOError: full += 1
s.setblocking(True); s.sendto(b'b40', B)`, a: tagged("a", 40), b: tagged("b", 41)},
	{name: "answers of the earlier peer", tool: "python3", script: `
import select
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'old', ECHO); select.select([s], [], [])
s.sendto(b'a0', A); s.setblocking(False); fails(errno.EAGAIN, lambda: s.recvfrom(9)); s.setblocking(True)
s.sendto(b'new', ECHO); want(s.recvfrom(9), (b'new', ECHO))
n = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) # all servers of names are one peer
for server in ('198.51.100.1', 53), ('198.51.100.2', 53): n.sendto(QUERY, server); want(n.recvfrom(512)[1], server)`,
		a: []string{"a0"}},
	{name: "shared", tool: "python3", script: `
import array, threading
udp = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s = udp(); d = s.dup(); d.connect(A); s.send(b'a0'); want(s.getpeername(), A)
if os.fork() == 0: s.connect(B); s.send(b'b0'); os._exit(0)
want(os.wait()[1], 0); d.send(b'b1'); want(d.getpeername(), B)
l, r = socket.socketpair(); n = udp(); n.connect(A); socket.send_fds(l, [b'x'], [n.fileno()]); n.close()
time.sleep(6) # no process has it meanwhile
n = socket.socket(fileno=socket.recv_fds(r, 9, 1)[1][0]); n.send(b'a1')
s.shutdown(socket.SHUT_WR); fails(errno.EPIPE, lambda: d.send(b'x'))`, a: tagged("a", 2), b: tagged("b", 2)},
	{name: "a close ends the session", tool: "python3", script: `
for end in 'close', 'exit', 'exec', 'unread':
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.set_inheritable(end == 'exec'); pid = os.fork()
    if pid == 0:
        s.connect(ECHO); s.send(b'x'); s.recv(1) if end != 'unread' else 0
        if end == 'exec': os.execv('/bin/true', ['true'])
        os._exit(0)
    os.waitpid(pid, 0); s.close()
    n = socket.create_connection(('203.0.113.5', 85)); want(n.recv(1), b'')`},
	{name: "the death of the gate", tool: "python3", script: `
import select, threading
udp = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s, idle, waiting = udp(), udp(), udp(); s.connect(ECHO); s.send(b'x'); want(s.recv(1), b'x'); waiting.connect(A); got = []
all = [threading.Thread(target=lambda: no(lambda: got.append(waiting.recv(1)))), threading.Thread(target=lambda: no(lambda: [waiting.send(b'x' * 1000) for _ in iter(int, 1)]))]
for t in all: t.start()
no(lambda: socket.create_connection(('203.0.113.5', 86)))
for t in all: t.join()
if any(got): raise AssertionError(got)
p = select.poll(); p.register(s, 0); want(p.poll()[0][1] & select.POLLHUP, select.POLLHUP)
for again in s, idle, udp():
    fails(errno.ECONNREFUSED, lambda: again.connect(ECHO)); fails(errno.ECONNREFUSED, lambda: again.sendto(b'x', ECHO)); disconnect(again)`},
	{name: "asyncio", tool: "python3", script: `
import asyncio
class P(asyncio.DatagramProtocol):
    def connection_made(self, t): self.got = asyncio.Queue()
    def datagram_received(self, data, addr): self.got.put_nowait((data, addr))
    def error_received(self, e): self.got.put_nowait(e)
    def connection_lost(self, e): self.got.put_nowait(e)
async def main():
    loop = asyncio.get_running_loop()
    for how in dict(local_addr=('0.0.0.0', 0)), dict(remote_addr=ECHO), dict(family=socket.AF_INET):
        t, p = await loop.create_datagram_endpoint(P, **how); begun = time.process_time()
        await asyncio.sleep(2); used = time.process_time() - begun
        if used > 0.5: raise AssertionError('an idle loop uses %f s' % used)
        for i in range(3): t.sendto(b'%d' % i, *([] if 'remote_addr' in how else [ECHO])); want(await p.got.get(), (b'%d' % i, ECHO))
        begun = time.process_time(); await asyncio.sleep(1); used = time.process_time() - begun
        if used > 0.5: raise AssertionError('an idle loop uses %f s' % used)
        t.close(); want(await p.got.get(), None)
asyncio.run(main())`},
	{name: "node", tool: "node", script: `node -e '
const dgram = require("dgram"), fail = e => { console.log("error", e); process.exit(1) }
const idle = dgram.createSocket("udp4").on("error", fail); idle.bind(0)
const s = dgram.createSocket("udp4").on("error", fail); let got = []
s.on("message", m => { got.push(m.toString()); if (got.length < 3) return s.send("x" + got.length)
  const cpu = process.cpuUsage(); setTimeout(() => { const { user } = process.cpuUsage(cpu)
    s.disconnect(); s.connect(9, "203.0.113.10", () => s.send("a0", e => { if (e) fail(e)
      idle.send("lost", 7, "203.0.113.5", e => { if (e) fail(e)
        idle.close(() => s.close(() => console.log(got.join() == "x0,x1,x2" && user < 5e5 ? "ok" : [got, user]))) }) })) }, 1000) })
s.connect(7, "203.0.113.5", () => s.send("x0"))'`, a: []string{"a0"}},
	{name: "dig", tool: "dig", script: `dig +short a.example.com @198.51.100.1 | grep -qx 203.0.113.5 && echo ok`},
}

type datagramScript struct {
	name, tool, script string
	a, b               []string // what the hosts must have got
}

// tagged returns the n messages NAME0, NAME1, …
func tagged(name string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s%d", name, i))
	}
	return all
}

const inetDatagramPrelude = `
ECHO, A, B = ('203.0.113.5', 7), ('203.0.113.10', 9), ('203.0.113.11', 9)
QUERY = struct.pack('!6H', 7, 256, 1, 0, 0, 0) + b'\x07example\x03com\x00\x00\x01\x00\x01'
libc = ctypes.CDLL(None)
def disconnect(s): want(libc.connect(s.fileno(), bytes(16), 16), 0)
def no(f):
    try: f()
    except OSError: pass
`

// recorder is a host that never answers, and loses nothing.
type recorder struct {
	path string
	own  sync.WaitGroup

	mu  sync.Mutex
	got []string
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{path: filepath.Join(t.TempDir(), "h")}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: r.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	r.own.Go(func() {
		b := make([]byte, maxDatagram)
		for {
			n, err := l.Read(b)
			if err != nil {
				return
			}
			if n < 1000 && string(b[:n]) != "flood" {
				r.mu.Lock()
				r.got = append(r.got, string(b[:n]))
				r.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.own.Wait()
	})
	return r
}

// await waits until the host has got as many datagrams as want, and returns all.
func (r *recorder) await(want int) []string {
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r.mu.Lock()
		got := slices.Clone(r.got)
		r.mu.Unlock()
		if len(got) >= want || time.Now().After(late) {
			return got
		}
	}
}

// datagramNetwork returns the network of inetDatagrams and its hosts.
func datagramNetwork(t *testing.T) (table map[string]string, a, b *recorder) {
	t.Helper()
	table, a, b = outside(t), newRecorder(t), newRecorder(t)
	table["203.0.113.10:9"], table["203.0.113.11:9"] = a.path, b.path
	table["203.0.113.5:85"], table["203.0.113.5:86"] = "until no session", "death"
	return table, a, b
}

func TestInet_ServesDatagrams(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		for _, p := range slices.Concat(inetDatagrams, inetMessages) {
			t.Run(who+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				if _, err := exec.LookPath(p.tool); err != nil {
					t.Skipf("needs %s: to run it in the sandbox", p.tool)
				}
				program := []string{"/bin/sh", "-c", p.script}
				if p.tool == "python3" {
					program = []string{python(t), "-c", inetPrelude + inetDatagramPrelude + inetMessagePrelude + p.script +
						"\nprint('ok', flush=True); os._exit(0)"}
				}
				table, a, b := datagramNetwork(t)
				e := newEntrance(t, uid, table)
				if out, err := e.run(program); err != nil || !strings.HasSuffix(out, "ok\n") {
					t.Errorf("%v\n%s", err, out)
				}
				for name, host := range map[string]struct {
					*recorder
					want []string
				}{"A": {a, p.a}, "B": {b, p.b}} {
					if got := host.await(len(host.want)); !slices.Equal(got, host.want) {
						t.Errorf("host %s has %q, want %q", name, got, host.want)
					}
				}
				e.awaitNoSession()
			})
		}
	}
}

// TestInet_SurvivesExhaustion lets a sandbox make sockets for UDP until init, which has few descriptors, refuses more.
// Other sockets work meanwhile, and later all do.
func TestInet_SurvivesExhaustion(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			table, _, _ := datagramNetwork(t)
			e := newEntrance(t, uid, table)
			e.files = leastDescriptors
			out, err := e.run([]string{python(t), "-c", inetPrelude + inetDatagramPrelude + `
held = socket.create_connection(ECHO); rounds = 0
while rounds < 3: # until the sockets of the last round are found to be closed
    all = []
    try:
        while True: s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); all.append(s); s.connect(ECHO); s.send(b'x'); want(s.recv(9), b'x')
    except OSError as e: want(e.errno, errno.EMFILE)
    held.send(b'x'); want(held.recv(1), b'x'); rounds += len(all) > 100
    for s in all: s.connect(A); s.connect(ECHO); s.send(b'y'); want(s.recv(9), b'y') # what there is works
    for s in all: s.close()
print('ok', flush=True); os._exit(0)`})
			if err != nil || out != "ok\n" {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestInet_EndsWithInit kills init while its sandbox waits for a datagram.
func TestInet_EndsWithInit(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			table, _, _ := datagramNetwork(t)
			e := newEntrance(t, uid, table)
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			cmd, err := e.command(ctx, []string{python(t), "-c", inetPrelude + inetDatagramPrelude + `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(A); n = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
open('ready', 'w').close(); got = s.recv(9), n.recv(9); f = open('over.tmp', 'w'); f.write(repr(got)); f.close(); os.rename('over.tmp', 'over')`})
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			awaitFile(t, filepath.Join(e.work, "ready"))
			stop()
			_ = cmd.Wait()
			if got := awaitFile(t, filepath.Join(e.work, "over")); got != "(b'', b'')" {
				t.Errorf("the sandbox receives %s", got)
			}
			e.awaitNoSession()
		})
	}
}

// awaitFile waits for a file, and returns its content.
func awaitFile(t *testing.T, path string) string {
	t.Helper()
	for late := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if err == nil {
			return string(b)
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
	}
}
