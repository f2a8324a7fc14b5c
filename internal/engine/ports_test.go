//go:build linux

package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/fault"
)

func TestDialPort_StartsStoppedSandbox(t *testing.T) {
	for restart, revives := range map[string]bool{wire.RestartOnRewind: true, wire.RestartNo: false} {
		h := newHome(t)
		h.boxes.ports = map[int]bool{80: true}
		h.boxes.deaf = 2 // the first dials are refused, as until the program listens
		h.onDir("a")
		ctx := t.Context()
		if _, err := h.DialPort(ctx, "a", 80); !fault.Is(err, fault.NotFound) ||
			!strings.Contains(fault.HintOf(err), "coppice run --in a --detach -- CMD") {
			t.Errorf("a sandbox that never ran: %v (%s)", err, fault.HintOf(err))
		}
		if _, err := h.Run(ctx, "a", wire.RunRequest{Cmd: []string{"serve", "it"}, Restart: restart}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Stop(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if res, err := h.Ports(ctx, "a"); err != nil || len(res.Ports) != 0 || res.Ports == nil {
			t.Errorf("stopped: %+v, %v", res, err)
		}
		if res, err := h.Processes(ctx, "a"); err != nil || len(res.Processes) != 0 || res.Processes == nil {
			t.Errorf("stopped: %+v, %v", res, err)
		}
		if err := h.SignalProcess(ctx, "a", 2, wire.ProcessSignal{}); !fault.Is(err, fault.NotFound) {
			t.Errorf("stopped: %v", err)
		}
		conn, err := h.DialPort(ctx, "a", 80)
		switch {
		case revives && err != nil:
			t.Errorf("%s: %v", restart, err)
		case revives:
			conn.Close()
			st, err := h.Status(ctx, "a")
			if err != nil || st.Run.Starts != 2 || st.Sandbox.State != wire.StateLive {
				t.Errorf("%+v, %v", st.Run, err)
			}
			if res, err := h.Ports(ctx, "a"); err != nil || len(res.Ports) != 1 {
				t.Errorf("%+v, %v", res, err)
			}
			if err := h.SignalProcess(ctx, "a", 2, wire.ProcessSignal{}); err != nil {
				t.Error(err)
			}
		case !fault.Is(err, fault.NotFound) ||
			!strings.Contains(fault.HintOf(err), "coppice run --in a --detach -- serve it"):
			t.Errorf("%s: %v (%s)", restart, err, fault.HintOf(err))
		}
		for _, port := range []int{0, -1, 65536} {
			if _, err := h.DialPort(ctx, "a", port); !fault.Is(err, fault.Invalid) {
				t.Errorf("port %d: %v", port, err)
			}
		}
		if _, err := h.DialPort(ctx, "b", 80); !fault.Is(err, fault.NotFound) {
			t.Errorf("an unknown sandbox: %v", err)
		}
	}
}

func TestDialPort_EndsWithItsContext(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	if _, err := h.Run(t.Context(), "a", wire.RunRequest{Cmd: []string{"serve"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := h.DialPort(ctx, "a", 80); !fault.Is(err, fault.Timeout) {
		t.Errorf("%v", err)
	}
}

func TestPorts_AreReportedAsEvents(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.boxes.ports = map[int]bool{80: true, 443: true}
	h.onDir("a")
	b := h.box("a")
	var got []string
	errEnough := errors.New("enough")
	err := h.Events(t.Context(), "a", 0, func(ev wire.SandboxEvent) error {
		if ev.Kind != wire.EventPort {
			return nil
		}
		got = append(got, itoa(ev.Port)+ev.Detail+ev.Message)
		switch len(got) {
		case 2:
			b.mu.Lock()
			delete(b.ports, 80)
			b.mu.Unlock()
			b.morePorts <- struct{}{}
		case 3:
			_ = b.Stop(context.Background(), 0)
		case 4:
			return errEnough
		}
		return nil
	})
	if want := []string{"80openedserver", "443openedserver", "80closed", "443closed"}; !errors.Is(err, errEnough) ||
		!slices.Equal(got, want) {
		t.Errorf("%q, %v: want %q", got, err, want)
	}
}

func TestPortEvents_AreBounded(t *testing.T) {
	h := newHome(t)
	h.boxes.ports = map[int]bool{}
	for p := range 1000 {
		h.boxes.ports[p+1] = true
	}
	h.onDir("a")
	h.box("a")
	n := 0
	errEnough := errors.New("enough")
	err := h.Events(t.Context(), "a", 0, func(ev wire.SandboxEvent) error {
		if ev.Kind == wire.EventPort {
			n++
		}
		if ev.Port == 0 && ev.Kind == wire.EventPort {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || n != egress.MaxPortEvents+1 {
		t.Errorf("%d events, %v", n, err)
	}
}
