//go:build linux && (amd64 || arm64)

package notify

import (
	"encoding/binary"
	"math"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// inetMessages are scripts like inetDatagrams about sendmsg(2), recvmsg(2) and their forms for several messages.
var inetMessages = []datagramScript{
	{name: "addresses of messages", tool: "python3", script: `
s = udp(); want(s.sendmsg([b'on', b'', b'e'], [], 0, ECHO), 3); want(s.recvmsg(9, 99), (b'one', [], 0, ECHO))
want(s.sendmsg([b'twelve bytes'], [], 0, ECHO), 12); parts = [bytearray(5), bytearray(0), bytearray(4), bytearray(9)]
want(s.recvmsg_into(parts), (12, [], 0, ECHO)); want(b''.join(parts), b'twelve bytes'.ljust(18, b'\0'))
s.sendmsg([b'cut'], [], 0, ECHO); want(s.recvmsg(2, 0, socket.MSG_PEEK), (b'cu', [], socket.MSG_TRUNC, ECHO)); want(s.recvmsg(2), (b'cu', [], socket.MSG_TRUNC, ECHO))
s.sendmsg([b'long'], [], 0, ECHO); want(receive(s, 2, socket.MSG_TRUNC)[0], 4)
s.sendmsg([b'long'], [], 0, ECHO); want(s.recvfrom_into(bytearray(2), 2, socket.MSG_TRUNC), (4, ECHO))
s.sendmsg([b'x'], [], socket.MSG_CONFIRM | socket.MSG_NOSIGNAL, ECHO); want(s.recvmsg(0), (b'', [], socket.MSG_TRUNC, ECHO))
want(s.sendmsg([b'x' * 60] * 1000, [], 0, ECHO), 60000); want(s.recvmsg(65536)[0], b'x' * 60000)
s.setblocking(False); fails(errno.EAGAIN, lambda: s.recvmsg(9)); s.setblocking(True)
for f in s.recvmsg, s.recvfrom: fails(errno.EAGAIN, lambda: f(9, *[0][:f == s.recvmsg], socket.MSG_DONTWAIT)); fails(errno.EAGAIN, lambda: f(9, *[0][:f == s.recvmsg], socket.MSG_ERRQUEUE))
s.settimeout(0.1)
try: s.recvmsg(9); raise AssertionError
except TimeoutError: pass
n = udp(socket.AF_INET6); n.sendmsg([b'six'], [], 0, ('::ffff:203.0.113.5', 7)); want(n.recvmsg(9)[3][:2], ('::ffff:203.0.113.5', 7))
want(receive(n, 0, socket.MSG_DONTWAIT)[1], errno.EAGAIN)`},
	{name: "errors of messages", tool: "python3", script: `
s = udp(); to = lambda a, *d, flags=0, control=[]: lambda: s.sendmsg(d or [b'x'], control, flags, a)
fails(errno.EDESTADDRREQ, lambda: s.sendmsg([b'x'])); s.sendto(b'to', A); fails(errno.EDESTADDRREQ, lambda: s.sendmsg([b'x']))
fails(errno.EMSGSIZE, to(ECHO, b'x' * 65507, b'x')); fails(errno.EMSGSIZE, to(ECHO, *[b'x'] * 1025)); fails(errno.EINVAL, to((ECHO[0], 0)))
fails(errno.ECONNREFUSED, to(('127.0.0.1', 9))); fails(errno.EHOSTUNREACH, to(('203.0.113.6', 7)))
for flag in socket.MSG_OOB, socket.MSG_MORE: fails(errno.EOPNOTSUPP, to(ECHO, flags=flag)); fails(errno.EOPNOTSUPP, lambda: s.sendto(b'x', flag, ECHO))
SEGMENT, TOS = (17, 103, struct.pack('H', 1)), (socket.IPPROTO_IP, socket.IP_TOS, struct.pack('i', 2))
for control in [SEGMENT], [TOS, SEGMENT]: fails(errno.EIO, to(ECHO, control=control))
fails(errno.ENOPROTOOPT, lambda: s.setsockopt(17, 103, 1200)) # no library sends segments
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('i', 0)); info = (socket.IPPROTO_IP, 8, bytes(12)) # IP_PKTINFO
s.sendmsg([b'control'], [TOS, rights, info], 0, A)
s.connect(A); s.sendmsg([b'to the peer']); s.sendmsg([b'the same'], [], 0, A); fails(errno.EISCONN, to(B)); disconnect(s)
fails(errno.EDESTADDRREQ, lambda: s.sendmsg([b'x'])); s.sendmsg([b'to another'], [], 0, B)`,
		a: []string{"to", "control", "to the peer", "the same"}, b: []string{"to another"}},
	{name: "several messages", tool: "python3", script: `
s = udp(); want(s.sendto(b'x', ECHO), 1); want(s.recv(1), b'x')
all = [Message(b'%d' % i, ECHO) for i in range(40)]; want(call(libc.sendmmsg, s, all), (40, 0)); want([m.size for m in all], [len(b'%d' % i) for i in range(40)])
got = []
while len(got) < 40:
    into = [Message(bytes(9), ('0.0.0.0', 0)) for _ in range(9)]; n, e = call(libc.recvmmsg, s, into, socket.MSG_WAITALL, None); want(e, 0)
    got += [m.content() for m in into[:n]]; want([m.peer() for m in into[:n]], [ECHO] * n); want([m.size for m in into[n:]], [-1] * (9 - n))
want(got, [b'%d' % i for i in range(40)])
want(call(libc.recvmmsg, s, into, socket.MSG_DONTWAIT, None), (-1, errno.EAGAIN)); want(call(libc.sendmmsg, s, []), (0, 0))
def rest(all): # callers send what is left
    while all:
        n, e = call(libc.sendmmsg, s, all); want(e, 0); all = all[n:]
rest([Message(b'%s%d' % (n, i), to) for i in range(50) for to, n in ((A, b'a'), (B, b'b'))])
want(call(libc.sendmmsg, s, [Message(b'a50', A), Message(b'x', ('127.0.0.1', 9)), Message(b'x', A)]), (1, 0))
want(call(libc.sendmmsg, s, [Message(b'x', ('127.0.0.1', 9)), Message(b'x', A)]), (-1, errno.ECONNREFUSED))
s.connect(A); want(call(libc.sendmmsg, s, [Message(b'a51'), Message(b'a52')]), (2, 0))`, a: tagged("a", 53), b: tagged("b", 50)},
	{name: "threads that wait for messages", tool: "python3", script: `
import signal, threading
s = udp(); got = []; s.bind(('', 0))
def receive():
    for _ in range(20): got.append(s.recvmsg(9)[0])
all = [threading.Thread(target=receive) for _ in range(5)]
for t in all: t.start()
for i in range(100): s.sendmsg([b'%d' % i], [], 0, ECHO)
for t in all: t.join()
want(sorted(got, key=int), [b'%d' % i for i in range(100)])
seen = []; signal.signal(signal.SIGALRM, lambda *a: (seen.append(1), len(seen) == 3 and s.send(b'late'))); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
want(s.recvmsg(9), (b'late', [], 0, ECHO)); signal.setitimer(signal.ITIMER_REAL, 0)`},
	{name: "the resolver of musl", tool: "python3", script: `
import select
def resolve(family, servers, wildcard): # as in __res_msend_rc
    s = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK); s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0); s.bind((wildcard, 0))
    queries = [QUERY, b'\0\x08' + QUERY[2:-4] + b'\0\x1c\0\1']; answers = {}
    for q in queries:
        for server in servers: want(s.sendto(q, socket.MSG_NOSIGNAL, (server, 53)), len(q))
    p = select.poll(); p.register(s, select.POLLIN)
    while len(answers) < 2:
        p.poll()
        try:
            while True:
                b, _, flags, peer = s.recvmsg(4800); want(flags, 0); want(peer[0] in servers, True); want(peer[1], 53); answers[b[1]] = b
        except BlockingIOError: pass
    want(answers[7][-4:], bytes([203, 0, 113, 5])); want(answers[8][3] & 15, 0)
resolve(socket.AF_INET, ['198.51.100.1'], '0.0.0.0'); resolve(socket.AF_INET, ['198.51.100.1', '198.51.100.2', '8.8.8.8'], '0.0.0.0')
resolve(socket.AF_INET6, ['::ffff:198.51.100.1', '2001:db8::1'], '::')
t = socket.socket(); t.setblocking(False); t.setsockopt(socket.IPPROTO_TCP, 30, 1) # a query over TCP, TCP_FASTOPEN_CONNECT
fails(errno.EOPNOTSUPP, lambda: t.sendmsg([struct.pack('!H', len(QUERY)), QUERY], [], socket.MSG_FASTOPEN, ('198.51.100.1', 53))); no(lambda: t.connect(('198.51.100.1', 53)))
select.select([], [t], []); want(t.sendmsg([struct.pack('!H', len(QUERY)), QUERY]), len(QUERY) + 2); select.select([t], [], []); want(t.recvmsg(2)[0] > b'\0\0', True)`},
	{name: "musl", tool: "musl-gcc", script: `cat >r.c <<'X'
#include <netdb.h>
#include <stdio.h>
int main(void) { struct addrinfo *a; int e = getaddrinfo("name.example.com", "80", 0, &a); if (e) puts(gai_strerror(e));
  for (; !e && a; a = a->ai_next) if (a->ai_family == 2 && ((unsigned char *)a->ai_addr)[4] == 203) return puts("ok"), 0; return 1; }
X
musl-gcc -static -o r r.c && ./r`},
	{name: "node without connect", tool: "node", script: `node -e '
const dgram = require("dgram"), fail = e => { console.log("error", e); process.exit(1) }
const s = dgram.createSocket("udp4").on("error", fail), far = "203.0.113.5"; let got = []
s.on("message", (m, from) => { got.push(m + " " + from.address + " " + from.port); if (got.length < 20) return
  let left = 100; for (let i = 0; i < 50; i++) for (const [n, host] of [["a", "203.0.113.10"], ["b", "203.0.113.11"]])
    s.send(n + i, 9, host, e => { if (e) fail(e); if (--left == 0) s.close(() => { const want = [...Array(20).keys()].map(i => "x" + i + " " + far + " 7")
      console.log(got.join() == want.join() ? "ok" : got) }) }) })
for (let i = 0; i < 20; i++) s.send(["x", "" + i], 7, far, e => { if (e) fail(e) })'`, a: tagged("a", 50), b: tagged("b", 50)},
}

// inetMessagePrelude begins the scripts in Python about datagrams, after inetDatagramPrelude.
const inetMessagePrelude = `
libc = ctypes.CDLL(None, use_errno=True)
def udp(family=socket.AF_INET): return socket.socket(family, socket.SOCK_DGRAM)
def sockaddr(to): return struct.pack('=H', socket.AF_INET) + struct.pack('!H', to[1]) + socket.inet_aton(to[0]) + bytes(8)
def number(b): return ctypes.addressof(b)
class Message: # a msghdr with one part
    def __init__(self, data, to=None):
        self.data, self.name = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(sockaddr(to), 16) if to else None
        self.part = ctypes.create_string_buffer(struct.pack('@QQ', number(self.data), len(data)), 16); self.size = -1
    def header(self): return struct.pack('@QIIQQQQIIiI', number(self.name) if self.name else 0, 16 if self.name else 0, 0, number(self.part), 1, 0, 0, 0, 0, self.size, 0)
    def content(self): return self.data.raw[:self.size]
    def peer(self): return socket.inet_ntoa(self.name.raw[4:8]), struct.unpack('!H', self.name.raw[2:4])[0]
def call(f, s, all, flags=0, *rest):
    ctypes.set_errno(0); b = ctypes.create_string_buffer(b''.join(m.header() for m in all), 64 * len(all) + 1)
    n = f(s.fileno(), b, len(all), flags, *rest)
    for i, m in enumerate(all): m.size = struct.unpack_from('@i', b, 64 * i + 56)[0]
    return n, ctypes.get_errno() if n < 0 else 0
def receive(s, room, flags):
    b = ctypes.create_string_buffer(room + 1); part = ctypes.create_string_buffer(struct.pack('@QQ', number(b), room), 16)
    h = ctypes.create_string_buffer(struct.pack('@QIIQQQQQ', 0, 0, 0, number(part), 1, 0, 0, 0), 56); n = libc.recvmsg(s.fileno(), h, flags)
    return n, ctypes.get_errno() if n < 0 else 0
`

func TestMessage_ReadsControl(t *testing.T) {
	t.Parallel()
	one := func(size uint64, level, kind uint32, more ...byte) []byte {
		b := binary.NativeEndian.AppendUint64(nil, size)
		b = binary.NativeEndian.AppendUint32(b, level)
		return append(binary.NativeEndian.AppendUint32(b, kind), more...)
	}
	tos, segment := one(20, unix.SOL_IP, unix.IP_TOS, make([]byte, 8)...), one(18, unix.SOL_UDP, unix.UDP_SEGMENT, 1, 0)
	for name, tt := range map[string]struct {
		b    []byte
		want error
	}{
		"none":             {nil, nil},
		"too short":        {make([]byte, cmsgSize-1), nil},
		"tos":              {tos, nil},
		"segment":          {segment, unix.EIO},
		"another and it":   {append(tos[:24:24], segment...), unix.EIO},
		"no size":          {one(0, unix.SOL_IP, unix.IP_TOS), unix.EINVAL},
		"longer than data": {one(17, unix.SOL_IP, unix.IP_TOS), unix.EINVAL},
		"overflow":         {one(math.MaxUint64-1, unix.SOL_IP, unix.IP_TOS), unix.EINVAL},
		"cut padding":      {one(19, unix.SOL_IP, unix.IP_TOS, 1, 2, 3), nil},
	} {
		if got := refusedControl(tt.b); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestTransmit_SendsNothingForADeadCaller checks that a datagram leaves only if its caller still waits: what was read by
// the caller's number may be of another process.
func TestTransmit_SendsNothingForADeadCaller(t *testing.T) {
	t.Parallel()
	socket, f, err := newPair(unix.O_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	n := &Internet{kept: newKept(maxKept, func(uint64) {}, others)}
	defer n.kept.close()
	inode, err := inodeOf(socket)
	if err != nil {
		t.Fatal(err)
	}
	own, err := unix.Dup(socket)
	if err == nil {
		_, err = n.kept.hold(own, f)
	}
	if err == nil {
		err = f.unmute()
	}
	if err != nil {
		t.Fatal(err)
	}
	n.names.set(inode, endpoint{family: unix.AF_INET, packet: true, connected: true,
		peer: netip.MustParseAddrPort("203.0.113.5:7")})
	s := &server{listener: listener{-1}, inet: n} // no caller waits at it
	if _, err := s.transmit(caller{s: s}, socket, nil, []byte("x"), unix.MSG_DONTWAIT); err != unix.ESRCH {
		t.Errorf("%v, want %v", err, unix.ESRCH)
	}
	if ready(f.far, unix.POLLIN) {
		t.Error("a datagram was sent")
	}
}

func TestMessage_BoundsItsParts(t *testing.T) {
	t.Parallel()
	list := func(sizes ...uint64) (b []byte) {
		for _, n := range sizes {
			b = binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, 8), n)
		}
		return b
	}
	for name, tt := range map[string]struct {
		sizes []uint64
		size  int
		err   error
	}{
		"none":       {nil, 0, nil},
		"some":       {[]uint64{3, 0, 4}, 7, nil},
		"too many":   {[]uint64{maxPayload, 1}, maxPayload + 1, nil},
		"far more":   {[]uint64{math.MaxInt64, math.MaxInt64, math.MaxInt64}, maxDatagram, nil},
		"a negative": {[]uint64{1, math.MaxInt64 + 1}, 1, unix.EINVAL},
	} {
		m := &message{}
		if err := m.addParts(list(tt.sizes...)); err != tt.err || m.size != tt.size {
			t.Errorf("%s: %d %v, want %d %v", name, m.size, err, tt.size, tt.err)
		}
	}
}
