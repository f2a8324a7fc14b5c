//go:build linux

package initlink

import (
	"io"
	"os"
)

// maxLog bounds how much of the standard error of PID 1 inside is logged, in bytes.
const maxLog = 64 << 10

// CopyLog copies what PID 1 inside writes to r, its standard error, to the keeper's log, as far as it is printable. It
// reads until the sandbox ends, and closes r.
func CopyLog(r *os.File, log io.Writer) {
	defer r.Close()
	buf := make([]byte, 4<<10)
	for left := maxLog; ; {
		n, err := r.Read(buf)
		for i, b := range buf[:n] {
			if b < ' ' && b != '\n' || b >= 0x7f {
				buf[i] = '?'
			}
		}
		n = min(n, left)
		left -= n
		_, _ = log.Write(buf[:n])
		if err != nil {
			return
		}
	}
}
