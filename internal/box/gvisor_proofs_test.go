//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// proof is a program with state in memory. An image is taken while it runs.
type proof struct {
	name  string
	needs []string // programs of the host
	// begin brings the program to the state in which the image is taken.
	begin func(t *testing.T, b *boxtest.Box)
	// damage changes the state of the original after the image was taken.
	damage func(t *testing.T, b *boxtest.Box)
	// goesOn checks that copy n continues from the image. The copies must be independent of each other.
	goesOn func(t *testing.T, b *boxtest.Box, n int)
}

// talk is a session with a command that answers each line of input.
type talk struct {
	s *box.Session
	t *testing.T
}

// listen starts a command and waits for the output ready.
func listen(t *testing.T, b *boxtest.Box, ready string, cmd ...string) talk {
	t.Helper()
	s := b.Open(t, wire.ExecRequest{ID: "program", Cmd: cmd, Stdin: true, Keep: true, Dir: "/srv"})
	boxtest.WaitStarted(t, s)
	boxtest.WaitOutput(t, s, ready)
	return talk{s, t}
}

// resumed returns a talk with the command of a copy.
func resumed(t *testing.T, b *boxtest.Box) talk {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s, err := b.Reattach(ctx, "program", 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.SetDeadline(time.Now().Add(5 * time.Minute))
	t.Cleanup(func() { s.Close() })
	boxtest.WaitStarted(t, s)
	return talk{s, t}
}

// say sends line, and waits for the answer want.
func (c talk) say(line, want string) {
	c.t.Helper()
	boxtest.Send(c.t, c.s, wire.FrameStdin, []byte(line+"\n"))
	boxtest.WaitOutput(c.t, c.s, want)
}

// want runs a script, which must print out.
func want(t *testing.T, b *boxtest.Box, script, out string) {
	t.Helper()
	if r := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", script}, Dir: "/srv"}); r.Exit.Code != 0 ||
		!strings.Contains(r.Stdout, out) {
		t.Errorf("%s: %q, %q, %+v: want %q", script, r.Stdout, r.Stderr, r.Exit, out)
	}
}

const (
	pythonState = `
import sys, zlib, os
data = bytearray(os.urandom(1 << 20) * 500)
print("ready", zlib.crc32(data), flush=True)
open("/srv/sum", "w").write(str(zlib.crc32(data)))
for line in sys.stdin:
    what, n = line.split()
    if what == "set": data[int(n)] ^= 255; print("set", n, flush=True)
    if what == "sum": print("same" if str(zlib.crc32(data)) == open("/srv/sum").read() else "other", n, flush=True)
    if what == "random": print("random", os.urandom(16).hex(), n, flush=True)
`
	pythonServer = `
import http.server, http.client, threading, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    count = 0
    def do_GET(self):
        H.count += 1
        body = b"answer %d" % H.count
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H)
threading.Thread(target=s.serve_forever, daemon=True).start()
open_ = [http.client.HTTPConnection("127.0.0.1", 8000) for _ in range(3)]
for c in open_:
    c.request("GET", "/"); c.getresponse().read()
print("ready", flush=True)
for line in sys.stdin:
    c = open_[int(line)]
    sock = c.sock
    c.request("GET", "/"); print(c.getresponse().read().decode(), "same" if c.sock is sock else "other", flush=True)
`
	pythonSQLite = `
import sqlite3, sys
db = sqlite3.connect("/srv/db", isolation_level=None)
db.execute("create table t (n)")
db.execute("begin immediate")
for n in range(1000): db.execute("insert into t values (?)", (n,))
print("ready", flush=True)
for line in sys.stdin:
    db.execute(line)
    print("done", flush=True)
`
	nodeServer = `
const http = require("http"), fs = require("fs");
let hits = 0, changes = 0;
http.createServer((q, r) => { hits++; r.end("hits " + hits + " " + fs.readFileSync("/srv/page", "utf8")); }).listen(3000, "127.0.0.1", () => console.log("ready"));
setInterval(() => { changes++; }, 10);
`
	fetch = `/usr/bin/python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:3000/").read().decode())'`
)

// proofs are programs that agents and developers use.
var proofs = []proof{
	{
		name: "a Python session with 500 MB", needs: []string{"/usr/bin/python3"},
		begin:  func(t *testing.T, b *boxtest.Box) { listen(t, b, "ready", "/usr/bin/python3", "-c", pythonState) },
		damage: func(t *testing.T, b *boxtest.Box) { resumed(t, b).say("set 7", "set 7") },
		goesOn: func(t *testing.T, b *boxtest.Box, n int) {
			c := resumed(t, b)
			c.say("sum 1", "same 1")
			c.say(fmt.Sprint("set ", 1000*n), "set")
			c.say("sum 2", "other 2")
		},
	},
	{
		name: "a server with open connections", needs: []string{"/usr/bin/python3"},
		begin:  func(t *testing.T, b *boxtest.Box) { listen(t, b, "ready", "/usr/bin/python3", "-c", pythonServer) },
		damage: func(t *testing.T, b *boxtest.Box) { resumed(t, b).say("2", "answer 4 same") },
		goesOn: func(t *testing.T, b *boxtest.Box, n int) {
			c := resumed(t, b)
			c.say("0", "answer 4 same")
			for i := range n {
				c.say("1", fmt.Sprint("answer ", 5+i, " same"))
			}
		},
	},
	{
		name: "tmux with shells", needs: []string{"tmux"},
		begin: func(t *testing.T, b *boxtest.Box) {
			want(t, b, `tmux -L box new-session -d -s s 'sh -i' && tmux -L box split-window -t s 'sh -i' && tmux -L box send-keys -t s:0.0 'a=40; echo rea''dy' Enter &&
				until tmux -L box capture-pane -p -t s:0.0 | grep -q ^ready; do sleep 0.05; done`, "")
		},
		damage: func(t *testing.T, b *boxtest.Box) { want(t, b, "tmux -L box kill-server; echo killed", "killed") },
		goesOn: func(t *testing.T, b *boxtest.Box, n int) {
			want(t, b, fmt.Sprintf(
				`tmux -L box send-keys -t s:0.0 'echo sum $((a+%d))' Enter && until tmux -L box capture-pane -p -t s:0.0 | grep '^sum '; do sleep 0.05; done; tmux -L box list-panes -t s | wc -l`, n),
				fmt.Sprint("sum ", 40+n, "\n2\n"))
		},
	},
	{
		name: "SQLite in the middle of a transaction", needs: []string{"/usr/bin/python3"},
		begin:  func(t *testing.T, b *boxtest.Box) { listen(t, b, "ready", "/usr/bin/python3", "-c", pythonSQLite) },
		damage: func(t *testing.T, b *boxtest.Box) { want(t, b, "rm /srv/db*; echo gone", "gone") },
		goesOn: func(t *testing.T, b *boxtest.Box, n int) {
			end, rows := "commit", "1000 ok"
			if n%2 == 1 {
				end, rows = "rollback", "0 ok"
			}
			resumed(t, b).say(end, "done")
			want(t, b, `/usr/bin/python3 -c 'import sqlite3; d = sqlite3.connect("/srv/db"); print(d.execute("select count(*) from t").fetchone()[0], d.execute("pragma integrity_check").fetchone()[0])'`, rows)
		},
	},
	{
		name: "make -j2 in flight", needs: []string{"make", "gcc"},
		begin: func(t *testing.T, b *boxtest.Box) {
			want(t, b, `for i in $(seq 24); do echo "int f$i(int x) { return x + $i; }" > f$i.c; done
				printf 'all: $(patsubst %%.c,%%.o,$(wildcard f*.c))\n\tar rc all.a f*.o\n%%.o: %%.c\n\tgcc -O2 -c -o $@ $<\n' > Makefile`, "")
			b.Open(t, wire.ExecRequest{ID: "program", Cmd: []string{"make", "-j2"}, Keep: true, Dir: "/srv"})
			want(t, b, `until [ $(ls f*.o 2>/dev/null | wc -l) -ge 4 ]; do sleep 0.01; done`, "")
		},
		damage: func(t *testing.T, b *boxtest.Box) { want(t, b, "rm f*.c; echo gone", "gone") },
		goesOn: func(t *testing.T, b *boxtest.Box, _ int) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			x, err := b.Wait(ctx, "program")
			if err != nil || x.Code != 0 {
				t.Fatalf("make: %+v, %v", x, err)
			}
			want(t, b, "ar t all.a | wc -l", "24")
		},
	},
	{
		name: "a Node server", needs: []string{"/usr/bin/python3", "node"},
		begin: func(t *testing.T, b *boxtest.Box) {
			want(t, b, "echo first > page", "")
			listen(t, b, "ready", "node", "-e", nodeServer)
			want(t, b, fetch, "hits 1 first")
		},
		damage: func(t *testing.T, b *boxtest.Box) { want(t, b, "rm page; pkill node; echo gone", "gone") },
		goesOn: func(t *testing.T, b *boxtest.Box, n int) {
			want(t, b, fetch, "hits 2 first")
			want(t, b, fmt.Sprintf("echo page %d > page; %s", n, fetch), fmt.Sprintf("hits 3 page %d", n))
		},
	},
}

// atWork is a configuration with a directory /srv that commands can write to.
func atWork(t testing.TB) plan.Config {
	c := gvisorConfig(t)
	dir := filepath.Dir(c.RunDir)
	o := rootspec.Overlay{Target: "/srv", Lowers: []string{dir + "/srv/lower"}, Upper: dir + "/srv/upper",
		Work: dir + "/srv/work"}
	for _, d := range []string{o.Lowers[0], o.Upper, o.Work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.Spec.Overlays = append(c.Spec.Overlays, o)
	return c
}

// moment is a state of a box: its memory image, and the files that it had written by then.
type moment struct {
	image  string
	layers []string // copies of the upper layers, by overlay
}

func take(t *testing.T, b *boxtest.Box) (m moment) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	f, err := b.Freeze(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Drop()
	m.image = filepath.Join(dir, "image")
	if err := os.Mkdir(m.image, 0o700); err != nil {
		t.Fatal(err)
	}
	init, _, err := saveTo(ctx, f, m.image)
	if err != nil {
		t.Fatal(err)
	}
	init.Close()
	for i, o := range b.Config.Spec.Overlays {
		to := filepath.Join(dir, fmt.Sprint("layer", i))
		if out, err := exec.Command("cp", "-a", o.Upper, to).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		m.layers = append(m.layers, to)
	}
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
	return m
}

// at starts a box from a moment.
func (m moment) at(t *testing.T, name string) *boxtest.Box {
	t.Helper()
	return boxtest.Tier{Name: plan.TierGvisor, Config: atWork}.Start(t, func(c *plan.Config) {
		c.Image, c.Name, c.ID = m.image, name, name
		for i := range c.Spec.Overlays {
			o := &c.Spec.Overlays[i]
			o.Lowers = append([]string{m.layers[i]}, o.Lowers...)
		}
	})
}

// TestGvisorProofs takes an image of each running program, damages the program, rewinds to the image, and forks the
// image four times.
func TestGvisorProofs(t *testing.T) {
	for _, p := range proofs {
		t.Run(p.name, func(t *testing.T) {
			for _, program := range p.needs {
				if _, err := exec.LookPath(program); err != nil {
					t.Skipf("needs %s: to be forked", filepath.Base(program))
				}
			}
			b := boxtest.Tier{Name: plan.TierGvisor, Config: atWork}.Start(t)
			p.begin(t, b)
			m := take(t, b)
			p.damage(t, b)
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			if err := b.Stop(ctx, 0); err != nil {
				t.Fatal(err)
			}
			back := m.at(t, "test")
			if err := back.Release(ctx); err != nil {
				t.Fatal(err)
			}
			p.goesOn(t, back, 0)
			var copies sync.WaitGroup
			random := make([]string, 4)
			for n := range random {
				copies.Go(func() { random[n] = p.forked(t, m, n) })
			}
			copies.Wait()
			for i, r := range random {
				for _, s := range random[:i] {
					if r == s {
						t.Errorf("two copies drew the same random bytes: %q", r)
					}
				}
			}
		})
	}
}

// forked creates fork n of an image, checks that the program continues in it, and returns random bytes from it.
func (p proof) forked(t *testing.T, m moment, n int) (random string) {
	c := m.at(t, fmt.Sprint("fork", n))
	if steps, err := c.Rekey(t.Context(), box.Rekey{Seed: []byte(fmt.Sprintf("%032d", n))}); err != nil {
		t.Errorf("%v, after %+v", err, steps)
		return ""
	}
	if err := c.Release(t.Context()); err != nil {
		t.Error(err)
		return ""
	}
	p.goesOn(t, c, n)
	return c.Sh(t, "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid").Stdout
}
