//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestReceive_ClosesStrayDescriptors checks that descriptors from an init inside its sandbox, which may be compromised,
// do not stay open in the monitor.
func TestReceive_ClosesStrayDescriptors(t *testing.T) {
	t.Parallel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	init, conductor := initlink.NewLink(pair[0]), initlink.NewLink(pair[1])
	defer init.Close()
	defer conductor.Close()
	k := &keeper{config: plan.Config{Tier: plan.TierGvisor, RunDir: t.TempDir()}, link: conductor,
		over: make(chan struct{}), stop: make(chan struct{}), answers: make(chan initlink.Message, 8),
		byPID: map[int]*execution{}}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	r, w := ends[0], ends[1]
	defer unix.Close(r)
	send := errors.Join(
		init.Send(initlink.MsgPrograms, initlink.Programs{}, w),
		init.Send(initlink.MsgExited, initlink.Exited{PID: 7}, w),
		init.Send(initlink.MsgRefused, initlink.Refused{}, w),
		init.Send(initlink.MsgCounted, initlink.Counted{}, w),
		unix.Close(w))
	if send != nil {
		t.Fatal(send)
	}
	init.Shutdown()
	k.receive()
	if n, err := unix.Read(r, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("a descriptor is still open: %d, %v", n, err)
	}
	if m := <-k.answers; m.Kind != initlink.MsgCounted {
		t.Errorf("passed message %q on as an answer", byte(m.Kind))
	}
}

// TestAsk_FailsForUnknownMessage covers an init from an older build: a request that it does not know is an error, and a
// report of that without a request blocks nothing.
func TestAsk_FailsForUnknownMessage(t *testing.T) {
	t.Parallel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	init, ours := initlink.NewLink(pair[0]), initlink.NewLink(pair[1])
	defer init.Close()
	defer ours.Close()
	k := &keeper{config: plan.Config{Tier: plan.TierGvisor}, link: ours, answerPatience: time.Minute,
		over: make(chan struct{}), stop: make(chan struct{}), answers: make(chan initlink.Message),
		byPID: map[int]*execution{}}
	go k.receive()
	unknown := func(kind initlink.Kind) initlink.Unknown {
		return initlink.Unknown{Kind: kind,
			Err: &wire.Error{Kind: string(fault.Version), Message: "not known", Hint: "mend it"}}
	}
	sent := make(chan error, 1)
	go func() {
		m, err := init.Recv()
		if err == nil && m.Kind == initlink.MsgClock {
			err = errors.Join(init.Send(initlink.MsgUnknown, unknown(initlink.MsgKill)),
				init.Send(initlink.MsgUnknown, unknown(initlink.MsgClock)))
		}
		sent <- err
	}()
	var c initlink.Clocked
	if err := k.ask(initlink.MsgClock, &c); !fault.Is(err, fault.Version) || err.Error() != "not known" ||
		fault.HintOf(err) != "mend it" {
		t.Errorf("%+v %v", c, err)
	}
	if err := errors.Join(<-sent, init.Send(initlink.MsgUnknown, unknown(initlink.MsgClock))); err != nil {
		t.Fatal(err)
	}
	init.Shutdown()
	<-k.over // no report without a request blocks receive
}
