//go:build linux && (amd64 || arm64)

package box_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
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
