//go:build linux && (amd64 || arm64)

package notify

import (
	"path/filepath"
	"testing"
)

// inetSlots are scripts in Python that fill the places of init. In COUNT is the number of init's goroutines.
var inetSlots = []struct{ name, script string }{
	{"callers that were killed", `
count = lambda: int(open(os.environ['COUNT']).read())
def until(f):
    end = time.monotonic() + 120
    while not f():
        if time.monotonic() > end: raise AssertionError('init has %d goroutines' % count())
        time.sleep(0.05)
udp = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(20)]
def start(n, f):
    pid = os.fork()
    if pid == 0: libc.prctl(1, signal.SIGKILL); threads(n, f); time.sleep(1000)
    return pid
dial = lambda: socket.socket().connect(('203.0.113.5', 82)) # never answered
until(lambda: os.path.exists(os.environ['COUNT'])); few = count(); holders = start(50, dial), start(50, dial); until(lambda: count() >= few + 80)
for f in dial, lambda: udp[os.getpid() % 20].sendto(b'x', ('203.0.113.5', 7)):
    before = count(); waiters = [start(50, f) for _ in range(10)]; until(lambda: count() >= before + 400)
    for pid in waiters: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    until(lambda: count() < before + 100) # while the holders live
for pid in holders: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)`},
	{"datagrams that wait for a place", `
udp = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(30)]
pid = os.fork()
if pid == 0:
    libc.prctl(1, signal.SIGKILL); threads(100, lambda: socket.socket().connect(('203.0.113.5', 82)))
    for i in range(800): threads(1, lambda: udp[i % 30].sendto(b'x' * 60000, ('203.0.113.5', 7)))
    open('begun', 'w').close(); time.sleep(1000)
while not os.path.exists('begun'): time.sleep(0.05)
for i in range(50): socket.socket().getsockname(); time.sleep(0.02) # init has descriptors left
os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)`},
}

// TestInet_BoundsCallsByPlaces checks that calls without a place cost init, which has few descriptors, neither any of
// these nor a goroutine for longer than their callers live.
func TestInet_BoundsCallsByPlaces(t *testing.T) {
	t.Parallel()
	for who, uid := range inetUsers(t) {
		for _, tt := range inetSlots {
			t.Run(who+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				e := newEntrance(t, uid, outside(t))
				e.files, e.count = leastDescriptors, filepath.Join(e.work, "count")
				out, err := e.run([]string{python(t), "-c", inetPrelude + inetAttackPrelude + tt.script + inetStillWorks},
					"TARGET=0", "SOCK=", "DGRAM=", "ABSTRACT=", "COUNT="+e.count, rounds())
				if err != nil || out != "ok\n" {
					t.Errorf("%v\n%.3000s", err, out)
				}
			})
		}
	}
}
