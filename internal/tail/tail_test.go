package tail

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

func TestClient_KeepsTailOfOutput(t *testing.T) {
	t.Parallel()
	var a Client
	if n, err := a.Read(nil); n != 0 || err != io.EOF {
		t.Errorf("%d, %v", n, err)
	}
	for i := range 3000 {
		kind := wire.FrameStdout
		if i%2 == 1 {
			kind = wire.FrameStderr
		}
		if err := wire.WriteFrame(&a, kind, fmt.Appendf(nil, "line %d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := wire.WriteJSON(&a, wire.FrameDropped, wire.Dropped{Bytes: 3}); err != nil {
		t.Error(err)
	}
	if len(a.all) > tailBytes || cap(a.all) > 4*tailBytes {
		t.Errorf("%d bytes, capacity %d", len(a.all), cap(a.all))
	}
	lines := strings.Split(Lines(string(a.all)), "\n")
	if len(lines) != tailLines || lines[0] != "line 2980" || lines[tailLines-1] != "line 2999" {
		t.Errorf("%q", lines)
	}
	if strings.Contains(string(a.stdout), "line 2999") || !strings.HasSuffix(string(a.stdout), "line 2998\n") {
		t.Errorf("%q", a.stdout)
	}
	big := bytes.Repeat([]byte("é"), wire.MaxFrame/2)
	if err := wire.WriteFrame(&a, wire.FrameStdout, big); err != nil {
		t.Fatal(err)
	}
	if got := Lines(string(a.all)); strings.Trim(got, "é") != "" || len(got) < tailBytes-4 || len(got) > tailBytes {
		t.Errorf("%d bytes: %.20q", len(got), got)
	}
	if got := Lines("\n\xff\n\n"); got != "\n\ufffd" {
		t.Errorf("%q", got)
	}
}
