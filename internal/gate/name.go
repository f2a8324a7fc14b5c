package gate

import (
	"strconv"

	"github.com/coppice-dev/coppice/internal/limit"
)

// maxName is the longest name in text without its last dot (RFC 1035, 3.1: 255 bytes
// on the wire).
const maxName = 253

// printable makes what a sandbox wrote fit for an event: ASCII without control bytes
// or quotes, and not longer than a name can be.
func printable(b []byte) string {
	if len(b) > limit.EventText {
		b = b[:limit.EventText]
	}
	q := strconv.QuoteToASCII(string(b))
	return q[1 : len(q)-1]
}
