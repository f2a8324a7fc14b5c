//go:build linux && (amd64 || arm64)

package boxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

// calls are system calls on the file p, in Python: done is called with the data that was read, and an error means that
// the call was refused.
var calls = []struct {
	name  string
	mode  uint32 // of the honeytoken; 0 is 0600
	told  bool   // whether the call counts as an opening
	fails string // the error, or ""
	py    string
}{
	{"mmap", 0, true, "", `
f = os.open(p, os.O_RDONLY)
m = mmap.mmap(f, 0, prot=mmap.PROT_READ)
os.close(f)
done(m[:])`},
	{"sendfile", 0, true, "", `
r, w = os.pipe()
os.sendfile(w, os.open(p, os.O_RDONLY), 0, 100)
done(os.read(r, 100))`},
	{"openat of its directory", 0, true, "",
		`done(os.read(os.open(base, os.O_RDONLY, dir_fd=os.open(dir, os.O_PATH)), 100))`},
	{"openat of the root in /proc", 0, true, "",
		`done(os.read(os.open(p[1:], os.O_RDONLY, dir_fd=os.open("/proc/self/root", os.O_PATH)), 100))`},
	{"open in /proc/self/root", 0, true, "", `done(os.read(os.open("/proc/self/root" + p, os.O_RDONLY), 100))`},
	{"openat2 without links", 0, true, "", `done(os.read(openat2(-100, p, 0x02 | 0x04), 100))`},
	{"openat2 beneath its directory", 0, true, "", `done(os.read(openat2(os.open(dir, os.O_PATH), base, 0x08), 100))`},
	{"openat2 in a root", 0, true, "",
		`done(os.read(openat2(os.open(os.path.dirname(dir), os.O_PATH), "/../" + os.path.basename(dir) + "/" + base, 0x10), 100))`},
	{"a path alone, then its descriptor", 0, true, "",
		`done(os.read(os.open("/proc/self/fd/%d" % os.open(p, os.O_PATH), os.O_RDONLY), 100))`},
	{"a path alone", 0, false, "EBADF", `os.read(os.open(p, os.O_PATH), 100)`},
	{"a path alone to be mapped", 0, false, "EBADF", `call(mmap_number, 0, 4096, 1, 2, os.open(p, os.O_PATH), 0)`},
	{"execve", 0o755, true, "ENOEXEC", `os.execv(p, [p])`},
	{"execve of its descriptor", 0o755, true, "ENOEXEC", `os.execve(os.open(p, os.O_PATH), [p], {})`},
	{"execve, for which it has no mode", 0, false, "EACCES", `os.execv(p, [p])`},
	{"execve of a script that names it", 0o755, true, "ENOEXEC", `
s = "/tmp/script%d" % os.getpid()
with open(s, "w") as f: f.write("#!" + p + "\n")
os.chmod(s, 0o755)
os.execv(s, [s])`},
	{"open for writing", 0, false, "EROFS", `os.open(p, os.O_RDWR)`},
	{"open to cut it off", 0, false, "EROFS", `os.open(p, os.O_RDONLY | os.O_TRUNC)`},
	{"open_by_handle_at", 0, false, "EPERM", `
h = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
libc.name_to_handle_at(-100, p.encode(), h, ctypes.byref(ctypes.c_int()), 0)
f = libc.open_by_handle_at(os.open(dir, os.O_RDONLY), h, os.O_RDONLY)
if f < 0: raise OSError(ctypes.get_errno(), "open_by_handle_at")
done(os.read(f, 100))`},
	{"io_uring", 0, false, "ENOSYS", `done(os.read(call(425, 8, ctypes.create_string_buffer(120)), 100))`},
	{"fanotify", 0, false, "EPERM", `
if libc.fanotify_init(0, 0) < 0: raise OSError(ctypes.get_errno(), "fanotify_init")`},
}

// callsHead is the beginning of each script.
const callsHead = `
import ctypes, errno, mmap, os, struct, sys
p = sys.argv[1]
dir, base = os.path.dirname(p), os.path.basename(p)
libc = ctypes.CDLL(None, use_errno=True)
mmap_number = {"x86_64": 9, "aarch64": 222}[os.uname().machine]
def call(number, *args):
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r == -1: raise OSError(ctypes.get_errno(), "call %d" % number)
    return r
def openat2(at, path, resolve):
    return call(437, at, path.encode(), struct.pack("QQQ", os.O_RDONLY, 0, resolve), 24)
def done(b):
    print("read", b.decode(errors="replace").strip())
    sys.exit()
def tell(kind, e, trace):
    print(errno.errorcode[e.errno] if kind in (OSError, PermissionError) else repr(e))
sys.excepthook = tell
`

var decoyCalls = []check{
	{"opening a decoy is recorded, by whatever system call", walled, func(t *testing.T, tier Tier) {
		var paths []string
		for i := range calls {
			paths = append(paths, fmt.Sprintf("/home/p/call%d/key", i))
		}
		const last = "/home/p/last"
		b := tier.Start(t, func(c *plan.Config) {
			decoyed(t, c, append(slices.Clone(paths), last)...)
			for i, way := range calls {
				if way.mode != 0 {
					c.Access.Decoys[i].Mode = way.mode
				}
			}
		})
		if r := b.Sh(t, "command -v /usr/bin/python3"); r.Exit.Code != 0 {
			t.Skip("needs python3: to make system calls")
		}
		var seen []string
		for i, way := range calls {
			r := b.Do(t, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "-I", "-c", callsHead + way.py, paths[i]}})
			want := way.fails
			if want == "" {
				want = "read token of " + paths[i]
			}
			if strings.TrimSpace(r.Stdout) != want {
				t.Errorf("%s: want %q: %+v", way.name, want, r)
			}
			if way.told {
				seen = append(seen, paths[i])
			}
		}
		if r := b.Sh(t, ": <"+last); r.Exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
		// The kernel's queue is ordered: an opening that has not been reported by now never will be.
		var told []string
		for _, ev := range b.Touched(t, func(ev wire.NetEvent) bool { return ev.Decoy == last }) {
			if !slices.Contains(told, ev.Decoy) {
				told = append(told, ev.Decoy)
			}
		}
		if !slices.Equal(told, append(seen, last)) {
			t.Errorf("told are %q, want %q", told, append(seen, last))
		}
	}},
}
