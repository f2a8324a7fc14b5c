//go:build unix

package cli

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLapse_ReleasesSignalsOfStuckProgram(t *testing.T) {
	t.Parallel()
	for _, stuck := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			done, released := make(chan struct{}), false
			if !stuck {
				time.AfterFunc(stuckAfter/2, func() { close(done) })
			}
			lapse(done, func() { released = true })
			if released != stuck {
				t.Errorf("stuck %v: released %v", stuck, released)
			}
		})
	}
}
