//go:build linux && (amd64 || arm64)

package relay

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// world has a keeper at one end, a test that acts as init at the other, and a relay between them.
type world struct {
	keeper, init *initlink.Link
	in, out      [2]*os.File // pipes to the inside and from it
	inside       *Relay
	ends         chan error

	from chan *os.File           // what the inside reads once its current pipe has ended
	to   atomic.Pointer[os.File] // what the inside writes to
	now  *os.File
}

// Read and Write use the inside's pipes. GVisor replaces them when it resumes a kernel.
func (w *world) Read(b []byte) (int, error) {
	for {
		n, err := w.now.Read(b)
		if err != io.EOF {
			return n, err
		}
		next, ok := <-w.from
		if !ok {
			return 0, io.EOF
		}
		w.now = next
	}
}

func (w *world) Write(b []byte) (int, error) { return w.to.Load().Write(b) }

func pair(t *testing.T) (a, b *initlink.Link) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return initlink.NewLink(p[0]), initlink.NewLink(p[1])
}

func pipe(t *testing.T) (p [2]*os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return [2]*os.File{r, w}
}

// outside connects a new keeper to the inside.
func (w *world) outside(t *testing.T, h Hooks) {
	t.Helper()
	w.in, w.out = pipe(t), pipe(t)
	keeper, theirs := pair(t)
	w.keeper = keeper
	r := Outside(theirs, w.out[0], w.in[1], h)
	ends := make(chan error, 1)
	go func() { ends <- r.Run() }()
	in, out := w.in, w.out
	t.Cleanup(func() {
		keeper.Shutdown()
		_ = in[1].Close()
		_ = out[0].Close()
		if err := <-ends; err != nil && !errors.Is(err, os.ErrClosed) {
			t.Errorf("outside: %v", err)
		}
		keeper.Close()
	})
}

func newWorld(t *testing.T) *world {
	w := &world{ends: make(chan error, 1)}
	w.outside(t, Hooks{})
	theirs, init := pair(t)
	w.init = init
	w.from, w.now = make(chan *os.File, 1), w.in[0]
	w.to.Store(w.out[1])
	w.inside = Inside(theirs, w, w)
	go func() { w.ends <- w.inside.Run() }()
	t.Cleanup(func() {
		init.Shutdown()
		close(w.from)
		<-w.ends
		init.Close()
	})
	return w
}

// spawn has the keeper send a command, and starts it as init does. It returns the keeper's ends of the streams.
func (w *world) spawn(t *testing.T, name string, args ...string) (stdout, stderr, stdin *os.File, cmd *exec.Cmd) {
	t.Helper()
	out, errs, in := pipe(t), pipe(t), pipe(t)
	if err := w.keeper.Send(initlink.MsgSpawn, initlink.Spawn{Exec: name, Cmd: args}, int(out[1].Fd()), int(errs[1].Fd()),
		int(in[0].Fd())); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{out[1], errs[1], in[0]} {
		f.Close()
	}
	m, err := w.init.Recv()
	if err != nil || m.Kind != initlink.MsgSpawn || len(m.FDs) != 3 {
		t.Fatalf("init received %q with %d descriptors, %v", m.Kind, len(m.FDs), err)
	}
	cmd = exec.Command(args[0], args[1:]...)
	files := make([]*os.File, 3)
	for i, fd := range m.FDs {
		files[i] = os.NewFile(uintptr(fd), initlink.Pipes[i])
	}
	cmd.Stdout, cmd.Stderr, cmd.Stdin = files[0], files[1], files[2]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	if err := w.init.Send(initlink.MsgSpawned, initlink.Spawned{PID: cmd.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	if m, err := w.keeper.Recv(); err != nil || m.Kind != initlink.MsgSpawned {
		t.Fatalf("the keeper received %q, %v", m.Kind, err)
	}
	return out[0], errs[0], in[1], cmd
}

// exited sends the exit of a command as init does, and returns what the keeper receives.
func (w *world) exited(t *testing.T, cmd *exec.Cmd) (x initlink.Exited) {
	t.Helper()
	if err := w.init.Send(initlink.MsgExited, initlink.Exited{PID: cmd.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	m, err := w.keeper.Recv()
	if err == nil {
		err = m.Decode(&x)
	}
	if err != nil || m.Kind != initlink.MsgExited {
		t.Fatalf("%q, %v", m.Kind, err)
	}
	return x
}

// TestRelay_PreservesBytes sends megabytes to a command and back.
func TestRelay_PreservesBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stdout, stderr, stdin, cmd := w.spawn(t, "x", "cat")
	defer stdout.Close()
	defer stderr.Close()
	big := make([]byte, 5<<20)
	_, _ = rand.Read(big)
	go func() {
		_, _ = stdin.Write(big)
		stdin.Close()
	}()
	got, err := io.ReadAll(stdout)
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d bytes of %d, %v", len(got), len(big), err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if x := w.exited(t, cmd); len(x.Written) != 2 || x.Written[0] != int64(len(big)) || x.Written[1] != 0 {
		t.Errorf("%+v", x)
	}
}

// TestRelay_SlowReaderDoesNotBlock leaves one command's output unread while another command's output arrives.
func TestRelay_SlowReaderDoesNotBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow, e1, in1, yes := w.spawn(t, "slow", "yes")
	stdout, e2, in2, cmd := w.spawn(t, "quick", "sh", "-c", "head -c 3000000 /dev/zero")
	if got, err := io.ReadAll(stdout); err != nil || len(got) != 3000000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_ = cmd.Wait()
	// A reader that closes its end makes the writer exit.
	slow.Close()
	if err := yes.Wait(); err == nil {
		t.Error("yes(1) exited without an error")
	}
	for _, f := range []*os.File{e1, in1, stdout, e2, in2} {
		f.Close()
	}
}

// TestRelay_ContinuesWithAnotherOutside freezes, replaces the outside, as a resume from a memory image does, and lets
// the command continue with the new one.
func TestRelay_ContinuesWithAnotherOutside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stdout, _, stdin, cmd := w.spawn(t, "counter", "sh", "-c", `echo before; while read l; do echo got $l; done; echo end`)
	line := make([]byte, len("before\n"))
	if _, err := io.ReadFull(stdout, line); err != nil {
		t.Fatal(err)
	}
	if err := w.keeper.Send(initlink.MsgFreeze, nil); err != nil {
		t.Fatal(err)
	}
	if m, err := w.init.Recv(); err != nil || m.Kind != initlink.MsgFreeze {
		t.Fatalf("%q, %v", m.Kind, err)
	}
	if err := w.init.Send(initlink.MsgFrozen, initlink.Frozen{Procs: 1}); err != nil {
		t.Fatal(err)
	}
	if m, err := w.keeper.Recv(); err != nil || m.Kind != initlink.MsgFrozen {
		t.Fatalf("%q, %v", m.Kind, err)
	}
	if _, err := stdin.WriteString("lost with the end that it was for\n"); err != nil {
		t.Fatal(err)
	}
	// As after a resume in another kernel: the same inside with other pipes.
	w.in[1].Close()
	w.in, w.out = pipe(t), pipe(t)
	w.to.Store(w.out[1])
	w.from <- w.in[0]
	keeper, theirs := pair(t)
	var fds []int
	resumed := make(chan bool, 1)
	r := Outside(theirs, w.out[0], w.in[1], Hooks{Resumed: func() error { resumed <- true; return nil }})
	go func() { _ = r.Run() }()
	r.Hello()
	m, err := keeper.Recv()
	if err != nil || m.Kind != initlink.MsgAdopt {
		t.Fatalf("%q, %v", m.Kind, err)
	}
	var a initlink.Adopt
	if err := json.Unmarshal(m.Payload, &a); err != nil {
		t.Fatal(err)
	}
	fds = m.FDs
	if a.Exec != "counter" || a.PID != cmd.Process.Pid || len(a.Has) != 3 || len(fds) != 3 {
		t.Fatalf("%+v with %d descriptors", a, len(fds))
	}
	<-resumed
	if m, err := w.init.Recv(); err != nil || m.Kind != initlink.MsgThaw {
		t.Fatalf("init received %q, %v", m.Kind, err)
	}
	files := map[string]*os.File{}
	for i, name := range a.Has {
		files[name] = os.NewFile(uintptr(fds[i]), name)
	}
	if _, err := files["stdin"].WriteString("again\n"); err != nil {
		t.Fatal(err)
	}
	files["stdin"].Close()
	got, err := io.ReadAll(files["stdout"])
	if err != nil || string(got) != "got again\nend\n" {
		t.Errorf("%q, %v", got, err)
	}
	_ = cmd.Wait()
	if err := w.init.Send(initlink.MsgExited, initlink.Exited{PID: cmd.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	var x initlink.Exited
	if m, err := keeper.Recv(); err != nil || m.Decode(&x) != nil || x.Written[0] != int64(len(got)) {
		t.Errorf("exit reported to the new outside: %+v, %v", x, err)
	}
	keeper.Shutdown()
}

// TestRelay_RefusesHostileInside lets the inside send invalid frames and messages, and more data than its window
// allows.
func TestRelay_RefusesHostileInside(t *testing.T) {
	t.Parallel()
	message := func(kind byte, fds []travelling) []byte {
		return frame{kind: frameMessage, body: encode(kind, fds, nil)}.append(nil)
	}
	var many []byte
	for i := range maxStreams + 2 {
		many = append(many, message(byte(initlink.MsgSelf), []travelling{{uint32(2*i + 2), flowOut}})...)
	}
	for about, b := range map[string][]byte{
		"an unknown frame":    {'?', 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0},
		"a frame too long":    {byte(frameData), 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff},
		"a head that is none": {byte(frameData), 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0},
		"a message cut off":   frame{kind: frameMessage, body: []byte{byte(initlink.MsgSelf), 3}}.append(nil),
		"a stream of no kind": message(byte(initlink.MsgSelf), []travelling{{2, 'x'}}),
		"a stream twice": append(message(byte(initlink.MsgSelf), []travelling{{2, flowOut}}),
			message(byte(initlink.MsgSelf), []travelling{{2, flowOut}})...),
		"stream 0": message(byte(initlink.MsgSelf), []travelling{{0, flowOut}}),
		// For a stream that is not read, 2*window may be queued, as much be in transit to the pipe, and 64 KiB be in
		// the pipe.
		"more than its window": append(message(byte(initlink.MsgSelf), []travelling{{2, flowOut}}),
			bytes.Repeat(frame{frameData, 2, make([]byte, maxData)}.append(nil), 4*window/maxData+8)...),
		"streams without end": many,
	} {
		t.Run(about, func(t *testing.T) {
			in, out := pipe(t), pipe(t)
			keeper, theirs := pair(t)
			var taking sync.WaitGroup
			defer taking.Wait() // its descriptor number is reused by another link
			defer keeper.Shutdown()
			taking.Go(func() { // the monitor closes the descriptors it gets, except where it must leave a stream unread
				for {
					m, err := keeper.Recv()
					if err != nil {
						return
					}
					if about != "more than its window" {
						m.Close()
					}
				}
			})
			r := Outside(theirs, out[0], in[1], Hooks{})
			ends := make(chan error, 1)
			go func() { ends <- r.Run() }()
			go func() { _, _ = io.Copy(io.Discard, in[0]) }()
			go func() { _, _ = out[1].Write(b) }()
			select {
			case err := <-ends:
				if err == nil {
					t.Error("Run returned no error")
				}
			case <-time.After(20 * time.Second):
				t.Error("Run did not return")
			}
		})
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(frame{kind: frameMessage,
		body: encode(byte(initlink.MsgSelf), []travelling{{2, flowBoth}}, []byte("{}"))}.append(nil))
	f.Add(frame{frameData, 7, []byte("data")}.append(nil))
	f.Add([]byte{'w', 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var buf []byte
		x, err := readFrame(bytes.NewReader(b), &buf)
		if err != nil {
			return
		}
		again := x.append(nil)
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("%q was encoded as %q", b, again)
		}
		kind, fds, payload, err := decode(x.body)
		if err == nil && !bytes.Equal(encode(kind, fds, payload), x.body) {
			t.Fatalf("%q was not encoded as it was received", x.body)
		}
	})
}
