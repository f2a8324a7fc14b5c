//go:build linux

package engine

import (
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

func TestStart_StartsSandboxAndCommand(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	ctx := t.Context()
	start := func(starts int) {
		t.Helper()
		st, err := h.Start(ctx, "a")
		if err != nil || st.Sandbox.State != wire.StateLive {
			t.Fatalf("%+v, %v", st.Sandbox, err)
		}
		if st.Run == nil && starts != 0 || st.Run != nil && (st.Run.Starts != starts || st.Run.Ended != nil) {
			t.Fatalf("%+v, want %d starts", st.Run, starts)
		}
	}
	start(0)
	if _, err := h.Run(ctx, "a", wire.RunRequest{Cmd: []string{"serve"}, Restart: wire.RestartNo}); err != nil {
		t.Fatal(err)
	}
	start(1)
	for starts := 2; starts < 5; starts++ { // also before the last exit is recorded
		if _, err := h.Stop(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		start(starts)
	}
}
