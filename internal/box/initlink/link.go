//go:build linux

package initlink

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Link is one end of the stream of messages. Send and Pass may be called from any
// goroutine; Recv from one at a time.
type Link struct {
	end end
}

// end carries messages. It refuses those that are too large.
type end interface {
	pass(m Message) error
	give(m Message) error
	recv() (Message, error)
	shutdown()
	finish()
	close()
}

// NewLink uses fd, a blocking stream socket of the Unix family, and owns it.
func NewLink(fd int) *Link { return &Link{&socket{fd: fd}} }

// NewLinks returns both ends of a link within this process.
func NewLinks() (*Link, *Link) {
	a, b := newQueue(), newQueue()
	return &Link{&local{in: a, out: b}}, &Link{&local{in: b, out: a}}
}

// Shutdown ends both directions: Recv at both ends returns io.EOF.
func (l *Link) Shutdown() { l.end.shutdown() }

// Finish ends the direction from this end: after the messages that were sent, Recv at the other end returns io.EOF.
func (l *Link) Finish() { l.end.finish() }

// Close closes the descriptors; no call may be under way or follow.
func (l *Link) Close() { l.end.close() }

// Send writes one message, with v as JSON, or without a payload if v is nil. The descriptors
// stay the caller's.
func (l *Link) Send(k Kind, v any, fds ...int) error {
	var p []byte
	if v != nil {
		var err error
		if p, err = json.Marshal(v); err != nil {
			return fmt.Errorf("message %q: %w", k, err)
		}
	}
	return l.Pass(Message{Kind: k, Payload: p, FDs: fds})
}

// NotPassed reports whether err, from Send or Pass, means that the kernel passes no descriptors for this user at the
// moment because too many are in flight (unix(7), ETOOMANYREFS). Nothing was written then, and the link remains usable.
func NotPassed(err error) bool { return errors.Is(err, unix.ETOOMANYREFS) }

// Pass writes a message as it is. The descriptors stay the caller's, and so does the
// payload.
func (l *Link) Pass(m Message) error { return l.write(m, l.end.pass) }

// Give is Pass that takes over the descriptors, also if it fails.
func (l *Link) Give(m Message) error { return l.write(m, l.end.give) }

func (l *Link) write(m Message, how func(Message) error) error {
	if err := how(m); err != nil {
		return fmt.Errorf("send message %q: %w", m.Kind, err)
	}
	return nil
}

// Recv reads one message. It returns io.EOF at the end of the stream.
func (l *Link) Recv() (Message, error) { return l.end.recv() }
