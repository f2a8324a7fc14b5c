//go:build linux

package command

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// relay carries frames between the client and the keeper until the command's exit. When the client disconnects, relay
// sends the keeper a hangup, and leaves the output to the keeper, which never makes a command wait for a reader. The
// end of a session, as when the daemon exits, is not a hangup: the client attaches again. relay calls gone when the
// client has disconnected, and started when the command runs, before the client is informed. An error of started ends
// the relay.
func relay(
	ctx context.Context, name string, session io.ReadWriteCloser, stream io.ReadWriter, gone func(), started func() error,
) (Ended, error) {
	var input sync.WaitGroup
	defer input.Wait()
	if s, ok := stream.(interface{ SetReadDeadline(time.Time) error }); ok {
		defer func() { _ = s.SetReadDeadline(time.Unix(1, 0)) }() // fails only if the stream is closed
	}
	defer session.Close()
	unhook := context.AfterFunc(ctx, func() { session.Close() })
	defer unhook()
	input.Go(func() { relayInput(stream, session, gone) })

	var buf []byte
	var recorded []wire.Recorded
	deaf := false
	for {
		whole, err := wire.ReadWhole(session, buf)
		if err != nil {
			if ctx.Err() != nil {
				return Ended{}, daemonStops(ctx)
			}
			return Ended{}, fault.New(fault.Unavailable, "the sandbox's monitor exited while the command was running").
				WithHint("its changes are kept; see them: coppice log %s", name).Because(err)
		}
		buf = whole
		switch p := whole[wire.FrameHead:]; wire.FrameType(whole[0]) {
		case wire.FrameExit:
			x := Ended{Output: recorded}
			err := decode(p, &x)
			return x, err
		case wire.FrameRecorded:
			if recorded, err = wire.AddRecorded(recorded, p); err != nil {
				return Ended{}, fault.New(fault.Internal, "malformed frame from the monitor").Because(err)
			}
		case wire.FrameFailed:
			return Ended{}, decodeFailure(p)
		case wire.FrameStarted:
			if err := decode(p, new(wire.Started)); err != nil {
				return Ended{}, err
			}
			if err := started(); err != nil {
				return Ended{}, err
			}
			fallthrough
		default:
			if !deaf {
				_, err = stream.Write(whole)
				deaf = err != nil
			}
		}
	}
}

// relayInput carries frames from the client to the keeper, until either has disconnected. It calls gone if the client
// has.
func relayInput(stream io.Reader, session io.Writer, gone func()) {
	buf := make([]byte, 64<<10)
	for {
		t, p, err := wire.ReadFrame(stream, buf)
		if err != nil {
			// While the daemon runs, the loss of the client is final. If the daemon itself stops, the hangup has no
			// effect, since the session is closed by then.
			t, p = wire.FrameHangup, nil
		}
		werr := wire.WriteFrame(session, t, p)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // relay itself sets the deadline
			gone()
		}
		if werr != nil || err != nil {
			return
		}
	}
}

// daemonStops returns the error of a client whose connection is closed because the daemon stops.
func daemonStops(ctx context.Context) error {
	return fault.New(fault.Unavailable, "the daemon is stopping; the command continues").Because(context.Cause(ctx))
}

// readFirst reads the first frame of a command, which says that it runs, or why it cannot be run.
func readFirst(session io.Reader) (m wire.Started, x *Ended, err error) {
	t, p, err := wire.ReadFrame(session, nil)
	if err != nil {
		return m, nil, fault.New(fault.Unavailable, "the sandbox's monitor exited while the command was started").Because(err)
	}
	switch t {
	case wire.FrameStarted:
		err = decode(p, &m)
	case wire.FrameExit:
		x = new(Ended)
		err = decode(p, x)
	case wire.FrameFailed:
		err = decodeFailure(p)
	default:
		err = fault.New(fault.Internal, "invalid first frame %d from the monitor", t)
	}
	return m, x, err
}

// readAll reads the frames of a command until it exits. said is the beginning of its output.
func readAll(session io.Reader) (exit wire.Exit, said string, err error) {
	const most = 1000
	for {
		t, p, err := wire.ReadFrame(session, nil)
		if err != nil {
			return exit, said, fault.New(fault.Unavailable, "the sandbox was stopped meanwhile").Because(err)
		}
		switch t {
		case wire.FrameStdout, wire.FrameStderr:
			said += string(p[:min(len(p), most-len(said))])
		case wire.FrameFailed:
			return exit, said, decodeFailure(p)
		case wire.FrameExit:
			var x Ended
			err := decode(p, &x)
			return x.Exit, said, err
		}
	}
}

func decode(p []byte, v any) error {
	if err := json.Unmarshal(p, v); err != nil {
		return fault.New(fault.Internal, "malformed frame from the monitor").Because(err)
	}
	return nil
}

func decodeFailure(p []byte) error {
	var x wire.Error
	if err := decode(p, &x); err != nil {
		return err
	}
	return &fault.Error{Kind: fault.Kind(x.Kind), Message: x.Message, Hint: x.Hint}
}
