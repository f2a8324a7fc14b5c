//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUninterrupted_RetriesAfterSignal(t *testing.T) {
	t.Parallel()
	for _, want := range []error{nil, unix.ENOENT} {
		answers := []error{unix.EINTR, unix.EINTR, want}
		err := uninterrupted(func() error {
			next := answers[0]
			answers = answers[1:]
			return next
		})
		if !errors.Is(err, want) || len(answers) != 0 {
			t.Errorf("got %v with %d answers left, want %v", err, len(answers), want)
		}
	}
}

func TestPolled_DecodesEvents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		events      int16
		ready, over bool
	}{
		{events: unix.POLLIN, ready: true},
		{events: unix.POLLIN | unix.POLLHUP, ready: true},
		{events: unix.POLLERR},
		{events: unix.POLLHUP, over: true},
		{events: unix.POLLERR | unix.POLLHUP, over: true},
		{events: unix.POLLNVAL, over: true},
	} {
		if ready, over := polled(tt.events); ready != tt.ready || over != tt.over {
			t.Errorf("events %#x: ready %v, over %v", tt.events, ready, over)
		}
	}
}
