//go:build linux

package engine

import (
	"bytes"
	"io"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// What a client types as soon as it is told that the command runs reaches the
// command, though nobody carries frames yet.
func TestTypedAtOnce(t *testing.T) {
	t.Parallel()
	var typed, got bytes.Buffer
	if err := wire.WriteFrame(&typed, wire.FrameStdin, []byte("echo early\r")); err != nil {
		t.Fatal(err)
	}
	want := typed.String()
	a := newAttachment(stream{&typed, io.Discard}, stream{nil, &got}, wire.ExecRequest{})
	a.close() // when all that was typed is read
	if got.String() != want {
		t.Errorf("the command gets %q, want %q", &got, want)
	}
	if a.connect(stream{}) {
		t.Error("a client whose stream has ended is said to be there")
	}
}
