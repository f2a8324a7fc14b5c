package daemon

import (
	"crypto/rand"
	"io"
	"sync"

	"github.com/coppice-dev/coppice/internal/redact"
)

// cleanLog redacts secrets of known formats in log lines: errors contain addresses and text from clients and
// sandboxes. Fingerprints of secrets are comparable only within one daemon.
type cleanLog struct {
	to   io.Writer
	made func() *redact.Redactor // returns nil if no line may be written
}

// newCleanLog returns a cleanLog. Its redactor is created with the first line, which takes a millisecond.
func newCleanLog(to io.Writer) cleanLog {
	return cleanLog{to, sync.OnceValue(func() *redact.Redactor {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // never fails
		r, _, err := redact.New(redact.Options{Key: key})
		if err != nil {
			return nil
		}
		return r
	})}
}

// Write writes whole lines.
func (l cleanLog) Write(p []byte) (int, error) {
	out := []byte("[not redacted, left out]\n")
	if r := l.made(); r != nil {
		out = r.Bytes(p)
	}
	if _, err := l.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
