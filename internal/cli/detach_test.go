package cli

import (
	"io"
	"os"
	"strings"
	"testing"
)

// TestDetachKeys_LoseNoInput checks that input typed before the detach keys is forwarded, also if everything arrives
// in one read, as from a paste or a script.
func TestDetachKeys_LoseNoInput(t *testing.T) {
	t.Parallel()
	left := make(chan struct{})
	d := &detachable{in: strings.NewReader("rm \x10x\r\x10\x11not this"), keys: []byte{0x10, 0x11},
		leave: func() { close(left) }}
	got := make([]byte, 6)
	if _, err := io.ReadFull(d, got); err != nil || string(got) != "rm \x10x\r" {
		t.Errorf("%q, %v", got, err)
	}
	go d.Read(got) // it never returns
	<-left
}

// TestWindow_DetachesWhenClosed checks that writes to a lost terminal do not fail: an error of the output would send
// SIGPIPE to the command.
func TestWindow_DetachesWhenClosed(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	left := 0
	shown := &window{out: w, leave: func() { left++ }}
	if n, err := shown.Write([]byte("seen")); n != 4 || err != nil || left != 0 {
		t.Errorf("open: %d, %v, left %d times", n, err, left)
	}
	r.Close()
	if n, err := shown.Write([]byte("unseen")); n != 6 || err != nil || left != 1 {
		t.Errorf("closed: %d, %v, left %d times", n, err, left)
	}
}
