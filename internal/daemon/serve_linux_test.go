package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

func TestCloseBy_TimesOutHungWork(t *testing.T) {
	t.Parallel()
	latest, hang := make(chan time.Time, 1), make(chan struct{})
	t.Cleanup(func() { close(hang) })
	latest <- time.Time{}
	if inTime, err := closeBy(latest, func() error { <-hang; return nil }); inTime || err != nil {
		t.Errorf("in time: %v, %v", inTime, err)
	}
	failed := errors.New("failed")
	if inTime, err := closeBy(make(chan time.Time), func() error { return failed }); !inTime || !errors.Is(err, failed) {
		t.Errorf("in time: %v, %v", inTime, err)
	}
	if drain >= stopTime || stopTime != limit.StopSeconds*time.Second {
		t.Errorf("requests have %v of %v", drain, stopTime)
	}
}

func TestOpenBy_TimesOutHungRecovery(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	hang, failed := make(chan struct{}), errors.New("failed")
	t.Cleanup(func() { close(hang) })
	if _, inTime, err := openBy(ctx, 0, func() (backend, error) { return nil, failed }); !inTime ||
		!errors.Is(err, failed) {
		t.Errorf("in time: %v, %v", inTime, err)
	}
	if _, inTime, err := openBy(ctx, 0, func() (backend, error) { stop(); <-hang; return nil, nil }); inTime ||
		err != nil {
		t.Errorf("in time: %v, %v", inTime, err)
	}
	if _, inTime, err := openBy(ctx, time.Hour, func() (backend, error) { return nil, ctx.Err() }); !inTime ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("in time: %v, %v", inTime, err)
	}
}
