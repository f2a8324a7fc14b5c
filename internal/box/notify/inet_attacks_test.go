//go:build linux && (amd64 || arm64)

package notify

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// inetAttacks are scripts in Python that print THROUGH if they reach something. TARGET is the port of a TCP and a UDP
// socket on the host's loopback, and SOCK and DGRAM are Unix sockets of the host, none of which any of them may reach.
// RUN is Inet.Dir. After each, the sandbox must still have its network.
var inetAttacks = []struct{ name, script string }{
	{"tcp", `
for to in '127.0.0.1', '0.0.0.0', '127.1.2.3', '::1', '::ffff:127.0.0.1', '203.0.113.77':
    s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET); s.settimeout(5)
    if s.connect_ex((to, TARGET)) == 0: through()`},
	{"udp", `
for to in '127.0.0.1', '0.0.0.0', '203.0.113.77':
    for send in (lambda s: s.sendto(b'x', (to, TARGET)), lambda s: s.sendmsg([b'x'], [], 0, (to, TARGET)),
                 lambda s: (s.connect((to, TARGET)), s.send(b'x')), lambda s: s.sendto(b'x', socket.MSG_FASTOPEN, (to, TARGET))):
        for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
            no(lambda: send(socket.socket(socket.AF_INET, kind)))`},
	{"other sockets", `
for family in range(46):
    for kind in range(1, 11):
        for proto in 0, 1, 2, 6, 17, 58, 132, 136, 255, 262:
            try: s = socket.socket(family, kind, proto)
            except OSError: continue
            if family == socket.AF_UNIX and kind in (1, 5): continue
            # what stands for a socket of the Internet is a Unix socket: it has no option of one
            has = lambda level, option: syscall(NR_GETSOCKOPT, s.fileno(), level, option, ctypes.create_string_buffer(4), ctypes.byref(ctypes.c_int(4))) == 0
            if family not in (socket.AF_INET, socket.AF_INET6) or has(0, 2) or has(41, 16): through() # IP_TTL, IPV6_UNICAST_HOPS
            if kind not in (1, 2) or proto not in (0, 6, 17, 262): through()
for kind in 1, 2, 5: no(lambda: (socket.socketpair(socket.AF_INET, kind), through()))`},
	{"unix sockets of the host", `
for make in (lambda: socket.socket(), lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
             lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)):
    for path in SOCK, DGRAM, RUN + '/tcp', RUN + '/udp', RUN + '/ports/1', '\0' + ABSTRACT:
        no(lambda: (connect_unix(make(), path), through()))
        no(lambda: (sendto_unix(make(), path), through()))`},
	{"paths of init", `
l = socket.create_server(('127.0.0.1', 0)); raw = ctypes.create_string_buffer(128)
for init in os.getppid(), 'self':
    for fd in range(40):
        for name in 'tcp', 'udp', 'ports/%d' % l.getsockname()[1]:
            for s in socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
                no(lambda: (connect_unix(s, '/proc/%s/fd/%d/%s' % (init, fd, name)), through()))`},
	{"the directory of ports", `
import pathlib
for do in (lambda: os.listdir(RUN + '/ports'), lambda: os.symlink(SOCK, RUN + '/ports/7777'), lambda: os.unlink(RUN + '/tcp'),
           lambda: os.rename(RUN + '/ports', RUN + '/other'), lambda: os.mkdir(RUN + '/ports/8'), lambda: os.open(RUN, os.O_RDONLY),
           lambda: bind_unix(socket.socket(), RUN + '/ports/7778'), lambda: bind_unix(socket.socket(socket.AF_UNIX), RUN + '/x')):
    no(lambda: (do(), LANDLOCK and through()))
no(lambda: (socket.create_connection(('127.0.0.1', 7777)), LANDLOCK and through()))`},
	{"an address that changes", `
path = struct.pack('=H', socket.AF_UNIX) + SOCK.encode().ljust(107, b'\0')
near = struct.pack('=HH4s', socket.AF_INET, socket.htons(TARGET), bytes([127, 0, 0, 1])).ljust(16, b'\0')
far = struct.pack('=HH4s', socket.AF_INET, socket.htons(7), bytes([203, 0, 113, 5])).ljust(16, b'\0')
memory = ctypes.create_string_buffer(far, 128)
def change():
    while True:
        for a in path, far, near: ctypes.memmove(memory, a, len(a))
threads(2, change); end = time.monotonic() + ROUNDS
while time.monotonic() < end:
    s = socket.socket(); libc.connect(s.fileno(), memory, 110); no(lambda: s.send(b'x')); s.close()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); libc.sendto(s.fileno(), b'x', 1, 0, memory, 110); s.close()
    s = socket.socket(socket.AF_UNIX); libc.connect(s.fileno(), memory, 110); s.close()
    s = socket.socket(); libc.bind(s.fileno(), memory, 110); s.close()`},
	{"a descriptor that changes", `
path = struct.pack('=H', socket.AF_UNIX) + SOCK.encode().ljust(107, b'\0')
near = struct.pack('=HH4s', socket.AF_INET, socket.htons(TARGET), bytes([127, 0, 0, 1])).ljust(16, b'\0')
l = socket.create_server(('127.0.0.1', 0)); file = os.open('file', os.O_CREAT | os.O_RDWR)
def change():
    while True:
        for make in (lambda: socket.socket(), lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
                     lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)):
            s = make(); os.dup2(s.fileno(), 99); s.close()
        os.dup2(file, 99); os.dup2(l.fileno(), 99)
os.dup2(file, 99); l.setblocking(False)
threads(2, change); end = time.monotonic() + ROUNDS; size = ctypes.c_int(16); out = ctypes.create_string_buffer(128)
while time.monotonic() < end:
    for a in path, near:
        libc.connect(99, a, len(a)); libc.sendto(99, b'x', 1, socket.MSG_DONTWAIT, a, len(a)); libc.bind(99, a, len(a)); libc.listen(99, 1)
        libc.getsockname(99, out, ctypes.byref(size)); libc.recvfrom(99, out, 1, socket.MSG_DONTWAIT, out, ctypes.byref(size))
        size.value = 16`},
	{"a header of its own", `
import array
def write(s):
    r, w = os.pipe()
    head = struct.pack('>BBH', 2, 0, TARGET) + b'\0' * 10 + b'\xff\xff' + bytes([127, 0, 0, 1, 0, 0])
    while True:
        try: s.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [w]))], socket.MSG_DONTWAIT); return
        except OSError as e:
            if e.errno not in (errno.ENOTCONN, errno.EAGAIN): return
for _ in range(75 * ROUNDS):
    s = socket.socket(); s.setblocking(False); threads(1, lambda: write(s)); s.connect_ex(('203.0.113.5', 7))
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); threads(1, lambda: write(s)); no(lambda: s.connect(('203.0.113.5', 7)))
s = socket.create_connection(('203.0.113.5', 7))
for _ in range(50): s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 200))])`},
	{"datagrams that race", `
udp = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM); echo, far, none = ('203.0.113.5', 7), ('203.0.113.9', 7), ('127.0.0.1', TARGET)
unspec = bytes(16); end = time.monotonic() + ROUNDS; shared = [udp()]
def each(f):
    def run():
        while time.monotonic() < end: no(lambda: f(shared[0]))
    return run
def again(s): shared[0] = udp(); s.close(); time.sleep(0.01)
for f in (lambda s: s.connect(echo), lambda s: s.connect(far), lambda s: s.connect(none), lambda s: libc.connect(s.fileno(), unspec, 16),
          lambda s: s.sendto(b'x' * 100, echo), lambda s: s.sendto(b'x', far), lambda s: s.send(b'flood', socket.MSG_DONTWAIT),
          lambda s: s.recvfrom(9, socket.MSG_DONTWAIT), lambda s: s.bind(('', 0)), lambda s: s.listen(), lambda s: connect_unix(s, SOCK)):
    threads(1, each(f))
while time.monotonic() < end: again(shared[0])
for how in socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR:
    s = udp(); no(lambda: s.shutdown(how)); no(lambda: s.connect(echo)); no(lambda: s.send(b'x')); no(lambda: s.shutdown(how)); no(lambda: s.connect(none)); s.close()
s = udp(); s.connect(echo); a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
for _ in range(50): s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('2i', s.fileno(), a.fileno()))]) # itself
s.close(); s = udp(); s.sendto(b'x', echo); want(s.recvfrom(9), (b'x', echo))`},
	{"messages that are wrong", `
wild = [0, 1, 4095, 2**47 - 8, 2**63, 2**64 - 8]; sizes = [0, 1, 65507, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1]
b = ctypes.create_string_buffer(70000); at = ctypes.addressof(b); page = mmap.mmap(-1, 4096); edge = ctypes.addressof(ctypes.c_char.from_buffer(page)) + 4096 - 8
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.setblocking(False); unix, _ = socket.socketpair(); unix.setblocking(False)
far = ctypes.create_string_buffer(struct.pack('=HH4s', socket.AF_INET, socket.htons(7), bytes([203, 0, 113, 5])).ljust(16, b'\0'))
def header(name=ctypes.addressof(far), size=16, parts=0, count=0, control=0, room=0): return struct.pack('@QIIQQQQII', name, size & 0xffffffff, 0, parts, count, control, room, 0, 0)
def all():
    for n in sizes: yield header(count=n); yield header(parts=at, count=n); yield header(control=at, room=n); yield header(size=n)
    for a in wild + [edge]:
        yield header(name=a); yield header(parts=a, count=1024); yield header(parts=a, count=1); yield header(control=a, room=16)
        for n in sizes: yield header(parts=place(struct.pack('@QQ', a, n)), count=1); yield header(parts=place(struct.pack('@QQ', at, n) * 1024), count=1024)
def place(data): ctypes.memmove(at, data, len(data)); return at
for h in all():
    several = ctypes.create_string_buffer(h + bytes(8), 64)
    for s in udp, unix:
        for flags in 0, socket.MSG_PEEK | socket.MSG_TRUNC, -1:
            libc.sendmsg(s.fileno(), several, flags); libc.recvmsg(s.fileno(), several, flags | socket.MSG_DONTWAIT)
            for n in 0, 1, 2**31, 2**32 - 1: libc.sendmmsg(s.fileno(), several, ctypes.c_uint(n), flags); libc.recvmmsg(s.fileno(), several, ctypes.c_uint(n), flags | socket.MSG_DONTWAIT, None)
for a in wild + [edge]:
    for s in udp, unix:
        for f in libc.sendmsg, libc.recvmsg: want(f(s.fileno(), ctypes.c_void_p(a), socket.MSG_DONTWAIT), -1)
        for f in libc.sendmmsg, libc.recvmmsg: want(f(s.fileno(), ctypes.c_void_p(a), 9, socket.MSG_DONTWAIT, None), -1)
for size, count in (-1, 0), (16, 1025): # what the kernel says
    several = ctypes.create_string_buffer(header(size=size, count=count)); want(libc.sendmsg(udp.fileno(), several, 0), -1); want(ctypes.get_errno(), errno.EINVAL if size < 0 else errno.EMSGSIZE)`},
	{"messages that change", `
echo, path = struct.pack('=HH4s', socket.AF_INET, socket.htons(7), bytes([203, 0, 113, 5])).ljust(16, b'\0'), struct.pack('=H', socket.AF_UNIX) + SOCK.encode().ljust(107, b'\0')
near = struct.pack('=HH4s', socket.AF_INET, socket.htons(TARGET), bytes([127, 0, 0, 1])).ljust(16, b'\0')
b = ctypes.create_string_buffer(4096); at = ctypes.addressof(b); h = ctypes.create_string_buffer(64 * 8); parts = ctypes.create_string_buffer(16 * 1024)
rights = struct.pack('@QIIi4x', 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, 0); end = time.monotonic() + ROUNDS; shared = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
headers = [struct.pack('@QIIQQQQIIII', n, k, 0, p, c, q, r, 0, 0, 0, 0) for n, k in ((at, 16), (at, 110), (0, 0), (at, 0xffffffff)) for p, c in ((ctypes.addressof(parts), 2), (ctypes.addressof(parts), 1024), (8, 1), (0, 0)) for q, r in ((0, 0), (at + 200, 24))]
def change():
    k = 0
    while time.monotonic() < end:
        for a in echo, path, near: ctypes.memmove(b, a, len(a))
        ctypes.memmove(at + 200, rights, 24); k += 1; ctypes.memmove(ctypes.addressof(h) + 64 * (k % 8), headers[k % len(headers)], 64)
        ctypes.memmove(ctypes.addressof(parts) + 16 * (k % 4), struct.pack('@QQ', (at, 8)[k % 3 == 0], (9, 2**63, 70000, 0)[k % 4]), 16)
def again():
    makers = [lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket, lambda: socket.socket(socket.AF_UNIX), lambda: os.open('file', os.O_CREAT | os.O_RDWR)]
    while time.monotonic() < end:
        for make in makers: s = make(); os.dup2(s if isinstance(s, int) else s.fileno(), 99); os.close(s) if isinstance(s, int) else s.close(); time.sleep(0.002)
def use(f, *rest):
    def run():
        while time.monotonic() < end: f(99, h, *rest); f(shared[0].fileno(), h, *rest)
    return run
os.dup2(shared[0].fileno(), 99); threads(2, change); threads(1, again)
for f in libc.sendmsg, libc.recvmsg: threads(2, use(f, socket.MSG_DONTWAIT))
for f in libc.sendmmsg, libc.recvmmsg: threads(2, use(f, 8, socket.MSG_DONTWAIT, None))
while time.monotonic() < end: s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); old = shared[0]; shared[0] = s; old.close(); no(lambda: s.connect(('203.0.113.5', 7))); time.sleep(0.01)
time.sleep(0.5)`},
	{"a flood of messages", `
import signal
kids = []
for i in range(3):
    pid = os.fork()
    if pid == 0:
        udp = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]; a, b = socket.socketpair()
        threads(100, lambda: udp[0].recvmsg(10)); threads(30, lambda: [udp[1].sendmsg([b'x' * 60000], [], 0, ('203.0.113.5', 7)) for _ in iter(int, 1)])
        threads(30, lambda: [udp[2].sendmsg([b'x'], [], 0, (to, 7)) for _ in iter(int, 1) for to in ('203.0.113.5', '127.0.0.1', '203.0.113.9')])
        threads(3, lambda: [(a.sendmsg([b'x']), b.recvmsg(1)) for _ in iter(int, 1)])
        time.sleep(1000)
    kids.append(pid)
time.sleep(2); s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)
want(socket.socket().getsockname(), ('0.0.0.0', 0)); a, b = socket.socketpair(); a.sendmsg([b'x']); want(b.recvmsg(1)[0], b'x')
for pid in kids: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
s.sendmsg([b'x'], [], 0, ('203.0.113.5', 7)); want(s.recvmsg(1)[3], ('203.0.113.5', 7))`},
	{"options", `
for level in 0, 1, 6, 17, 41, 263, 282, 284:
    for name in range(80):
        for value in b'\0\0\0\0', b'\1\0\0\0', b'lo\0\0':
            s = socket.socket(); no(lambda: s.setsockopt(level, name, value)); s.settimeout(1)
            if name % 16 == 0 and s.connect_ex(('127.0.0.1', TARGET)) == 0: through()`},
	{"wrong arguments", `
for f in libc.connect, libc.bind, libc.getsockname, libc.getpeername, libc.accept:
    for fd in -1, 0, 500, socket.socket().detach(), socket.create_server(('127.0.0.1', 0)).detach(), os.open('.', os.O_RDONLY), os.pipe()[0]:
        os.set_blocking(fd, False) if 2 < fd < 500 else 0
        for at in None, ctypes.c_void_p(1), ctypes.c_void_p(2**47 - 4), ctypes.create_string_buffer(b'c' * 16):
            for size in 0, 1, 2, 16, 128, 129, -1, ctypes.byref(ctypes.c_int(-1)), ctypes.byref(ctypes.c_int(0)), ctypes.byref(ctypes.c_int(3)), None:
                if f(fd, at, size) == 0 and f is libc.connect: through()
s = socket.socket(); b = ctypes.create_string_buffer(b'z' * 64); n = ctypes.c_int(3)
want(libc.getsockname(s.fileno(), b, ctypes.byref(n)), 0); want(n.value, 16); want(b.raw[3:], b'z' * 61 + b'\0')
want(libc.getsockname(s.fileno(), b, ctypes.byref(ctypes.c_int(-1))), -1); want(ctypes.get_errno(), errno.EINVAL)
want(libc.getsockname(s.fileno(), ctypes.c_void_p(8), ctypes.byref(ctypes.c_int(16))), -1); want(ctypes.get_errno(), errno.EFAULT)`},
	{"a flood of sockets", `
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
    all = []
    try:
        while True: all.append(socket.socket(socket.AF_INET, kind))
    except OSError as e: want(e.errno, errno.EMFILE)
    all.clear()
bound = []
for _ in range(3000): s = socket.socket(); s.bind(('', 0)); bound.append(s)
bound.clear()
for _ in range(6000 * ROUNDS): socket.socket().close() # more than maxRecent in all`},
	{"a flood of calls that wait", `
import signal
l = socket.create_server(('127.0.0.1', 0)); full = socket.socket(); full.bind(('127.0.0.1', 0)); full.listen(0)
kids = []
for i in range(3):
    pid = os.fork()
    if pid == 0:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.connect(('203.0.113.5', 7))
        threads(100, lambda: libc.accept(l.fileno(), ctypes.create_string_buffer(64), ctypes.byref(ctypes.c_int(64))))
        threads(40, lambda: udp.recvfrom(10))
        threads(40, lambda: socket.socket().connect(('203.0.113.5', 82)))
        threads(20, lambda: socket.socket().connect(full.getsockname()))
        time.sleep(1000)
    kids.append(pid)
time.sleep(1)
want(socket.socket().getsockname(), ('0.0.0.0', 0)) # calls that do not wait are answered meanwhile
for pid in kids: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
full.close()`},
	{"a queue that stays full", `
import signal
full = socket.create_server(('127.0.0.1', 0), backlog=0); kids = []
for i in range(160):
    pid = os.fork()
    if pid == 0: socket.create_connection(full.getsockname()); time.sleep(1000)
    kids.append(pid)
time.sleep(1)
for pid in kids: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0) # their calls end, and others are served`},
	{"accepts that race", `
import fcntl, signal
pid = os.fork()
if pid == 0:
    b, n = ctypes.create_string_buffer(64), ctypes.c_int(64)
    for _ in range(40):
        l = socket.create_server(('127.0.0.1', 0), backlog=100); at = l.getsockname()
        def flip():
            while True: l.setblocking(False); l.setblocking(True)
        def dial():
            while True: c = socket.socket(); c.setblocking(False); no(lambda: c.connect(at)); c.close(); time.sleep(0.01)
        threads(1, flip); threads(1, dial)
        threads(2, lambda: [libc.accept(l.fileno(), None, None) for _ in range(10**6)])
        threads(2, lambda: [libc.accept(l.fileno(), ctypes.create_string_buffer(64), ctypes.byref(ctypes.c_int(64))) for _ in range(10**6)])
    time.sleep(1000)
time.sleep(ROUNDS); os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)`},
	{"calls whose callers die", `
import signal
l = socket.create_server(('127.0.0.1', 0))
for i in range(15 * ROUNDS):
    pid = os.fork()
    if pid == 0:
        threads(4, lambda: [socket.create_connection(('203.0.113.5', 7)).getpeername() for _ in range(1000)])
        threads(4, lambda: [l.accept() for _ in range(1000)])
        threads(2, lambda: [socket.create_connection(l.getsockname()) for _ in range(1000)])
        time.sleep(1000)
    time.sleep(0.02 * (i % 5)); os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)`},
	{"sockets of a process that is not dumpable", `
if os.fork() == 0:
    libc.prctl(4, 0)
    for _ in range(9000): no(lambda: socket.socket().close())
    os._exit(0)
os.wait()
pid = os.fork()
if pid == 0: # it lives on
    libc.prctl(4, 0)
    for _ in range(9000): no(lambda: socket.socket().close())
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(pid, os.WUNTRACED)
socket.socket().close()
os.kill(pid, signal.SIGKILL)`},
}

// inetAttackPrelude begins the scripts after inetPrelude.
const inetAttackPrelude = `
import mmap, threading, platform, signal
libc = ctypes.CDLL(None, use_errno=True); syscall = libc.syscall
libc.connect.argtypes = libc.bind.argtypes = libc.getsockname.argtypes = libc.getpeername.argtypes = libc.accept.argtypes = None
NR_GETSOCKOPT = 55 if platform.machine() == 'x86_64' else 209
TARGET, SOCK, DGRAM, RUN, ABSTRACT = int(os.environ['TARGET']), *(os.environ[k] for k in ('SOCK', 'DGRAM', 'RUN', 'ABSTRACT'))
ROUNDS = int(os.environ['ROUNDS'])
try: os.listdir('/tmp'); LANDLOCK = False
except PermissionError: LANDLOCK = True
def through(): print('THROUGH', flush=True); os._exit(1)
def no(f):
    try: f()
    except (OSError, ValueError): pass
def threads(n, f):
    def quiet():
        try: f()
        except OSError: pass
    for _ in range(n): threading.Thread(target=quiet, daemon=True).start()
def address(path): b = path.encode(); return struct.pack('=H', socket.AF_UNIX) + b + b'\0', 3 + len(b)
def checked(r):
    if r < 0: raise OSError(ctypes.get_errno(), 'x')
def connect_unix(s, path): a, n = address(path); checked(libc.connect(s.fileno(), a, n))
def bind_unix(s, path): a, n = address(path); checked(libc.bind(s.fileno(), a, n))
def sendto_unix(s, path): a, n = address(path); checked(libc.sendto(s.fileno(), b'x', 1, socket.MSG_NOSIGNAL, a, n))
`

// inetStillWorks ends the scripts.
const inetStillWorks = `
s = socket.create_connection(('203.0.113.5', 7), timeout=30); s.sendall(b'x'); want(s.recv(1), b'x')
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); want(l.accept()[1][0], '127.0.0.1')
print('ok', flush=True); os._exit(0)`

// rounds is a variable of the scripts: how often an attacker repeats what it does, or for how many seconds. The calls
// are the same in each round, and one round has hundreds or thousands of them.
func rounds() string {
	if testing.Short() {
		return "ROUNDS=1"
	}
	return "ROUNDS=4"
}

func TestInet_StopsAttackers(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		for _, a := range inetAttacks {
			t.Run(who+"/"+a.name, func(t *testing.T) {
				t.Parallel()
				interpreter := python(t)
				target, reached := hostTarget(t)
				out, err := newEntrance(t, uid, outside(t)).run([]string{interpreter, "-c",
					inetPrelude + inetAttackPrelude + a.script + inetStillWorks}, append(target, rounds())...)
				if err != nil || !strings.HasSuffix(out, "ok\n") || strings.Contains(out, "THROUGH") {
					t.Errorf("%v\n%.3000s", err, out)
				}
				if n := reached.Load(); n > 0 {
					t.Errorf("sockets of the host were reached %d times", n)
				}
			})
		}
	}
}

// hostTarget starts the sockets of the host that an attack must not reach, and counts what does.
func hostTarget(t testing.TB) (env []string, reached *atomic.Int32) {
	t.Helper()
	reached = new(atomic.Int32)
	top := t.TempDir()
	accept := func(l net.Listener, err error) net.Listener {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				reached.Add(1)
				c.Close()
			}
		}()
		return l
	}
	read := func(p net.PacketConn, err error) {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		go func() {
			for {
				if _, _, err := p.ReadFrom(make([]byte, 1)); err != nil {
					return
				}
				reached.Add(1)
			}
		}()
	}
	stream, packets := bothPorts(t)
	tcp := accept(stream, nil)
	sock, dgram := filepath.Join(top, "sock"), filepath.Join(top, "dgram")
	abstract := "coppice-inet-" + filepath.Base(filepath.Dir(top))
	accept(net.Listen("unix", sock))
	accept(net.Listen("unix", "@"+abstract))
	read(packets, nil)
	read(net.ListenPacket("unixgram", dgram))
	return []string{fmt.Sprintf("TARGET=%d", tcp.Addr().(*net.TCPAddr).Port), "SOCK=" + sock, "DGRAM=" + dgram,
		"ABSTRACT=" + abstract}, reached
}
