//go:build linux && (amd64 || arm64)

package relay

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/plan"
)

var update = flag.Bool("update", false, "write testdata/protocol.txt anew, after reading plan.Protocol")

// TestRelayProtocol_IsUnchanged pins the format that the relay of an init from another build understands, see
// plan.Protocol.
func TestRelayProtocol_IsUnchanged(t *testing.T) {
	t.Parallel()
	message := encode(byte(initlink.MsgSpawn), []travelling{{3, flowIn}, {5, flowOut}}, []byte("{}"))
	now := fmt.Sprintf(
		"protocol %d\nframes %q, of at most %d bytes\nflows %q\nfirst streams %d of the outside, %d of the inside\na "+
			"stream: %d bytes on their way, %d at once\na frame %x\na message %x\n",
		plan.Protocol,
		[]frameType{frameHello, frameMessage, frameData, frameEnd, frameCancel, frameWindow}, maxFrame,
		[]flow{flowOut, flowIn, flowBoth, flowTTY},
		Outside(nil, nil, nil, Hooks{}).last+2, Inside(nil, nil, nil).last+2,
		window, maxData,
		frame{kind: frameData, stream: 258, body: []byte("body")}.append(nil), message)
	golden := filepath.Join("testdata", "protocol.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != now {
		t.Errorf("the format of the relay's pipes differs from %s (%v). Memory images have older relays: raise "+
			"plan.Protocol, and then run this test with -update. It is now:\n%s", golden, err, now)
	}
}
