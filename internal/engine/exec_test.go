//go:build linux

package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// watched counts the reads of a connection that are under way.
type watched struct {
	net.Conn
	reading atomic.Int32
}

func (w *watched) Read(p []byte) (int, error) {
	w.reading.Add(1)
	defer w.reading.Add(-1)
	return w.Conn.Read(p)
}

// relayed is a relay under way.
type relayed struct {
	keeper, client net.Conn // the far ends
	stream         *watched
	stop           context.CancelFunc
	done           chan struct{}
	exit           ending // when done
	err            error
}

func startRelay(t *testing.T) *relayed {
	ctx, stop := context.WithCancel(t.Context())
	session, keeper := net.Pipe()
	near, client := net.Pipe()
	r := &relayed{keeper: keeper, client: client, stream: &watched{Conn: near}, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.exit, r.err = new(Engine).relay(ctx, "box", session, r.stream, func() {}, func(wire.Started) error { return nil })
	}()
	t.Cleanup(func() {
		stop()
		<-r.done
	})
	return r
}

// ended waits for the end of the relay, after which nobody may read the stream.
func (r *relayed) ended(t *testing.T) {
	t.Helper()
	<-r.done
	if n := r.stream.reading.Load(); n != 0 {
		t.Errorf("%d reads of the client's stream are under way", n)
	}
}

func TestAClientThatIsGoneHangsUp(t *testing.T) {
	t.Parallel()
	r := startRelay(t)
	r.client.Close()
	if k, _, err := wire.ReadFrame(r.keeper, nil); k != wire.FrameHangup || err != nil {
		t.Errorf("the keeper gets frame %d, %v", k, err)
	}
	if err := wire.WriteJSON(r.keeper, wire.FrameExit, wire.Exit{Code: 129}); err != nil {
		t.Error(err)
	}
	if r.ended(t); r.err != nil || r.exit.Code != 129 {
		t.Errorf("%+v, %v", r.exit, r.err)
	}
}

func TestADaemonThatStopsHangsNothingUp(t *testing.T) {
	t.Parallel()
	r := startRelay(t)
	if err := wire.WriteFrame(r.client, wire.FrameStdin, []byte("x")); err != nil {
		t.Error(err)
	}
	if k, _, err := wire.ReadFrame(r.keeper, nil); k != wire.FrameStdin || err != nil {
		t.Errorf("the keeper gets frame %d, %v", k, err)
	}
	r.stop()
	if k, _, err := wire.ReadFrame(r.keeper, nil); !errors.Is(err, io.EOF) {
		t.Errorf("the keeper gets frame %d, %v", k, err)
	}
	if r.ended(t); !fault.Is(r.err, fault.Unavailable) {
		t.Error(r.err)
	}
}

func TestTheStreamIsLeftAloneAfterTheExit(t *testing.T) {
	t.Parallel()
	r := startRelay(t)
	if err := wire.WriteJSON(r.keeper, wire.FrameExit, wire.Exit{Code: 3}); err != nil {
		t.Error(err)
	}
	if r.ended(t); r.err != nil || r.exit.Code != 3 {
		t.Errorf("%+v, %v", r.exit, r.err)
	}
}

// Processes are stopped for a capture unless it is known that there are none.
func TestFreezesThatAreNotNeeded(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "true")
	var b *fakeBox
	for _, b = range h.boxes.boxes {
	}
	n := 0
	step := func(want int, what string) {
		t.Helper()
		n++
		before := b.freezes
		if x := h.run("a", "write", "f", itoa(n)); !x.Changed {
			t.Fatalf("%s: nothing was captured", what)
		}
		if got := b.freezes - before; got != want {
			t.Errorf("%s: %d freezes, not %d", what, got, want)
		}
	}
	step(1, "something may run")
	b.alone = true
	step(0, "nothing runs")
	b.alone, b.suspects = false, layer.Suspects{Paths: []string{"/f"}}
	step(1, "a file is mapped")
	b.alone, b.suspects = true, layer.Suspects{}
	step(1, "it was mapped when last seen")
	step(0, "it was not")

	// Another command began before the capture of this one.
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	s := h.entry(rec.ID)
	lost := newCommand(rec.ID, "x1", time.Time{}, "")
	lost.req = wire.ExecRequest{Cmd: []string{"write", "f", "last"}}
	before := b.freezes
	own := h.tryLock(s, "counting")
	begun := own.begun
	own.unlock(h.Engine)
	if x, err := h.settle(ctx, s, lost, ending{Alone: true}, begun-1); err != nil || x.Changed {
		t.Errorf("%+v, %v", x, err)
	}
	if b.freezes != before+1 {
		t.Error("what may run was not stopped")
	}
}

// A command takes as long as it runs, however long its box took to start.
func TestExec_DurationIsWithoutTheStartOfTheBox(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.boxes.begun = func(context.Context) error { time.Sleep(3 * time.Second); return nil }
	h.run("a", "true")
	if d := time.Duration(last[*format.Exit](h, h.id("a")).DurationNanos); d >= 3*time.Second {
		t.Errorf("true took %s", d)
	}
}
