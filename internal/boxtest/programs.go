//go:build linux && (amd64 || arm64)

package boxtest

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// run is a program from its start to its exit, as far as both were reported.
type run struct {
	wire.StartedProgram
	end *wire.EndedProgram
}

func (r run) line() string { return strings.Join(r.Args, " ") }

// recorded returns the programs after an event, in the order in which they began, and how many events were dropped.
func (b *Box) recorded(t testing.TB, after uint64) (runs []run, next, dropped uint64) {
	t.Helper()
	at := map[uint64]int{}
	for {
		p, err := b.ProgramsNow(t.Context(), after, after)
		if err != nil {
			t.Fatal(err)
		}
		dropped += p.Dropped
		for _, e := range p.Events {
			if e.Seq <= after {
				t.Fatalf("event %d after %d", e.Seq, after)
			}
			after = e.Seq
			if e.Began != nil {
				at[e.Began.ID] = len(runs)
				runs = append(runs, run{StartedProgram: *e.Began})
			}
			if e.Ended != nil {
				if i, ok := at[e.Ended.ID]; ok {
					if runs[i].end != nil {
						t.Errorf("%q ends twice", runs[i].line())
					}
					runs[i].end = e.Ended
				}
			}
		}
		if after = p.Next; len(p.Events) == 0 {
			return runs, p.Next, dropped
		}
	}
}

// await waits until a program with a command line has started.
func (b *Box) await(t testing.TB, line string) {
	t.Helper()
	for after := uint64(0); ; {
		p, err := b.Programs(t.Context(), after, after)
		if err != nil {
			t.Fatalf("waiting for %q: %v", line, err)
		}
		for _, e := range p.Events {
			if e.Began != nil && !e.Began.Asked && strings.Join(e.Began.Args, " ") == line {
				return
			}
		}
		after = p.Next
	}
}

// find returns the only program with a command line.
func find(t testing.TB, runs []run, line string) run {
	t.Helper()
	var found []run
	for _, r := range runs {
		if r.line() == line {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		var all []string
		for _, r := range runs {
			all = append(all, r.line())
		}
		t.Errorf("%q was recorded %d times in %q", line, len(found), all)
		return run{}
	}
	return found[0]
}

// split separates the programs that began from those that were only asked for.
func split(runs []run) (begun, asked []run) {
	for _, r := range runs {
		if r.Asked {
			asked = append(asked, r)
		} else {
			begun = append(begun, r)
		}
	}
	return begun, asked
}

// elf returns a program of machine code that needs nothing but the kernel.
func elf(code []byte) []byte {
	const base, head = 0x400000, 64 + 56
	machine := uint16(62)
	if runtime.GOARCH == "arm64" {
		machine = 183
	}
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	for _, v := range []uint64{base + head, 64, 0} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1)
	b = le.AppendUint32(b, 5)
	size := uint64(head + len(code))
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}

// put writes an executable file inside.
func (b *Box) put(t testing.TB, name string, content []byte) {
	t.Helper()
	if r := b.Sh(t,
		fmt.Sprintf("mkdir -p $(dirname %s); echo %s | base64 -d > %[1]s; chmod +x %[1]s", name,
			base64.StdEncoding.EncodeToString(content))); r.Exit.Code != 0 {
		t.Fatalf("%+v", r)
	}
}

// python runs a script inside.
func (b *Box) python(t testing.TB, script string) Result {
	t.Helper()
	if r := b.Sh(t, "command -v /usr/bin/python3"); r.Exit.Code != 0 {
		t.Skip("needs python3: to make system calls")
	}
	b.put(t, "/tmp/d/p.py", []byte("import os, ctypes, threading, signal\n"+`
libc = ctypes.CDLL(None)
def child(f):
    p = os.fork()
    if p == 0:
        try:
            f()
        finally:
            os._exit(1)
    return os.waitpid(p, 0)[1]
`+script))
	return b.Do(t, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "/tmp/d/p.py"}})
}

var programs = []check{
	{"programs are records, from their beginning to their end", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		b.put(t, "/tmp/d/script", []byte("#!/bin/sh -u\ncd /usr; /bin/cat </dev/null; exit 3\n"))
		_, from, _ := b.recorded(t, 0)
		r := b.Do(t,
			wire.ExecRequest{Dir: "/etc",
				Cmd: []string{"sh", "-c", "/tmp/d/script 'a b' ''; /no/such/program; (sh -c 'kill -KILL $$'); exec /bin/false"}})
		if r.Exit.Code != 1 {
			t.Fatalf("%+v", r)
		}
		runs, _, dropped := b.recorded(t, from)
		if len(runs) != 5 || dropped != 0 {
			t.Errorf("%d programs, %d dropped: %+v", len(runs), dropped, runs)
		}
		command := runs[0]
		line, file := "/bin/sh -u /tmp/d/script a b ", "sh"
		if tier.Name == plan.TierGvisor { // its kernel reports the script
			line, file = "/tmp/d/script a b ", "script"
		}
		script := find(t, runs, line)
		cat := find(t, runs, "/bin/cat")
		killed := find(t, runs, "sh -c kill -KILL $$")
		last := find(t, runs, "/bin/false")
		for _, c := range []struct {
			run
			parent, before uint64
			dir, exe       string
			end            wire.EndedProgram
		}{
			{command, 0, 0, "/etc", "sh", wire.EndedProgram{Next: last.ID}},
			{script, command.ID, 0, "/etc", file, wire.EndedProgram{Code: 3}},
			{cat, script.ID, 0, "/usr", "cat", wire.EndedProgram{}},
			{killed, command.ID, 0, "/etc", "sh", wire.EndedProgram{Code: 137, Signal: "KILL"}},
			{last, 0, command.ID, "/etc", "false", wire.EndedProgram{Code: 1}},
		} {
			exe := c.Exe[strings.LastIndexByte(c.Exe, '/')+1:]
			if exe == "dash" || exe == "bash" {
				exe = "sh"
			}
			if c.Parent != c.parent || c.Before != c.before || c.Dir != c.dir || exe != c.exe && exe != "busybox" &&
				exe != "coreutils" ||
				c.Exec != r.Started.Exec || c.Asked || c.Lost || c.Cut != 0 || c.PID <= 1 {
				t.Errorf("%q: %+v", c.line(), c.StartedProgram)
			}
			if c.run.end == nil {
				t.Errorf("%q has no end", c.line())
				continue
			}
			got := *c.run.end
			if got.At.Before(c.Started) {
				t.Errorf("%q ends before it begins", c.line())
			}
			if got.ID, got.At = 0, c.end.At; got != c.end {
				t.Errorf("%q: end %+v, want %+v", c.line(), got, c.end)
			}
		}
	}},
	{"a program without a C library is recorded", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		exit, trap := []byte("\xb8\xe7\x00\x00\x00\xbf\x07\x00\x00\x00\x0f\x05"), []byte("\x0f\x0b") // exit_group(7); ud2
		if runtime.GOARCH == "arm64" {
			exit, trap = []byte("\xe0\x00\x80\xd2\xc8\x0b\x80\xd2\x01\x00\x00\xd4"), []byte("\x00\x00\x00\x00")
		}
		b.put(t, "/tmp/d/exit", elf(exit))
		b.put(t, "/tmp/d/trap", elf(trap))
		_, from, _ := b.recorded(t, 0)
		b.Sh(t, "/tmp/d/exit; /tmp/d/trap; :")
		runs, _, _ := b.recorded(t, from)
		if r := find(t, runs, "/tmp/d/exit"); r.Exe != "/tmp/d/exit" || r.end == nil || r.end.Code != 7 {
			t.Errorf("%+v, end %+v", r, r.end)
		}
		if r := find(t, runs, "/tmp/d/trap"); r.Exe != "/tmp/d/trap" || r.end == nil || r.end.Signal != "ILL" {
			t.Errorf("%+v, end %+v", r, r.end)
		}
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"/tmp/d/exit"}}); r.Exit.Code != 7 {
			t.Errorf("as a command: %+v", r)
		}
	}},
	{"no way to start a program goes unrecorded", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		r := b.python(t, `
fd = os.open("/bin/true", os.O_RDONLY)
child(lambda: os.execve(fd, ["by-fd"], {}))
argv = (ctypes.c_char_p * 3)(b"by-at", b"x", None)
child(lambda: libc.syscall({"x86_64": 322, "aarch64": 281}[os.uname().machine], fd, b"", argv, None, 0x1000))
def memory():
    m = os.memfd_create("hidden")
    os.write(m, open("/bin/true", "rb").read())
    os.execve(m, ["by-memory"], {})
child(memory)
child(lambda: os.execvp("no-such-program", ["in-vain"]))
child(lambda: os.execv("/etc/passwd", ["in-vain"]))
os.waitpid(os.posix_spawn("/bin/true", ["by-spawn"], {}), 0)
def thread():
    threading.Thread(target=lambda: os.execv("/bin/true", ["by-thread"])).start()
    threading.Event().wait()
child(thread)
def both():
    t = [threading.Thread(target=lambda: os.execv("/bin/true", ["by-one-of-many"])) for _ in range(8)]
    for x in t: x.start()
    threading.Event().wait()
child(both)
child(lambda: os.execv("/bin/true", ["\udcff\udcfe"]))
child(lambda: os.execv("/bin/true", ["long", "y" * 8000]))
child(lambda: os.execv("/bin/true", []) if False else os.execv("/bin/true", [" "]))
def tower():
    os.execv("/bin/sh", ["sh", "-c", "exec sh -c 'exec true tower'"])
child(tower)
def orphan():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/true", ["by-orphan"])
        os._exit(0)
    os._exit(0)
child(orphan)
`)
		b.await(t, "by-orphan")
		runs, _, _ := b.recorded(t, 0)
		begun, asked := split(runs)
		for _, name := range []string{"by-fd", "by-at x", "by-memory", "by-spawn", "by-thread", "by-one-of-many",
			"true tower", "by-orphan"} {
			if r := find(t, begun, name); name == "by-memory" && !strings.HasPrefix(r.Exe, "/memfd:hidden") {
				t.Errorf("%+v", r)
			}
		}
		for _, p := range runs {
			switch {
			case p.line() == "in-vain" && (!p.Asked || p.Exe != "/etc/passwd"):
				t.Errorf("a program is recorded that did not start: %+v", p)
			case len(p.Args) == 2 && p.Args[0] == "long" &&
				(p.Cut != int64(len("long\x00")+8001-4096) || len(p.Args[1]) != 4096-5):
				t.Errorf("%d bytes are cut, %d left", p.Cut, len(p.Args[1]))
			case p.ArgsRaw != nil && string(p.ArgsRaw[0]) != "\xff\xfe":
				t.Errorf("arguments %q", p.ArgsRaw)
			}
		}
		if tier.Name != plan.TierGvisor { // its kernel knows which programs do not start
			find(t, asked, "in-vain")
		} else if len(asked) > 0 {
			t.Errorf("asked for: %+v", asked)
		}
		if !slices.ContainsFunc(begun, func(p run) bool { return p.ArgsRaw != nil }) {
			t.Errorf("arguments that are not text are lost; %s", r.Stderr)
		}
	}},
	{"who is traced inside is recorded", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		r := b.python(t, `
def traced():
    libc.ptrace(0, 0, 0, 0)
    os.execv("/bin/true", ["by-tracee", "z"])
p = os.fork()
if p == 0: traced()
print(os.waitpid(p, 0)[1] & 0xff == 0x7f, flush=True)
os.kill(p, 9)
os.waitpid(p, 0) # one that has not ended may not be recorded yet
`)
		runs, _, _ := b.recorded(t, 0)
		if p := find(t, runs, "by-tracee z"); p.Asked && p.Exe != "/bin/true" {
			t.Errorf("%+v: %+v", p, r)
		}
	}},
	{"what the kernel executed is recorded, whatever was asked for", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		loop := []byte("\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7") // pause(), in a loop
		if runtime.GOARCH == "arm64" {
			// ppoll(0, 0, 0, 0)
			loop = []byte(
				"\x00\x00\x80\xd2\x01\x00\x80\xd2\x02\x00\x80\xd2\x03\x00\x80\xd2\xc8\x09\x80\xd2\x01\x00\x00\xd4\xfa\xff\xff\x17")
		}
		b.put(t, "/tmp/d/one", elf(loop))
		b.put(t, "/tmp/d/two", elf(loop))
		r := b.python(t, `
me = os.readlink("/proc/self/exe")
def race():
    path = ctypes.create_string_buffer(b"/tmp/d/one")
    other = threading.Thread(target=lambda: [setattr(path, "value", v) for _ in range(1 << 20) for v in (b"/tmp/d/two", b"/tmp/d/one")])
    other.start()
    argv = (ctypes.c_char_p * 2)(b"raced", None)
    while True: libc.execve(path, argv, None)
for _ in range(20):
    p = os.fork()
    if p == 0: race()
    while os.readlink("/proc/%d/exe" % p) == me: pass
    print(p, os.readlink("/proc/%d/exe" % p), flush=True)
`)
		want := map[int]string{}
		for line := range strings.Lines(r.Stdout) {
			var pid int
			var exe string
			if _, err := fmt.Sscan(line, &pid, &exe); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			want[pid] = exe
		}
		if len(want) != 20 {
			t.Fatalf("%+v", r)
		}
		for after := uint64(0); len(want) > 0; {
			p, err := b.Programs(t.Context(), after, after) // until each is reported
			if err != nil {
				t.Fatal(err)
			}
			after = p.Next
			for _, e := range p.Events {
				if e.Began == nil || e.Began.Asked || want[e.Began.PID] == "" || !slices.Equal(e.Began.Args, []string{"raced"}) {
					continue
				}
				if e.Began.Exe != want[e.Began.PID] {
					t.Errorf("%+v, and %s was executed", e.Began, want[e.Began.PID])
				}
				delete(want, e.Began.PID)
			}
		}
	}},
	{"many at once are recorded once each, or counted", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		const shells, each = 8, 150
		_, from, _ := b.recorded(t, 0)
		r := b.Sh(t,
			fmt.Sprintf("for s in $(seq %d); do (i=0; while [ $i -lt %d ]; do /bin/true $s $i; i=$((i+1)); done) & done; wait",
				shells, each))
		if r.Exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
		runs, _, dropped := b.recorded(t, from)
		seen, late := map[string]int{}, 0
		for _, p := range runs {
			// The machine took longer to execute the program than init waits: the program is recorded again when it
			// begins.
			if p.Asked && p.Lost {
				late++
				continue
			}
			seen[p.line()]++
			if p.Exec != r.Started.Exec || strings.HasPrefix(p.line(), "/bin/true") &&
				(p.Parent != runs[0].ID || p.end == nil || p.end.Code != 0) {
				t.Errorf("%+v, end %+v", p.StartedProgram, p.end)
			}
		}
		if want := shells*each + 2; len(seen) != want || len(runs)-late != want || dropped != 0 {
			t.Errorf("%d programs of %d, %d different, %d late, %d dropped", len(runs), want, len(seen), late, dropped)
		}
	}},
	{"another reader finds what no reader has fetched", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		b.Sh(t, "/bin/true one")
		mine, next, _ := b.recorded(t, 0)
		other, err := box.Attach(t.Context(), b.Config.RunDir)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		theirs, _, _ := (&Box{Box: other}).recorded(t, 0)
		if len(theirs) != len(mine) || len(mine) != 2 {
			t.Errorf("%d and %d programs", len(mine), len(theirs))
		}
		type answer struct {
			p   wire.ProgramEvents
			err error
		}
		waiting := make(chan answer)
		go func() {
			p, err := other.Programs(t.Context(), next, next)
			waiting <- answer{p, err}
		}()
		b.Sh(t, ":")
		if a := <-waiting; a.err != nil || len(a.p.Events) == 0 || a.p.Events[0].Seq != next+1 {
			t.Errorf("%+v", a)
		}
	}},
	{"what a follower has not fetched is left", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		b.Sh(t, ":")
		_, next, _ := b.recorded(t, 0)
		b.Sh(t, "/bin/true last")
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		p, err := box.LeftPrograms(b.Config.RunDir, nil)
		if err != nil || p.Dropped != 0 || len(p.Events) < 2 || p.Events[0].Seq != next+1 {
			t.Errorf("%+v, %v", p, err)
		}
		if err := box.ForgetPrograms(b.Config.RunDir); err != nil {
			t.Error(err)
		}
		if _, err := box.LeftPrograms(b.Config.RunDir, nil); !fault.Is(err, fault.NotFound) {
			t.Errorf("not forgotten: %v", err)
		}
	}},
	{"programs that are not recorded are not waited for", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.Trace = false })
		if b.Enforced.State("programs") == plan.On {
			return
		}
		if _, err := b.Programs(t.Context(), 0, 0); !fault.Is(err, fault.Unsupported) {
			t.Errorf("%v", err)
		}
	}},
}
