//go:build linux

package upkeep

import (
	"context"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// LockShape takes Config.Shape for writing when no caller reads, unless ctx ends before. It does not queue for the
// lock: a sync.RWMutex admits no reader while a writer waits, and a reader can take as long as a sandbox has files, so
// that every sandbox of the home would wait for one. The caller unlocks it.
func LockShape(ctx context.Context, shape *sync.RWMutex) error {
	const least, most = 100 * time.Microsecond, 5 * time.Millisecond
	for wait := least; ; wait = min(2*wait, most) {
		if shape.TryLock() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fault.Wrap(context.Cause(ctx), "wait until no layers are read")
		case <-time.After(wait):
		}
	}
}
