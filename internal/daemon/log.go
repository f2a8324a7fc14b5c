package daemon

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/coppice-dev/coppice/internal/redact"
	"github.com/coppice-dev/coppice/internal/visible"
)

// The formats of a log.
const (
	LogText = "text" // key=value
	LogJSON = "json" // a JSON object a line
)

// Log configures the log of the daemon.
type Log struct {
	Format string     // LogText or LogJSON; "" is LogText
	Level  slog.Level // minimum level
}

// Logger returns the logger of a daemon that logs to w. Its records have the keys time, level and msg, and then those
// of the message. Secrets of known formats are redacted, and characters that control a terminal are escaped: errors
// have text of clients and sandboxes.
func (l Log) Logger(w io.Writer) *slog.Logger {
	clean := newCleanLog(w)
	if l.Format != LogJSON {
		return slog.New(slog.NewTextHandler(clean, &slog.HandlerOptions{Level: l.Level}))
	}
	// The values are redacted, and not the line: a redacted line need not be JSON.
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l.Level, ReplaceAttr: clean.attr}))
}

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

const notRedacted = "[not redacted, left out]"

// Write writes whole lines.
func (l cleanLog) Write(p []byte) (int, error) {
	out := []byte(notRedacted + "\n")
	if r := l.made(); r != nil {
		out = r.Bytes(p)
	}
	if _, err := l.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// attr cleans an attribute of a record; see slog.HandlerOptions.
func (l cleanLog) attr(groups []string, a slog.Attr) slog.Attr {
	var text string
	switch a.Value.Kind() {
	case slog.KindString:
		text = a.Value.String()
	case slog.KindAny:
		v := a.Value.Any()
		if _, ok := v.(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey {
			return a
		}
		text = fmt.Sprint(v) // an error's text, too
	default: // numbers, times
		return a
	}
	r := l.made()
	if r == nil {
		return slog.String(a.Key, notRedacted)
	}
	return slog.String(a.Key, visible.Clean(r.String(text)))
}
