package cli

import (
	"io"
	"strings"
	"testing"
)

// What was typed before the keys that leave is passed on, also when all of it
// came at once, as from a paste or a script.
func TestDetachKeysLoseNothing(t *testing.T) {
	t.Parallel()
	left := make(chan struct{})
	d := &detachable{in: strings.NewReader("rm \x10x\r\x10\x11not this"), keys: []byte{0x10, 0x11},
		leave: func() { close(left) }}
	got := make([]byte, 6)
	if _, err := io.ReadFull(d, got); err != nil || string(got) != "rm \x10x\r" {
		t.Errorf("%q, %v", got, err)
	}
	go d.Read(got) // it never comes back
	<-left
}
