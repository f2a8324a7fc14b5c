package daemon

import (
	"errors"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

func TestStop_EndsThoughBackgroundWorkHangs(t *testing.T) {
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
