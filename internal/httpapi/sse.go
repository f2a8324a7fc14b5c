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

// heartbeat is how often a stream of Server-Sent Events says that it is there.
const heartbeat = 15 * time.Second

// lastEventID is the header in which a client says what it has seen.
const lastEventID = "Last-Event-ID"

// sse writes Server-Sent Events. Nothing is sent before the first one, so an early
// error is a plain problem document. A Write waits for the client, and nothing else
// does. Its methods may be called from several goroutines.
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

// header is sent once. s.mu is held.
func (s *sse) header() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", asEvents)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // a proxy that collects answers would hold it up
	s.w.WriteHeader(http.StatusOK)
}

// hasBegun reports whether an error can no longer be a problem document.
func (s *sse) hasBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// event sends one event with v as JSON. id "" sends none.
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

// encodeEvent writes one event. JSON has no line's end in it, so one line of data
// is enough; names and ids are ours.
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

// beat sends a comment now and then, once the stream has begun, until stop is
// called.
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
	_, _ = s.w.Write([]byte(": here\n\n")) // the next event finds out
	_ = http.NewResponseController(s.w).Flush()
}

// resumeAt reads where a stream of output is to go on: after the event that the
// client saw last, else at an offset that it asks for.
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

// parseID reads the id of an event: a number without a sign.
func parseID(id string) (uint64, error) { return strconv.ParseUint(strings.TrimSpace(id), 10, 64) }

func shorten(s string) string {
	if len(s) > 40 {
		return strings.ToValidUTF8(s[:40], "") + "..."
	}
	return s
}

// output makes events of a command's bytes. What a stream begins of a rune that a
// frame's end has cut waits for the stream's next frame.
type output struct {
	offset int64 // of the next byte that is taken
	name   string
	rest   []byte // of stream name: the beginning of a rune
}

// take gives the events for the next bytes of a stream, with the offset after each
// of them: everything before it has been given, and nothing after it.
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

// flush gives what waits.
func (o *output) flush(give func(name string, offset int64, out wire.Output) error) error {
	if len(o.rest) == 0 {
		return nil
	}
	rest := o.rest
	o.rest = nil
	return give(o.name, o.offset, encodeOutput(rest))
}

// skip goes to another offset.
func (o *output) skip(offset int64) { o.offset, o.rest = offset, nil }

// encodeOutput takes text as it is, and what is none as base64.
func encodeOutput(p []byte) wire.Output {
	if utf8.Valid(p) {
		return wire.Output{Text: string(p)}
	}
	return wire.Output{Base64: p}
}

// cutRune splits off what may be the beginning of a rune at the end of text. Of
// bytes that are no text nothing is split off.
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
