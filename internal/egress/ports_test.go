//go:build linux

package egress

import (
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/meta"
)

func TestStartsUp_LimitsStartupTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		run  *wire.Run
		want bool
	}{
		"none":   {nil, false},
		"young":  {&wire.Run{Started: now.Add(-time.Second)}, true},
		"old":    {&wire.Run{Started: now.Add(-time.Minute)}, false},
		"exited": {&wire.Run{Started: now, Ended: &now}, false},
	} {
		var rec meta.Sandbox
		rec.Run = c.run
		if got := startsUp(&rec, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
