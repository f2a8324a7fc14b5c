//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestGvisorSuspects maps a file for writing. On the host only gVisor's own processes show the mapping.
func TestGvisorSuspects(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skip("needs python3: to map a file")
	}
	b := boxtest.Tier{Name: plan.TierGvisor, Config: atWork}.Start(t)
	suspects := func() bool {
		f, err := b.Freeze(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		s := f.Suspects()
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		return !s.Since.IsZero()
	}
	c := listen(t, b, "ready", "/usr/bin/python3", "-c", `
import mmap, sys
print("ready", flush=True)
for line in sys.stdin:
    f = open("/srv/mapped", "w+b"); f.truncate(8192)
    m = mmap.mmap(f.fileno(), 8192); m[0:1] = b"x"
    print("mapped", flush=True)
`)
	if suspects() {
		t.Error("files are suspected although none is mapped")
	}
	c.say("map", "mapped")
	if !suspects() {
		t.Error("a file that is mapped for writing is not suspected")
	}
}
