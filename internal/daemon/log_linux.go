package daemon

import (
	"crypto/rand"
	"io"
	"sync"

	"github.com/coppice-dev/coppice/internal/redact"
)

// cleanLog writes lines without secrets of known formats: errors tell of addresses and
// words that somebody else chose. Fingerprints in it are those of one daemon.
type cleanLog struct {
	to   io.Writer
	made func() *redact.Redactor // nil: nothing is let through
}

// newCleanLog makes a cleanLog, whose redactor is made with the first line: that takes a
// millisecond.
func newCleanLog(to io.Writer) cleanLog {
	return cleanLog{to, sync.OnceValue(func() *redact.Redactor {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
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
