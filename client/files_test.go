package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// FuzzReadEvents checks that any stream is read to its end or ends in an *Error, and that a callback that returned an
// error is not called again.
func FuzzReadEvents(f *testing.F) {
	for _, s := range []string{
		"", "\n\n", ": here\n\n", "event: created\ndata: {\"kind\":\"created\",\"path\":\"/a\"}\n\n",
		"event: error\ndata: {\"kind\":\"not_found\",\"detail\":\"gone\",\"hint\":\"look\"}\n\n",
		"event: error\ndata: nothing\n\n", "data: {}\n", "data: null\r\ndata: 7\n", "data:{}\nevent:x\n",
		"event: \xff\ndata: \"\x00\"\n", "data: {\"path\":" + strings.Repeat("[", 10_001) + "\n", "\r\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stream string) {
		stop := errors.New("enough")
		n := 0
		err := readEvents(strings.NewReader(stream), func(wire.FileEvent) error {
			if n++; n == 3 {
				return stop
			}
			return nil
		})
		var ours *Error
		if n > 3 || err != nil && !errors.Is(err, stop) && !errors.As(err, &ours) || (n == 3) != errors.Is(err, stop) {
			t.Errorf("%d events, %v", n, err)
		}
	})
}
