//go:build linux

package command

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestAttach_PassesEarlyInput checks that input that a client sends as soon as the command is reported as running
// reaches the command, although carry does not run yet.
func TestAttach_PassesEarlyInput(t *testing.T) {
	t.Parallel()
	var typed, got bytes.Buffer
	if err := wire.WriteFrame(&typed, wire.FrameStdin, []byte("echo early\r")); err != nil {
		t.Fatal(err)
	}
	want := typed.String()
	a := newAttachment(stream{&typed, io.Discard}, stream{nil, &got}, wire.ExecRequest{})
	a.close() // after all input is read
	if got.String() != want {
		t.Errorf("the command received %q, want %q", &got, want)
	}
	if a.connect(stream{}) {
		t.Error("a client whose stream has ended is reported as connected")
	}
}

// TestAttach_KeepsInputForNextStart checks that input that arrives between two starts of a
// command goes to the next start, and that a signal does not.
func TestAttach_KeepsInputForNextStart(t *testing.T) {
	t.Parallel()
	client, daemon := net.Pipe()
	defer client.Close()
	a := newAttachment(daemon, stream{nil, broken{}}, wire.ExecRequest{})
	defer a.close()
	send := func(f wire.FrameType, p string) {
		t.Helper()
		if err := wire.WriteFrame(client, f, []byte(p)); err != nil {
			t.Error(err)
		}
	}
	send(wire.FrameSignal, "INT")
	send(wire.FrameStdin, "again\r") // returns when the daemon has read it
	if !a.connect(nil) {
		t.Fatal("the client is reported as disconnected")
	}
	session, command := net.Pipe()
	defer session.Close()
	a.connect(session)
	typ, p, err := wire.ReadFrame(command, nil)
	if err != nil || typ != wire.FrameStdin || string(p) != "again\r" {
		t.Errorf("the next start received frame %d, %q, %v", typ, p, err)
	}
}

// TestAttach_ReleasesClientWithUnreadInput checks that close does not wait for input that no process reads.
func TestAttach_ReleasesClientWithUnreadInput(t *testing.T) {
	t.Parallel()
	client, daemon := net.Pipe()
	defer client.Close()
	a := newAttachment(daemon, nil, wire.ExecRequest{})
	if err := wire.WriteFrame(client, wire.FrameStdin, []byte("again\r")); err != nil {
		t.Fatal(err)
	}
	a.close()
}

// TestAttach_DetectsLostClient checks that a client counts as disconnected when a write to it fails, also while its
// input waits for a command that does not read.
func TestAttach_DetectsLostClient(t *testing.T) {
	t.Parallel()
	typed := make(chan struct{})
	var input bytes.Buffer
	for range 2 {
		if err := wire.WriteFrame(&input, wire.FrameStdin, []byte("again\r")); err != nil {
			t.Fatal(err)
		}
	}
	client := stream{&input, broken{}}
	a := newAttachment(client, nil, wire.ExecRequest{})
	session, command := net.Pipe() // reads nothing
	go func() {
		defer close(typed)
		if err := wire.WriteFrame(command, wire.FrameStdout, []byte("output")); err != nil {
			t.Error(err)
		}
	}()
	if err := carry(t.Context(), session, a); err != nil {
		t.Error(err)
	}
	<-typed
	<-a.gone
	a.close()
}

// stream combines a reader and a writer.
type stream struct {
	io.Reader
	io.Writer
}

func (stream) Close() error { return nil }

// broken is a session whose keeper has exited.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
