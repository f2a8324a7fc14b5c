package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// heartbeat is the interval of comments in a stream of Server-Sent Events that keep the connection alive.
const heartbeat = 15 * time.Second

// lastEventID is the header with the ID of the last event that the client has received.
const lastEventID = "Last-Event-ID"

// sse writes Server-Sent Events. It sends nothing before the first event, so that an early error is a problem
// document. Only writes wait for the client. Its methods are safe for concurrent use.
type sse struct {
	w http.ResponseWriter

	mu    sync.Mutex
	begun bool         // guarded by mu
	buf   bytes.Buffer // guarded by mu
}

// begin sends the header.
func (s *sse) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header()
	return http.NewResponseController(s.w).Flush()
}

// header sends the header once. s.mu is held.
func (s *sse) header() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", asEvents)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // otherwise a proxy may buffer the events
	s.w.WriteHeader(http.StatusOK)
}

// hasBegun reports whether an error can no longer be a problem document.
func (s *sse) hasBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// event sends one event with v as JSON. If id is "", no ID is sent.
func (s *sse) event(name, id string, v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	if err := encodeEvent(&s.buf, name, id, v); err != nil {
		return err
	}
	s.header()
	if _, err := s.w.Write(s.buf.Bytes()); err != nil {
		return errGone
	}
	return http.NewResponseController(s.w).Flush()
}

// encodeEvent writes one event. JSON contains no newline, so one line of data suffices. Names and IDs are set by
// this package.
func encodeEvent(b *bytes.Buffer, name, id string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fault.Wrap(err, "encode an event")
	}
	if name != "" {
		b.WriteString("event: " + name + "\n")
	}
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	return nil
}

// beat sends a comment at each heartbeat, once the stream has begun, until stop is called.
func (s *sse) beat(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				s.comment()
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

func (s *sse) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		return
	}
	_, _ = s.w.Write([]byte(": here\n\n")) // the next event returns the error
	_ = http.NewResponseController(s.w).Flush()
}

// resumeAt returns where a stream of output resumes: after the last event that the client received, else at the
// requested offset.
func resumeAt(last string, offset int64) (int64, error) {
	if last == "" {
		return offset, nil
	}
	n, err := parseID(last)
	if err != nil || n > 1<<62 {
		return 0, fault.New(fault.Invalid, "invalid %s %q: must be the id of an event", lastEventID, shorten(last)).
			WithHint("send the id of the last event received, or omit it")
	}
	return int64(n), nil
}

// parseID parses the ID of an event, a number without a sign.
func parseID(id string) (uint64, error) { return strconv.ParseUint(strings.TrimSpace(id), 10, 64) }

func shorten(s string) string {
	if len(s) > 40 {
		return strings.ToValidUTF8(s[:40], "") + "..."
	}
	return s
}

// output converts a command's output to events. If a frame ends inside a rune, the beginning of the rune waits
// for the stream's next frame.
type output struct {
	offset int64 // of the next byte that take receives
	name   string
	rest   []byte // the beginning of a rune, of the stream name
}

// take passes the next bytes of a stream to give as events. The offset of an event is exact: all bytes before it
// were given, and none after it.
func (o *output) take(name string, p []byte, give func(name string, offset int64, out wire.Output) error) error {
	if name != o.name {
		if err := o.flush(give); err != nil {
			return err
		}
		o.name = name
	}
	o.offset += int64(len(p))
	if len(o.rest) > 0 {
		p = append(o.rest, p...)
	}
	whole, rest := cutRune(p)
	o.rest = bytes.Clone(rest)
	if len(whole) == 0 {
		return nil
	}
	return give(name, o.offset-int64(len(rest)), encodeOutput(whole))
}

// flush gives the waiting bytes.
func (o *output) flush(give func(name string, offset int64, out wire.Output) error) error {
	if len(o.rest) == 0 {
		return nil
	}
	rest := o.rest
	o.rest = nil
	return give(o.name, o.offset, encodeOutput(rest))
}

// skip continues at another offset.
func (o *output) skip(offset int64) { o.offset, o.rest = offset, nil }

// encodeOutput encodes valid UTF-8 as text, and other bytes as base64.
func encodeOutput(p []byte) wire.Output {
	if utf8.Valid(p) {
		return wire.Output{Text: string(p)}
	}
	return wire.Output{Base64: p}
}

// cutRune splits off what may be the beginning of a rune at the end of text. It splits nothing off bytes that are
// not UTF-8.
func cutRune(p []byte) (whole, rest []byte) {
	for n := 1; n <= min(utf8.UTFMax-1, len(p)); n++ {
		tail := p[len(p)-n:]
		if !utf8.RuneStart(tail[0]) {
			continue
		}
		if !utf8.FullRune(tail) && utf8.Valid(p[:len(p)-n]) {
			return p[:len(p)-n], tail
		}
		break
	}
	return p, nil
}
