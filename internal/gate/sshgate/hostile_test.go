package sshgate

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// ends fails the test unless Serve returns.
func (w *world) ends(why string) {
	w.t.Helper()
	select {
	case <-w.served:
	case <-time.After(patience):
		w.t.Errorf("%s: the gate waits", why)
	}
}

// start runs the command, and returns when the server has begun to write.
func (w *world) start() (*ssh.Client, ssh.Channel) {
	w.t.Helper()
	c := w.dial()
	ch, reqs, err := c.OpenChannel("session", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{allowed})); err != nil || !ok {
		w.t.Fatal(ok, err)
	}
	return c, ch
}

// TestServe_ClientsThatLeave checks that a command ends with its client, though the server still writes or waits.
func TestServe_ClientsThatLeave(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*ssh.Client, ssh.Channel){
		"the connection": func(c *ssh.Client, _ ssh.Channel) { c.Close() },
		"the channel":    func(_ *ssh.Client, ch ssh.Channel) { ch.Close() },
	} {
		for what, serve := range map[string]func(ssh.Channel, chan struct{}){
			"writes": func(ch ssh.Channel, _ chan struct{}) {
				for err := error(nil); err == nil; _, err = ch.Write(make([]byte, 1<<15)) {
				}
			},
			"waits": func(ch ssh.Channel, stop chan struct{}) {
				_, _ = ch.Write([]byte("x"))
				<-stop
			},
		} {
			t.Run(name+" and the server "+what, func(t *testing.T) {
				t.Parallel()
				stop := make(chan struct{})
				defer close(stop)
				w := begin(t, func(w *world) { w.quick = true }, func(ch ssh.Channel) { serve(ch, stop) })
				c, ch := w.start()
				if _, err := ch.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				leave(c, ch)
				w.ends("the client left")
				if w.mu.Lock(); len(w.status) != 1 {
					t.Errorf("%d", w.status)
				}
				w.mu.Unlock()
				if w.failed != errLeft.Error() {
					t.Errorf("%q", w.failed)
				}
			})
		}
	}
}

// TestServe_SmallPackets checks that a client cannot fill the memory with packets that nothing reads.
func TestServe_SmallPackets(t *testing.T) {
	for _, x := range []struct {
		name           string
		begins, stderr bool
	}{{name: "before a command"}, {"that the server does not read", true, false}, {"of errors", true, true}} {
		t.Run(x.name, func(t *testing.T) {
			stop := make(chan struct{})
			defer close(stop)
			w := begin(t, nil, func(ssh.Channel) { <-stop })
			var ch ssh.Channel
			var err error
			if x.begins {
				_, ch = w.start()
				_, err = ch.Write(make([]byte, 3<<20)) // more than the window of the server
			} else {
				ch, _, err = w.dial().OpenChannel("session", nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			out := io.Writer(ch)
			if x.stderr {
				out = ch.Stderr()
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			n := 0
			for ; n < 600_000 && err == nil; n++ {
				_, err = out.Write([]byte{0})
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
				t.Errorf("%d MiB for %d bytes: %v", grown>>20, n, err)
			}
			w.inside.Close()
			w.ends(x.name)
		})
	}
}

// TestServe_TextOfServers checks that a server that has not proved its key writes no control bytes, and little, to a
// terminal inside.
func TestServe_TextOfServers(t *testing.T) {
	t.Parallel()
	w := begin(t, func(w *world) {
		w.raw = func(c net.Conn) {
			bye := ssh.Marshal(struct {
				Reason       uint32 `sshtype:"1"`
				Text, Tongue string
			}{2, "\x1b]0;owned\x07\r\x9b2J" + strings.Repeat("x", 1<<14), ""})
			const pad = 16
			packet := binary.BigEndian.AppendUint32([]byte("SSH-2.0-x\r\n"), uint32(1+len(bye)+pad))
			packet = append(append(append(packet, pad), bye...), make([]byte, pad)...)
			_, _ = c.Write(packet)
			_, _ = io.Copy(io.Discard, c)
		}
	}, nil)
	_, errs, status := w.run(allowed, "")
	if status != statusRefused || !strings.Contains(errs, "owned") || strings.ContainsAny(errs, "\x1b\x07\r") ||
		strings.Contains(errs, "\x9b") || len(errs) > 1<<11 {
		t.Errorf("%.200q, %d", errs, status)
	}
}

// turncoat is a key of a host that becomes another.
type turncoat struct {
	mu          sync.Mutex
	is, becomes ssh.Signer
}

func (k *turncoat) now() ssh.Signer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.is
}

func (k *turncoat) turn() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.is = k.becomes
}

func (k *turncoat) PublicKey() ssh.PublicKey { return k.now().PublicKey() }

func (k *turncoat) Sign(r io.Reader, data []byte) (*ssh.Signature, error) {
	return k.now().Sign(r, data)
}

// TestServe_OtherKeyLater has a server that proves another key when it exchanges keys again.
func TestServe_OtherKeyLater(t *testing.T) {
	t.Parallel()
	k := &turncoat{becomes: newKey(t)}
	w := begin(t, func(w *world) { k.is, w.key, w.rekey = w.key, k, 256 }, func(ch ssh.Channel) {
		k.turn()
		for err := error(nil); err == nil; _, err = ch.Write(make([]byte, 1<<10)) {
		}
	})
	_, errs, status := w.run(allowed, "")
	if status != statusLost || !strings.Contains(errs, "ended the connection") {
		t.Errorf("%q, %d", errs, status)
	}
}

// TestServe_Frees checks that nothing is left in memory of a connection, and that Freed does not come before.
func TestServe_Frees(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, nil)
	if out, errs, status := w.run(allowed, "x"); out != "x" || status != 7 {
		t.Fatalf("%q, %q, %d", out, errs, status)
	}
	runtime.GC()
	select {
	case <-w.freed:
		t.Error("an open connection is freed")
	default:
	}
	w.inside.Close()
	w.ends("the client left")
	for deadline := time.Now().Add(patience); ; {
		runtime.GC()
		select {
		case <-w.freed:
			return
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("the connection stays in memory")
		}
	}
}
