//go:build linux && (amd64 || arm64)

package initlink

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// links returns both ends of each kind of link.
func links(t *testing.T) map[string][2]*Link {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := NewLinks()
	return map[string][2]*Link{"socket": {NewLink(p[0]), NewLink(p[1])}, "within a process": {a, b}}
}

// pipe returns both ends of a pipe. The test closes the reading end.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, w
}

// TestLink_CarriesDescriptors checks that messages arrive in order, with descriptors that the receiver owns.
func TestLink_CarriesDescriptors(t *testing.T) {
	t.Parallel()
	for name, l := range links(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer l[0].Close()
			defer l[1].Close()
			r, w := pipe(t)
			payload := []byte(`"first"`)
			if err := l[0].Pass(Message{Kind: MsgSpawn, Payload: payload, FDs: []int{int(w.Fd())}}); err != nil {
				t.Fatal(err)
			}
			copy(payload, `"XXXXX"`) // the receiver has a copy
			given, err := unix.Dup(int(w.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			if err := l[0].Give(Message{Kind: MsgKill, FDs: []int{given}}); err != nil {
				t.Fatal(err)
			}
			w.Close() // the message holds the only open write end now
			for i, want := range []Kind{MsgSpawn, MsgKill} {
				m, err := l[1].Recv()
				if err != nil || m.Kind != want || len(m.FDs) != 1 {
					t.Fatalf("message %d: %+v, %v", i, m, err)
				}
				if i == 0 && !bytes.Equal(m.Payload, []byte(`"first"`)) {
					t.Errorf("payload is %s", m.Payload)
				}
				if _, err := unix.Write(m.FDs[0], []byte{byte('0' + i)}); err != nil {
					t.Errorf("message %d: %v", i, err)
				}
				m.Close()
			}
			if got, err := io.ReadAll(r); err != nil || string(got) != "01" { // no other process has it open
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

// TestLink_DeliversBeforeEnd checks at both ends that messages sent before the end are delivered before io.EOF, and
// that nothing can be sent after it.
func TestLink_DeliversBeforeEnd(t *testing.T) {
	t.Parallel()
	for name, l := range links(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer l[0].Close()
			defer l[1].Close()
			if err := l[0].Send(MsgCount, nil); err != nil {
				t.Fatal(err)
			}
			waits := make(chan error, 1)
			go func() {
				_, err := l[0].Recv()
				waits <- err
			}()
			l[0].Shutdown()
			if err := <-waits; !errors.Is(err, io.EOF) {
				t.Errorf("Recv that was waiting: %v, want EOF", err)
			}
			if m, err := l[1].Recv(); err != nil || m.Kind != MsgCount {
				t.Errorf("message sent before the end: %+v, %v", m, err)
			}
			if _, err := l[1].Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("Recv after the end: %v, want EOF", err)
			}
			for i := range l {
				if err := l[i].Send(MsgCount, nil); !errors.Is(err, unix.EPIPE) {
					t.Errorf("Send at end %d after the end: %v, want EPIPE", i, err)
				}
			}
		})
	}
}

// TestLink_RefusesLargeMessage also checks that the descriptors passed with the message are closed.
func TestLink_RefusesLargeMessage(t *testing.T) {
	t.Parallel()
	for name, l := range links(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer l[0].Close()
			defer l[1].Close()
			r, w := pipe(t)
			given, err := unix.Dup(int(w.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			if err := l[0].Give(Message{Kind: MsgSpawn, Payload: make([]byte, maxMessage+1), FDs: []int{given}}); err == nil {
				t.Error("a message above the maximum was sent")
			}
			if _, err := io.ReadAll(r); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLink_Finish checks that one direction ends after the messages in it, and the other continues.
func TestLink_Finish(t *testing.T) {
	t.Parallel()
	for name, l := range links(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer l[0].Close()
			defer l[1].Close()
			if err := l[0].Send(MsgThaw, nil); err != nil {
				t.Fatal(err)
			}
			l[0].Finish()
			if m, err := l[1].Recv(); err != nil || m.Kind != MsgThaw {
				t.Fatalf("%v %v", m, err)
			}
			if _, err := l[1].Recv(); !errors.Is(err, io.EOF) {
				t.Fatalf("after the last message: %v", err)
			}
			if err := l[1].Send(MsgThawed, nil); err != nil { // the other direction is open
				t.Fatal(err)
			}
			if m, err := l[0].Recv(); err != nil || m.Kind != MsgThawed {
				t.Fatalf("%v %v", m, err)
			}
		})
	}
}
