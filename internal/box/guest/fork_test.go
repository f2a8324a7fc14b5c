//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAskChild covers the three results: bytes on the pipe are the errno of a failed execve, the end of the pipe is a
// success, and a child that does neither is given up after its time.
func TestAskChild(t *testing.T) {
	for name, c := range map[string]struct {
		say   []byte
		close bool
		want  error
		bound time.Duration
	}{
		"executed":  {nil, true, nil, time.Minute},
		"refused":   {[]byte{byte(unix.EACCES), 0, 0, 0}, true, unix.EACCES, time.Minute},
		"cut short": {[]byte{byte(unix.EACCES)}, true, unix.EIO, time.Minute},
		"waits":     {nil, false, errTooLong, 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var ends [2]int
			if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(ends[0])
			if _, err := unix.Write(ends[1], c.say); err != nil {
				t.Fatal(err)
			}
			if c.close {
				unix.Close(ends[1])
			} else {
				defer unix.Close(ends[1])
			}
			if err := askChild(ends[0], os.Getpid(), c.bound); !errors.Is(err, c.want) {
				t.Errorf("%v: want %v", err, c.want)
			}
		})
	}
}
