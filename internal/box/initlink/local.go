//go:build linux

package initlink

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// local is an end whose other end is in the same process. In tier gvisor each system call is expensive; a socket would
// need several per message, and threads that wait for it.
type local struct {
	in, out *queue
}

func (l *local) recv() (Message, error) { return l.in.take() }

func (l *local) shutdown() {
	l.in.end()
	l.out.end()
}

func (l *local) finish() { l.out.end() }

func (l *local) close() {
	l.shutdown()
	l.in.drop()
}

// pass duplicates the descriptors, as a socket does.
func (l *local) pass(m Message) error {
	dups := make([]int, 0, len(m.FDs))
	for _, fd := range m.FDs {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			Message{FDs: dups}.Close()
			return fmt.Errorf("duplicate a descriptor: %w", err)
		}
		dups = append(dups, dup)
	}
	m.FDs = dups
	return l.give(m)
}

func (l *local) give(m Message) error {
	err := m.checkSize()
	if m.Payload = bytes.Clone(m.Payload); err == nil && !l.out.put(m) {
		err = unix.EPIPE
	}
	if err != nil {
		m.Close()
	}
	return err
}

// queue holds the messages of one direction. put never waits, so two ends that answer each
// other cannot deadlock.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond // of mu
	waiting []Message
	over    bool
}

func newQueue() *queue {
	q := &queue{}
	q.changed = sync.NewCond(&q.mu)
	return q
}

func (q *queue) put(m Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		return false
	}
	q.waiting = append(q.waiting, m)
	q.changed.Signal()
	return true
}

// take waits for a message. After the end it returns the messages that were put before, and then io.EOF.
func (q *queue) take() (Message, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.over {
		q.changed.Wait()
	}
	if len(q.waiting) == 0 {
		return Message{}, io.EOF
	}
	m := q.waiting[0]
	q.waiting = q.waiting[1:]
	return m, nil
}

func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	q.changed.Broadcast()
}

// drop closes the messages that will not be taken.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.waiting {
		m.Close()
	}
	q.waiting = nil
}
