package mcpapi

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	beatEvery = 100 * time.Millisecond // minimum time between two notifications
	partAfter = time.Second            // time after which an unfinished line is sent
	idleAfter = 5 * time.Second        // silence after which a notification reports that the call still runs
	maxBeat   = 4 << 10                // bytes of output in one notification
)

// beat reports the progress of a call, if the client requested it: the output written to it, and, after some time
// without output, that the call still runs. The progress value is the number of seconds since the call began.
type beat struct {
	name    string
	send    func(message string, seconds float64)
	stop    chan struct{}
	work    sync.WaitGroup
	mu      sync.Mutex
	pending []byte // guarded by mu: output that was not sent yet
}

// startBeat returns a beat, which the caller must end. It returns nil, which is a valid beat, if the client did
// not request progress.
func startBeat(ctx context.Context, name string, req *mcp.CallToolRequest) *beat {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	b := &beat{name: name, stop: make(chan struct{}), send: func(message string, seconds float64) {
		// A failure is not fatal: the client still receives the result.
		_ = req.Session.NotifyProgress(ctx,
			&mcp.ProgressNotificationParams{ProgressToken: token, Message: message, Progress: seconds})
	}}
	b.work.Go(b.loop)
	return b
}

// end stops the beat. It sends nothing after end has returned.
func (b *beat) end() {
	if b != nil {
		close(b.stop)
		b.work.Wait()
	}
}

// Write never fails or blocks.
func (b *beat) Write(p []byte) (int, error) {
	if b == nil {
		return len(p), nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, p[max(0, len(p)-maxBeat):]...)
	b.pending = b.pending[max(0, len(b.pending)-maxBeat):]
	return len(p), nil
}

// say sends a formatted line.
func (b *beat) say(format string, args ...any) {
	if b != nil {
		fmt.Fprintf(b, format+"\n", args...)
	}
}

func (b *beat) loop() {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	start := time.Now()
	last := start
	for {
		select {
		case <-b.stop:
			if text := b.take(true); text != "" {
				b.send(text, time.Since(start).Seconds())
			}
			return
		case now := <-t.C:
			text := b.take(now.Sub(last) >= partAfter)
			if text == "" && now.Sub(last) >= idleAfter {
				text = fmt.Sprintf("%s: %.0f s", b.name, now.Sub(start).Seconds())
			}
			if text != "" {
				b.send(text, now.Sub(start).Seconds())
				last = now
			}
		}
	}
}

// take returns the pending whole lines, or all pending bytes.
func (b *beat) take(everything bool) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.pending)
	if !everything {
		n = bytes.LastIndexByte(b.pending, '\n') + 1
	}
	text := sanitize(string(bytes.TrimRight(b.pending[:n], "\n")))
	b.pending = append([]byte(nil), b.pending[n:]...)
	return text
}
