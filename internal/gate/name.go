package gate

import (
	"strconv"

	"github.com/coppice-dev/coppice/internal/limit"
)

// maxName is the maximum length of a name in text form without its trailing dot (RFC 1035, 3.1: 255 bytes on the
// wire).
const maxName = 253

// printable sanitizes text from the sandbox for an event: ASCII without control bytes or quotes, at most as long as a
// name.
func printable(b []byte) string {
	if len(b) > limit.EventText {
		b = b[:limit.EventText]
	}
	q := strconv.QuoteToASCII(string(b))
	return q[1 : len(q)-1]
}
