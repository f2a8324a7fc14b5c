//go:build linux

package command

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// watched counts the reads of a connection that are in progress.
type watched struct {
	net.Conn
	reading atomic.Int32
}

func (w *watched) Read(p []byte) (int, error) {
	w.reading.Add(1)
	defer w.reading.Add(-1)
	return w.Conn.Read(p)
}

// relaying is a relay in progress.
type relaying struct {
	keeper, client net.Conn // the far ends
	stream         *watched
	stop           context.CancelFunc
	done           chan struct{}
	exit           Ended // valid when done is closed
	err            error
}

func startRelay(t *testing.T) *relaying {
	ctx, stop := context.WithCancel(t.Context())
	session, keeper := net.Pipe()
	near, client := net.Pipe()
	r := &relaying{keeper: keeper, client: client, stream: &watched{Conn: near}, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.exit, r.err = relay(ctx, "box", session, r.stream, func() {}, func() error { return nil })
	}()
	t.Cleanup(func() {
		stop()
		<-r.done
	})
	return r
}

// ended waits for the end of the relay, after which no goroutine may read the stream.
func (r *relaying) ended(t *testing.T) {
	t.Helper()
	<-r.done
	if n := r.stream.reading.Load(); n != 0 {
		t.Errorf("%d reads of the client's stream are in progress", n)
	}
}

func TestRelay_HangsUpOnClientDisconnect(t *testing.T) {
	t.Parallel()
	r := startRelay(t)
	r.client.Close()
	if k, _, err := wire.ReadFrame(r.keeper, nil); k != wire.FrameHangup || err != nil {
		t.Errorf("the keeper received frame %d, %v", k, err)
	}
	if err := wire.WriteJSON(r.keeper, wire.FrameExit, wire.Exit{Code: 129}); err != nil {
		t.Error(err)
	}
	if r.ended(t); r.err != nil || r.exit.Code != 129 {
		t.Errorf("%+v, %v", r.exit, r.err)
	}
}

func TestRelay_DaemonStopSendsNoHangup(t *testing.T) {
	t.Parallel()
	r := startRelay(t)
	if err := wire.WriteFrame(r.client, wire.FrameStdin, []byte("x")); err != nil {
		t.Error(err)
	}
	if k, _, err := wire.ReadFrame(r.keeper, nil); k != wire.FrameStdin || err != nil {
		t.Errorf("the keeper received frame %d, %v", k, err)
	}
	r.stop()
	if k, _, err := wire.ReadFrame(r.keeper, nil); !errors.Is(err, io.EOF) {
		t.Errorf("the keeper received frame %d, %v", k, err)
	}
	if r.ended(t); !fault.Is(r.err, fault.Unavailable) {
		t.Error(r.err)
	}
}

func TestRelay_LeavesStreamAfterExit(t *testing.T) {
	t.Parallel()
	r := startRelay(t)
	if err := wire.WriteJSON(r.keeper, wire.FrameExit, wire.Exit{Code: 3}); err != nil {
		t.Error(err)
	}
	if r.ended(t); r.err != nil || r.exit.Code != 3 {
		t.Errorf("%+v, %v", r.exit, r.err)
	}
}
