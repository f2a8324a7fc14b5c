//go:build linux && (amd64 || arm64)

package box_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

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
