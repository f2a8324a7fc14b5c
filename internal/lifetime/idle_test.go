//go:build linux

package lifetime

import (
	"context"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// fakeBox has no processes.
type fakeBox struct{ _ byte } // not empty, so that two of them differ

func (*fakeBox) Processes(context.Context) (wire.ProcessesResult, error) {
	return wire.ProcessesResult{}, nil
}

func TestBusySince(t *testing.T) {
	box, other := new(fakeBox), new(fakeBox)
	at := time.Now()
	before := idleLook{box: box, at: at, cpuMS: 1000, who: 7}
	for name, tc := range map[string]struct {
		now  idleLook
		busy bool
	}{
		"nothing":                     {idleLook{box: box, at: at.Add(10 * time.Second), cpuMS: 1000, who: 7}, false},
		"a hundredth of a core":       {idleLook{box: box, at: at.Add(10 * time.Second), cpuMS: 1100, who: 7}, false},
		"more":                        {idleLook{box: box, at: at.Add(10 * time.Second), cpuMS: 1101, who: 7}, true},
		"another process":             {idleLook{box: box, at: at.Add(10 * time.Second), cpuMS: 1000, who: 8}, true},
		"started again in between":    {idleLook{box: other, at: at.Add(10 * time.Second), cpuMS: 1000, who: 7}, true},
		"a process that took is gone": {idleLook{box: box, at: at.Add(10 * time.Second), cpuMS: 10, who: 6}, true},
	} {
		if got := busySince(before, tc.now); got != tc.busy {
			t.Errorf("%s: %v", name, got)
		}
	}
}
