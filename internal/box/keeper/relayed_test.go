//go:build linux && (amd64 || arm64)

package keeper

import (
	"os"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestRelayed_GivesUpAlthoughOthersWrite checks that a process which took output of a command, and writes a byte now and
// then, does not delay its exit.
func TestRelayed_GivesUpAlthoughOthersWrite(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	const offset = 1 << 20
	e := &execution{k: blankKeeper(plan.Config{RunDir: t.TempDir(), IdleAfter: -1})}
	p := &pipe{f: r, t: wire.FrameStdout}
	possible := e.relayed(p, offset)
	for i := range 10 * stalledTicks { // five minutes
		if i%100 == 0 {
			p.read++ // a byte came
		}
		if possible() < offset {
			return
		}
	}
	t.Error("it does not give up")
}
