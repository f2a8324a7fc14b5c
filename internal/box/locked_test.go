//go:build linux && (amd64 || arm64)

package box_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// attack is a program in Python that prints THROUGH if it reaches something outside of a locked workspace. It finds the
// targets in variables of its environment.
type attack struct {
	name, code string
	off        bool   // only without a network
	record     string // the refused call that is recorded
	// walled says that the host itself may stop it, so that it need not get through without the lock.
	walled bool
}

// attacks are made in a workspace with and without a lock. Those without the lock show that they work.
var attacks = []attack{
	{name: "read a file", code: "through(open(C + '/precious').read())"},
	{name: "list a directory", code: "through(os.listdir(C))"},
	{name: "read by a link", code: "os.symlink(C + '/precious', 'link'); through(open('link').read())"},
	{name: "read by an open directory", code: `
d = os.open(C, os.O_PATH)
through(os.read(os.open('precious', os.O_RDONLY, dir_fd=d), 1))`},
	{name: "link", code: "os.link(C + '/precious', 'linked'); through(open('linked').read())"},
	{name: "create a file", code: "open(C + '/made', 'w').close(); through(1)"},
	{name: "append to a file", code: "open(C + '/appended', 'a').write('x'); through(1)"},
	{name: "truncate a file", code: "os.truncate(C + '/truncated', 0); through(1)"},
	{name: "rename a file", code: "os.rename(C + '/renamed', C + '/other'); through(1)"},
	{name: "remove a file", code: "os.unlink(C + '/removed'); through(1)"},
	{name: "move a file in", code: "os.rename(C + '/moved', 'moved'); through(1)"},
	{name: "make a directory", code: "os.mkdir(C + '/dir'); through(1)"},
	{name: "make a link", code: "os.symlink('x', C + '/symlink'); through(1)"},
	{name: "execute a program", code: "through(os.spawnv(os.P_WAIT, C + '/prog', ['true']) == 0)"},
	{name: "execute a program by its loader", code: `
loader = [l.split()[-1] for l in open('/proc/self/maps') if '/ld' in l]
through(loader and os.spawnv(os.P_WAIT, loader[0], [loader[0], C + '/prog']) == 0)`},
	{name: "files of the sandbox's monitor", code: "through(os.listdir(RUN))"},
	{name: "the root of another process", walled: true,
		code: "through(open('/proc/%s/root%s/precious' % (PID, C)).read())"},
	{name: "the environment of another process", code: "through(open('/proc/%s/environ' % PID).read())", walled: true},
	{name: "the environment of the monitor", code: `
up = os.getppid()
while up > 1:
    try: through(open('/proc/%d/environ' % up).read())
    except OSError: pass
    up = int(open('/proc/%d/stat' % up).read().rsplit(')', 1)[1].split()[1])`, walled: true},
	{name: "signal a process", code: "os.kill(int(PID), 0); through(1)"},
	{name: "signal init", code: "os.kill(os.getppid(), 0); through(1)"},
	{name: "signal a thread of init", code: "each(lambda t: os.kill(t, 0))", record: "kill"},
	{name: "signal a thread by tkill", code: "each(lambda t: call('tkill', t, 0))", record: "tkill"},
	{name: "signal a thread by tgkill", code: "each(lambda t: call('tgkill', os.getppid(), t, 0))", record: "tgkill"},
	{name: "queue a signal for a thread of init", record: "rt_sigqueueinfo",
		code: "each(lambda t: call('rt_sigqueueinfo', t, 0, queued))"},
	{name: "queue a signal for a thread by both numbers", record: "rt_tgsigqueueinfo",
		code: "each(lambda t: call('rt_tgsigqueueinfo', os.getppid(), t, 0, queued))"},
	{name: "signal a thread of init by its directory", code: `
each(lambda t: call('pidfd_send_signal', os.open('/proc/%d' % t, os.O_RDONLY | os.O_DIRECTORY), 0, 0, 0))`},
	{name: "trace a process", code: "through(syscall(NR['ptrace'], 0x4206, int(PID), 0, 0) == 0)", walled: true},
	{name: "limits of another process", code: `
import resource
resource.prlimit(int(PID), resource.RLIMIT_NOFILE); through(1)`, walled: true, record: "prlimit64"},
	{name: "the priority of another process", code: "os.setpriority(os.PRIO_PROCESS, int(PID), 1); through(1)",
		walled: true, record: "setpriority"},
	{name: "the priority of the user's processes", walled: true, record: "setpriority",
		code: "os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_USER, 0)); through(1)"},
	{name: "the priority of a process group", walled: true, record: "setpriority",
		code: "os.setpriority(os.PRIO_PGRP, os.getpgid(int(PID)), 1); through(1)"},
	{name: "the scheduling of another process", walled: true, record: "sched_setscheduler",
		code: "os.sched_setscheduler(int(PID), os.SCHED_BATCH, os.sched_param(0)); through(1)"},
	{name: "the scheduling parameters of another process", walled: true, record: "sched_setparam",
		code: "os.sched_setparam(int(PID), os.sched_param(0)); through(1)"},
	{name: "the scheduling attributes of another process", walled: true, record: "sched_setattr", code: `
attr = ctypes.create_string_buffer(struct.pack('=IIQiIQQQ', 48, os.SCHED_BATCH, 0, 1, 0, 0, 0, 0))
call('sched_setattr', int(PID), attr, 0); through(1)`},
	{name: "the processors of another process", walled: true, record: "sched_setaffinity",
		code: "os.sched_setaffinity(int(PID), os.sched_getaffinity(0)); through(1)"},
	{name: "the disk priority of another process", walled: true, record: "ioprio_set",
		code: "call('ioprio_set', 1, int(PID), 2 << 13 | 7); through(1)"},
	{name: "the disk priority of a process group", walled: true, record: "ioprio_set",
		code: "call('ioprio_set', 2, os.getpgid(int(PID)), 2 << 13 | 7); through(1)"},
	{name: "a message queue", record: "mq_unlink", walled: true,
		code: "through(syscall(NR['mq_unlink'], b'coppice-test-none') == 0 or ctypes.get_errno() == 2)"},
	{name: "attributes of a file", code: "os.setxattr(C + '/precious', 'user.attack', b'x'); through(1)"},
	{name: "attributes of a directory", code: "os.setxattr(C, 'user.overlay.opaque', b'y'); through(1)"},
	{name: "inode flags of a file", walled: true, code: `
attr = ctypes.create_string_buffer(struct.pack('=QIIII', 0x80, 0, 0, 0, 0))
through(syscall(NR['file_setattr'], -100, (C + '/precious').encode(), attr, 24, 0) == 0)`},
	{name: "attributes of a file by a link", code: `
os.symlink(C + '/precious', 'attributes'); os.setxattr('attributes', 'user.attack', b'x'); through(1)`},
	{name: "attributes of a file by a descriptor", code: `
fd = os.open(C + '/precious', os.O_PATH); os.setxattr('/proc/self/fd/%d' % fd, 'user.attack', b'x'); through(1)`},
	{name: "remove attributes of a file", code: `
try: through(os.removexattr(C + '/precious', 'user.none') or 1)
except OSError as e: through(e.errno == 61)`},
	{name: "a socket", code: "unix(C + '/sock')", record: "connect"},
	{name: "a socket by a link", code: "os.symlink(C + '/sock', 'way'); unix('way')", record: "connect"},
	{name: "a socket from its directory", code: "os.chdir(C); unix('sock')", record: "connect"},
	{name: "a socket by a descriptor", code: `
d = os.open(C + '/sock', os.O_PATH)
unix('/proc/self/fd/%d' % d)`, record: "connect"},
	{name: "the monitor's socket", code: "unix(RUN + '/keeper.sock')", record: "connect"},
	{name: "an abstract socket", code: "unix('\\0' + ABSTRACT)", record: "connect"},
	{name: "a free abstract name", record: "listen", code: `
s = socket.socket(socket.AF_UNIX); s.bind('\0' + ABSTRACT + '-free'); s.listen(); through(1)`},
	{name: "a free abstract name, as packets", record: "listen", code: `
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind('\0' + ABSTRACT + '-free'); s.listen(); through(1)`},
	{name: "an abstract name that the kernel chooses", record: "listen",
		code: "s = socket.socket(socket.AF_UNIX); s.bind(''); s.listen(); through(1)"},
	// One thread gives the socket its name while another begins to listen.
	{name: "an abstract name that is taken meanwhile", record: "listen", code: `
for i in range(1000):
    s = socket.socket(socket.AF_UNIX)
    t = threading.Thread(target=lambda: (time.sleep(i % 20 / 1e5), s.bind('\0' + ABSTRACT + '-%d' % i))); t.start()
    while t.is_alive(): through(libc.listen(s.fileno(), 1) == 0)
    t.join(); through(libc.listen(s.fileno(), 1) == 0)
    s.close()`},
	{name: "a datagram", code: `
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendto(b'x', C + '/dgram'); through(1)`, record: "socket"},
	{name: "a datagram from a pair", code: `
s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendto(b'x', C + '/dgram'); through(1)`, record: "socketpair"},
	// One thread changes the address while another connects with it.
	{name: "a socket whose address changes", code: `
l = socket.socket(socket.AF_UNIX); l.bind('mine'); l.listen(1000)
ours = struct.pack('=H', socket.AF_UNIX) + os.path.abspath('mine').encode().ljust(107, b'\0')
theirs = struct.pack('=H', socket.AF_UNIX) + (C + '/sock').encode().ljust(107, b'\0')
b = ctypes.create_string_buffer(ours, 110)
def swap():
    while True:
        ctypes.memmove(b, theirs, 109); ctypes.memmove(b, ours, 109)
threading.Thread(target=swap, daemon=True).start()
end = time.time() + 1.5
while time.time() < end:
    s = socket.socket(socket.AF_UNIX)
    if libc.connect(s.fileno(), b, 109) == 0 and s.getpeername() == C + '/sock': through(1)
    s.close()
    l.setblocking(False)
    try: l.accept()[0].close()
    except OSError: pass`},
	// One thread replaces the descriptor by a Unix socket while another connects an Internet socket.
	{name: "a socket whose descriptor changes", code: `
address = struct.pack('=H', socket.AF_UNIX) + (C + '/sock').encode().ljust(107, b'\0')
b = ctypes.create_string_buffer(address, 110)
local, inet = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET)
fd = os.dup(inet.fileno())
def swap():
    while True:
        os.dup2(local.fileno(), fd); os.dup2(inet.fileno(), fd)
threading.Thread(target=swap, daemon=True).start()
end = time.time() + 1.5
while time.time() < end:
    if libc.connect(fd, b, 109) == 0: through(1)`},
	{name: "a terminal", code: "os.open(PTS, os.O_RDWR | os.O_NOCTTY); through(1)"},
	{name: "the request for a terminal of another device", walled: true,
		code: "through(syscall(NR['ioctl'], 1, 0x5441, 2) >= 0)"},
	{name: "namespaces", code: "through(syscall(NR['unshare'], 0x10000000) == 0)", walled: true, record: "unshare"},
	{name: "keyrings", code: "through(syscall(NR['keyctl'], 0, -3, 1, 0, 0) > 0)", record: "keyctl"},
	{name: "bpf", walled: true, record: "bpf",
		code: "through(syscall(NR['bpf'], 0, 0, 0) < 0 and ctypes.get_errno() == 22)"},
	{name: "a ring", code: "p = ctypes.create_string_buffer(120); through(syscall(425, 4, p) >= 0)", walled: true},
	{name: "a device", code: "os.mknod('disk', 0o60600, os.makedev(1, 0)); through(1)", walled: true},
	{name: "a vsock", code: "socket.socket(40, socket.SOCK_STREAM); through(1)", walled: true, record: "socket"},
	{name: "tcp", code: "socket.create_connection(('127.0.0.1', int(PORT))); through(1)", off: true, record: "socket"},
	{name: "udp", off: true, record: "socket",
		code: "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9)); through(1)"},
	{name: "a listener", code: "socket.socket(socket.AF_INET6).listen(); through(1)", off: true, record: "socket"},
}

// prelude are the definitions that attacks use.
const prelude = `
import ctypes, os, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
syscall = libc.syscall
NR = {'ptrace': 101, 'unshare': 272, 'keyctl': 250, 'bpf': 321, 'ioctl': 16, 'tkill': 200, 'tgkill': 234,
      'rt_sigqueueinfo': 129, 'rt_tgsigqueueinfo': 297, 'pidfd_send_signal': 424, 'pidfd_open': 434, 'clone': 56,
      'mq_unlink': 241, 'ioprio_set': 251, 'sched_setattr': 314, 'file_setattr': 469}
if os.uname().machine == 'aarch64':
    NR = {'ptrace': 117, 'unshare': 97, 'keyctl': 219, 'bpf': 280, 'ioctl': 29, 'tkill': 130, 'tgkill': 131,
          'rt_sigqueueinfo': 138, 'rt_tgsigqueueinfo': 240, 'pidfd_send_signal': 424, 'pidfd_open': 434, 'clone': 220,
          'mq_unlink': 181, 'ioprio_set': 30, 'sched_setattr': 274, 'file_setattr': 469}
C, RUN, PID, ABSTRACT, PTS, PORT = (os.environ.get(k, '') for k in ('C', 'RUN', 'PID', 'ABSTRACT', 'PTS', 'PORT'))
def through(x):
    if x:
        print('THROUGH', flush=True)
        os._exit(0)
def call(name, *args):
    r = syscall(NR[name], *args)
    if r < 0: raise OSError(ctypes.get_errno(), name)
    return r
queued = ctypes.create_string_buffer(struct.pack('=iii', 0, 0, -1), 128) # siginfo_t, SI_QUEUE
def each(act): # with the number of every thread of init, without the first
    for t in os.listdir('/proc/%d/task' % os.getppid()):
        try:
            if int(t) != os.getppid(): act(int(t)); through(1)
        except OSError: pass
def unix(p):
    s = socket.socket(socket.AF_UNIX); s.connect(p); through(1)
`

// targets makes the targets of attacks, and returns the variables that name them.
func targets(t *testing.T) []string {
	t.Helper()
	dir := canaries(t)
	for _, name := range []string{"appended", "truncated", "renamed", "removed", "moved"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("HOSTSECRET\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "prog"), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	abstract := "coppice-test-" + filepath.Base(dir)
	listen := func(network, address string) net.Listener {
		l, err := net.Listen(network, address)
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
				c.Close()
			}
		}()
		return l
	}
	listen("unix", filepath.Join(dir, "sock"))
	listen("unix", "@"+abstract)
	tcp := listen("tcp", "127.0.0.1:0").Addr().(*net.TCPAddr)
	d, err := net.ListenPacket("unixgram", filepath.Join(dir, "dgram"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	})
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"C=" + dir, "ABSTRACT=" + abstract, fmt.Sprintf("PID=%d", sleep.Process.Pid),
		fmt.Sprintf("PTS=/dev/pts/%d", n), fmt.Sprintf("PORT=%d", tcp.Port)}
}

// TestLocked_StopsAttackers makes each attack with the lock, which must stop it, and without, where it must get through
// unless the host has a wall of its own.
func TestLocked_StopsAttackers(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	in := func(how, net string, env []string) *boxtest.Box {
		return (boxtest.Tier{Config: locked}).Start(t, func(c *plan.Config) {
			c.Confine, c.Net, c.Env = how, net, append(slices.Clone(env), "RUN="+c.RunDir)
			if how == plan.ConfineOff {
				c.Journal = ""
			}
		})
	}
	env := targets(t)
	walled, offline := in(plan.ConfineAuto, plan.NetHost, env), in(plan.ConfineAuto, plan.NetOff, env)
	for _, item := range []string{plan.HostFiles, "signals", "unix sockets", "system calls"} {
		if s := walled.Enforced.State(item); s != plan.On {
			t.Fatalf("needs landlock: %s is %q", item, s)
		}
	}
	for _, a := range attacks {
		for _, b := range []*boxtest.Box{walled, offline} {
			if a.off && b == walled {
				continue
			}
			before := refusedCalls(t, b)[a.record]
			r := b.Do(t, wire.ExecRequest{Cmd: []string{"python3", "-c", prelude + a.code}})
			if strings.Contains(r.Stdout, "THROUGH") {
				t.Errorf("%s, with net %s: %+v", a.name, b.Config.Net, r)
			}
			if a.record != "" && refusedCalls(t, b)[a.record] <= before {
				t.Errorf("%s, with net %s: %s is not recorded: %+v", a.name, b.Config.Net, a.record, r)
			}
		}
	}
	intactFile(t, env[0][2:])
	open := in(plan.ConfineOff, plan.NetHost, env)
	for _, a := range attacks {
		r := open.Do(t, wire.ExecRequest{Cmd: []string{"python3", "-c", prelude + a.code}})
		if !a.walled && !strings.Contains(r.Stdout, "THROUGH") {
			t.Errorf("%s does not work without the lock: %+v", a.name, r)
		}
	}
}

// intactFile checks that no attack has changed what is in dir.
func intactFile(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"precious", "appended", "truncated", "renamed", "removed", "moved"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); string(text) != "HOSTSECRET\n" {
			t.Errorf("%s contains %q: %v", name, text, err)
		}
	}
}

// refusedCalls counts the refused system calls in the journal of b.
func refusedCalls(t *testing.T, b *boxtest.Box) map[string]int {
	t.Helper()
	evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{Kinds: []string{wire.NetRefused}})
	if err != nil && !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, e := range evs {
		n[e.Syscall] += max(e.Count, 1)
	}
	return n
}

// deadly is a program in Python that tries to stop and to end init and the keeper, by the number of each of their
// threads: by every call that sends a signal, and by those that make the kernel send one later.
const deadly = prelude + `
import fcntl, signal, termios
F_SETSIG, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP, F_OWNER_TID, F_OWNER_PID = 10, 15, 0x8901, 0x8902, 0, 1
PIDFD_THREAD, CLONE_PARENT = os.O_EXCL, 0x8000
def owned(sig, own): # the kernel signals the owner of a socket that becomes readable
    a, b = socket.socketpair()
    fcntl.fcntl(a, fcntl.F_SETFL, fcntl.fcntl(a, fcntl.F_GETFL) | os.O_ASYNC)
    fcntl.fcntl(a, F_SETSIG, sig); own(a); b.send(b'x')
targets, up = [], os.getppid()
for _ in range(2):
    targets += [(up, int(t)) for t in os.listdir('/proc/%d/task' % up)]
    up = int(open('/proc/%d/stat' % up).read().rsplit(')', 1)[1].split()[1])
tried = 0
for sig in (signal.SIGKILL, signal.SIGSTOP):
    queued = ctypes.create_string_buffer(struct.pack('=iii', sig, 0, -1), 128)
    for pid, tid in targets:
        for act in (
            lambda: os.kill(tid, sig), lambda: os.kill(-tid, sig), lambda: call('tkill', tid, sig),
            lambda: call('tgkill', pid, tid, sig), lambda: call('rt_sigqueueinfo', tid, sig, queued),
            lambda: call('rt_tgsigqueueinfo', pid, tid, sig, queued),
            lambda: call('pidfd_send_signal', os.pidfd_open(tid), sig, 0, 0),
            lambda: call('pidfd_send_signal', call('pidfd_open', tid, PIDFD_THREAD), sig, 0, 0),
            lambda: call('pidfd_send_signal', os.open('/proc/%d' % tid, os.O_RDONLY), sig, 0, 0),
            lambda: call('pidfd_send_signal', os.open('/proc/%d/task/%d' % (pid, tid), os.O_RDONLY), sig, 0, 0),
            lambda: owned(sig, lambda s: fcntl.fcntl(s, fcntl.F_SETOWN, tid)),
            lambda: owned(sig, lambda s: fcntl.fcntl(s, F_SETOWN_EX, struct.pack('=ii', F_OWNER_TID, tid))),
            lambda: owned(sig, lambda s: fcntl.fcntl(s, F_SETOWN_EX, struct.pack('=ii', F_OWNER_PID, tid))),
            lambda: owned(sig, lambda s: fcntl.ioctl(s, FIOSETOWN, struct.pack('=i', tid))),
            lambda: owned(sig, lambda s: fcntl.ioctl(s, SIOCSPGRP, struct.pack('=i', tid))),
        ):
            try: tried += 1; act()
            except OSError: pass
    if syscall(NR['clone'], CLONE_PARENT | sig, 0, 0, 0, 0) == 0: os._exit(0) # a child of init, which ends with sig
print('tried', tried > 100)`

// TestLocked_InitOutlivesItsCommands checks that no signal of a command reaches init or the keeper.
func TestLocked_InitOutlivesItsCommands(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	b := (boxtest.Tier{Config: locked}).Start(t)
	if s := b.Enforced.State("signals"); s != plan.On {
		t.Skipf("needs landlock: signals is %q", s)
	}
	for range 2 { // the second shows that the first did no harm
		r := b.Do(t, wire.ExecRequest{Cmd: []string{"python3", "-c", deadly}})
		if r.Stdout != "tried True\n" {
			t.Fatalf("%+v", r)
		}
	}
	// Signals that belong to the commands work: to those of the same, of another, and of a later command.
	r := b.Sh(t, "sleep 1000 & echo $!")
	if r := b.Sh(t, "kill -KILL "+strings.TrimSpace(r.Stdout)); r.Exit.Code != 0 {
		t.Errorf("a process of another command: %+v", r)
	}
}

// TestLocked_LeavesRoomForItsMonitor checks that commands have lower hard limits than init, which has the same user: of
// descriptors, since the kernel refuses to pass any while a user has more in flight than the sender may open (unix(7)),
// and of tasks, since the Go runtime aborts a process that cannot start a thread.
func TestLocked_LeavesRoomForItsMonitor(t *testing.T) {
	t.Parallel()
	b := (boxtest.Tier{Config: locked}).Start(t)
	for _, l := range []struct {
		flag string
		what int
		most func(uint64) uint64
	}{{"-n", unix.RLIMIT_NOFILE, limit.OpenFilesOfHost}, {"-u", unix.RLIMIT_NPROC, limit.TasksOfHost}} {
		var own unix.Rlimit
		if err := unix.Getrlimit(l.what, &own); err != nil {
			t.Fatal(err)
		}
		want := "unlimited\n"
		if own.Max != unix.RLIM_INFINITY {
			want = strconv.FormatUint(l.most(own.Max), 10) + "\n"
		}
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"bash", "-c", "ulimit -H " + l.flag}}); r.Stdout != want {
			t.Errorf("ulimit -H %s: %q, expected %q: %+v", l.flag, r.Stdout, want, r)
		}
	}
}

// TestLocked_ServesPrograms checks what programs need in a locked workspace.
func TestLocked_ServesPrograms(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	env := targets(t)
	shown := canaries(t)
	b := (boxtest.Tier{Config: locked}).Start(t, func(c *plan.Config) {
		c.Env, c.Places.Read = env, []string{shown}
	})
	for name, code := range map[string]string{
		"a socket in the tree": `
l = socket.socket(socket.AF_UNIX); l.bind('s'); l.listen(); unix('s')`,
		"a socket in TMPDIR": `
import tempfile
p = tempfile.mkdtemp() + '/s'
l = socket.socket(socket.AF_UNIX); l.bind(p); l.listen(); unix(p)`,
		"a packet socket": `
l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); l.bind('p'); l.listen()
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('p'); through(1)`,
		"a missing socket": `
try: unix(os.getcwd() + '/none')
except FileNotFoundError: through(1)`,
		"a pair": "a, b = socket.socketpair(); a.send(b'x'); through(b.recv(1) == b'x')",
		"tcp":    "socket.create_connection(('127.0.0.1', int(PORT))); through(1)",
		"a listener": "l = socket.create_server(('127.0.0.1', 0)); " +
			"c = socket.create_connection(l.getsockname()); c.send(b'x'); through(l.accept()[0].recv(1) == b'x')",
		"listeners that fail": `
def fails(s, e): return libc.listen(s, 1) < 0 and ctypes.get_errno() == e
nameless = socket.socket(socket.AF_UNIX)
through(fails(99, 9) and fails(0, 88) and fails(nameless.fileno(), 22))`,
		"a socket that listens twice": `
l = socket.socket(socket.AF_UNIX); l.bind('twice'); l.listen(0); l.listen(5); unix('twice')`,
		"the owner of a descriptor": `
import fcntl
a, b = socket.socketpair(); fcntl.fcntl(a, fcntl.F_SETOWN, os.getpid())
through(fcntl.fcntl(a, fcntl.F_GETOWN) == os.getpid())`,
		"udp": "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', 9)); s.send(b'x'); " +
			"through(1)",
		"a refusal": "through(socket.socket().connect_ex(('127.0.0.1', 1)) == 111)",
		"nonblocking": "s = socket.socket(); s.setblocking(False); " +
			"through(s.connect_ex(('127.0.0.1', int(PORT))) in (0, 115))",
		"a bad address": `
s = socket.socket()
through(libc.connect(s.fileno(), 1, 16) < 0 and ctypes.get_errno() == 14 and libc.connect(99, 1, 16) < 0 and
        ctypes.get_errno() == 9)`,
		"a shown path":          "through(open('" + shown + "/precious').read())",
		"its home":              "h = os.environ['HOME']; open(h + '/.x', 'w').close(); through(os.listdir(h))",
		"the mode of a file":    "open('m', 'w').close(); os.chmod('m', 0o600); through(1)",
		"a terminal of its own": "import pty; m, s = pty.openpty(); os.write(s, b'x'); through(os.read(m, 1))",
		"many terminals": `
import pty
for i in range(500):
    m, s = pty.openpty(); os.write(s, b'x'); os.read(m, 1); os.close(m); os.close(s)
through(1)`,
		"a signal": "os.kill(os.getpid(), 0); os.kill(0, 0); through(1)",
		"its own priority": `
os.setpriority(os.PRIO_PROCESS, 0, 5); os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); call('ioprio_set', 1, 0, 2 << 13 | 7); through(1)`,
		"attributes of an open file": `
f = open('attributed', 'w'); os.setxattr(f.fileno(), 'user.x', b'y')
through(os.getxattr('attributed', 'user.x') == b'y')`,
		"copies with attributes": "import shutil; open('a1', 'w').close(); shutil.copy2('a1', 'a2'); through(" +
			"os.spawnlp(os.P_WAIT, 'cp', 'cp', '-a', 'a1', 'a3') == 0)",
		"a process in another command": "through(os.readlink('/proc/%s/exe' % open('pid').read().strip()))",
	} {
		b.Sh(t, "sleep 1000 & echo $! >pid")
		r := b.Do(t, wire.ExecRequest{Cmd: []string{"python3", "-c", prelude + code}})
		if !strings.Contains(r.Stdout, "THROUGH") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := b.Sh(t, "echo x >"+shown+"/made"); r.Exit.Code == 0 {
		t.Errorf("a path that is only shown was changed: %+v", r)
	}
	intact(t, shown)
	r := b.Do(t, wire.ExecRequest{Cmd: []string{env[0][2:] + "/prog"}})
	if r.Exit.Code != 126 || !strings.Contains(r.Exit.Message, "locked workspace") {
		t.Errorf("%+v", r.Exit)
	}
}

// TestLocked_FreezesWhileItConnects checks that a connection that takes long delays no capture.
func TestLocked_FreezesWhileItConnects(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	b := (boxtest.Tier{Config: locked}).Start(t)
	s := b.Open(t, wire.ExecRequest{Stdin: true, Cmd: []string{"python3", "-c", prelude + `
l = socket.socket(socket.AF_UNIX); l.bind('s'); l.listen(0)
def references(): # of the listening socket, in /proc/net/unix
    inode = str(os.fstat(l.fileno()).st_ino)
    return [row.split()[1] for row in open('/proc/net/unix') if row.split()[6] == inode]
full, late = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
full.connect('s') # which fills the queue
before = references()
waiting = threading.Thread(target=lambda: late.connect('s')); waiting.start()
while references() == before: time.sleep(0.001) # a process that waits in connect holds another
print('connecting', flush=True)
sys.stdin.readline()
l.accept(); l.accept(); waiting.join()
print('connected', flush=True)`}})
	defer s.Close()
	boxtest.WaitOutput(t, s, "connecting")
	f, err := b.Freeze(t.Context()) // fails if it waits for the connection, which ends only after the thaw
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
	boxtest.Send(t, s, wire.FrameStdin, []byte("\n"))
	boxtest.WaitOutput(t, s, "connected")
}

// chains is a program in Python that leaves processes behind that are in no list for long: each starts the next and
// exits. They ignore signals, and end when there is a file "end". Each chain counts in a file, and the last begins a
// session with each process.
const chains = `
import os, signal, time
for s in range(1, 64):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
end = time.time() + 60
def chain(i):
    os.setsid()
    n = 0
    while time.time() < end and not os.path.exists('end'):
        if os.fork(): os._exit(0)
        if i == 2: os.setsid()
        n += 1
        if n % 20 == 0: open('beat%d' % i, 'w').write(str(n))
    os._exit(0)
for i in range(3):
    if os.fork() == 0: chain(i)
while not all(os.path.exists('beat%d' % i) for i in range(3)): time.sleep(0.01)`

// startChains starts chains in a locked workspace, and returns it.
func startChains(t *testing.T) *boxtest.Box {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	b := (boxtest.Tier{Config: locked}).Start(t)
	if s := b.Enforced.State("signals"); s != plan.On {
		t.Skipf("needs landlock: signals is %q", s)
	}
	r := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "exec python3 -c \"$0\" >/dev/null 2>&1", chains}})
	if r.Exit.Code != 0 {
		t.Fatalf("%+v", r)
	}
	return b
}

// beats returns what chains have counted.
func beats(t *testing.T, b *boxtest.Box) (counted [3]string) {
	t.Helper()
	for i := range counted {
		text, err := os.ReadFile(filepath.Join(b.Config.Spec.Bind, fmt.Sprintf("beat%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		counted[i] = string(text)
	}
	return counted
}

// still checks that chains do not run.
func still(t *testing.T, b *boxtest.Box, when string) {
	t.Helper()
	before := beats(t, b)
	time.Sleep(300 * time.Millisecond)
	if after := beats(t, b); after != before {
		t.Errorf("processes run %s: %q, then %q", when, before, after)
	}
}

// TestLocked_EndsAllProcesses checks that no process outlives the end of a locked workspace: by a stop, or since its
// init or its keeper was killed.
func TestLocked_EndsAllProcesses(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, b *boxtest.Box) error{
		"stop":            func(t *testing.T, b *boxtest.Box) error { return b.Stop(t.Context(), 0) },
		"stop with grace": func(t *testing.T, b *boxtest.Box) error { return b.Stop(t.Context(), 100*time.Millisecond) },
		"killed init": func(t *testing.T, b *boxtest.Box) error {
			parent := b.Sh(t, "echo $PPID")
			pid, err := strconv.Atoi(strings.TrimSpace(parent.Stdout))
			if err == nil {
				err = unix.Kill(pid, unix.SIGKILL)
			}
			return err
		},
		"killed keeper": func(t *testing.T, b *boxtest.Box) error { return box.Kill(t.Context(), b.Config.RunDir) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startChains(t)
			if err := end(t, b); err != nil {
				t.Fatal(err)
			}
			select {
			case <-b.Gone():
			case <-time.After(20 * time.Second):
				t.Fatal("the keeper does not exit")
			}
			if name == "killed keeper" { // init ends the processes after the keeper
				for before, end := beats(t, b), time.Now().Add(20*time.Second); time.Now().Before(end); {
					time.Sleep(300 * time.Millisecond)
					after := beats(t, b)
					if after == before {
						break
					}
					before = after
				}
			}
			still(t, b, "after the end")
		})
	}
}

// TestLocked_FreezesAllProcesses checks that no process of a locked workspace runs while it is frozen, and that those
// that ran continue.
func TestLocked_FreezesAllProcesses(t *testing.T) {
	t.Parallel()
	b := startChains(t)
	stopped := strings.TrimSpace(b.Sh(t, "sleep 1000 & kill -STOP $!; echo $!").Stdout)
	for range 3 {
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		still(t, b, "while frozen")
		before := beats(t, b)
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if now := beats(t, b); now[0] != before[0] && now[1] != before[1] && now[2] != before[2] {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("processes do not continue: %q", before)
			}
		}
	}
	if r := b.Sh(t, "grep State /proc/"+stopped+"/status"); !strings.Contains(r.Stdout, "T") {
		t.Errorf("a process that was stopped before runs: %+v", r)
	}
}

// TestLocked_RequiresWhatItIsAskedFor checks that a plan that cannot be carried out is refused.
func TestLocked_RequiresWhatItIsAskedFor(t *testing.T) {
	t.Parallel()
	c := locked(t)
	c.Strong = true
	_, _, err := box.Start(t.Context(), programtest.Programs(), c)
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "never strong") {
		t.Errorf("strong: %v", err)
	}
	c = locked(t)
	swapped := filepath.Join(c.Spec.Bind, "shown")
	if err := os.Symlink("/var", swapped); err != nil {
		t.Fatal(err)
	}
	c.Places.Read = []string{swapped}
	if _, _, err := box.Start(t.Context(), programtest.Programs(), c); err == nil {
		t.Error("a path that leads through a link was opened")
	}
}
