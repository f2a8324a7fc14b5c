//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

func TestAsk_KillsBoxOfUnresponsiveInit(t *testing.T) {
	t.Parallel()
	for _, kind := range []initlink.Kind{initlink.MsgFreeze, initlink.MsgThaw, initlink.MsgMap, initlink.MsgCount,
		initlink.MsgSave} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			k, _ := halfKeeper(t)
			k.answerPatience, k.savePatience = time.Millisecond, time.Millisecond
			served := make(chan struct{})
			go func() { k.serve(); close(served) }()
			if err := k.ask(kind, nil); !fault.Is(err, fault.Timeout) {
				t.Errorf("ask: %v, want a timeout", err)
			}
			<-served
		})
	}
}

// TestAsk_WaitsForFrozenInit covers an init that is frozen with its control group for a capture: it cannot answer, and
// the monitor waits however long the capture takes.
func TestAsk_WaitsForFrozenInit(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	k.answerPatience = time.Nanosecond
	k.iced.Store(true)
	served := make(chan struct{})
	go func() { k.serve(); close(served) }()
	asked := make(chan error, 1)
	go func() { asked <- k.ask(initlink.MsgCount, nil) }()
	if _, err := far.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := far.Send(initlink.MsgCounted, initlink.Counted{}); err != nil {
		t.Fatal(err)
	}
	if err := <-asked; err != nil {
		t.Errorf("ask: %v", err)
	}
	k.quit()
	<-served
}

// talkingKeeper returns a running keeper whose init only counts processes, and a Box attached to it.
func talkingKeeper(t *testing.T) (*keeper, *box.Box) {
	t.Helper()
	k, far := halfKeeper(t)
	told := make(chan struct{})
	go func() {
		defer close(told)
		for {
			m, err := far.Recv()
			if err != nil {
				return
			}
			if m.Kind == initlink.MsgCount && far.Send(initlink.MsgCounted, initlink.Counted{Procs: 1}) != nil {
				return
			}
		}
	}()
	served := make(chan struct{})
	go func() { k.serve(); close(served) }()
	t.Cleanup(func() { k.quit(); <-served; <-told })
	b, err := box.Attach(t.Context(), k.config.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return k, b
}

func TestStatus_FitsAFrame(t *testing.T) {
	t.Parallel()
	k, b := talkingKeeper(t)
	k.enforced = plan.Enforced{Items: []plan.Item{{Name: "renames", Detail: strings.Repeat("\x01", 1<<20)}}}.Bounded()
	big := []string{"echo", strings.Repeat("\x01", wire.MaxFrame/8)}
	k.mu.Lock()
	for i := range 100 {
		id := fmt.Sprint("x", i)
		k.execs[id] = k.newExecution(wire.ExecRequest{ID: id, Cmd: big})
	}
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		clear(k.execs) // none of them was started
		k.mu.Unlock()
	}()
	st, err := b.Status(t.Context())
	if err != nil || len(st.Execs) != 100 || st.Procs != 1 {
		t.Fatalf("status has %d commands and %d processes, %v", len(st.Execs), st.Procs, err)
	}
	for _, e := range st.Execs {
		if n := len(e.Cmd[1]); e.Cmd[0] != "echo" || n > limit.StatusArgs || n < limit.StatusArgs/2 ||
			!strings.HasSuffix(e.Cmd[1], "...") {
			t.Errorf("%s: an argument of %d bytes", e.ID, n)
		}
	}
}

func TestCutArgs_LeavesShortOnes(t *testing.T) {
	t.Parallel()
	many := make([]string, limit.StatusArgs)
	if got := cutArgs(many); len(got) > limit.StatusArgs/3+1 || got[len(got)-1] != "..." {
		t.Errorf("%d empty arguments, the last %q", len(got), got[len(got)-1])
	}
	if got := cutArgs([]string{"ls", "-l"}); len(got) != 2 || got[1] != "-l" {
		t.Errorf("%q", got)
	}
}

func TestTell_FailsForLargeAnswer(t *testing.T) {
	t.Parallel()
	_, b := talkingKeeper(t)
	ours, theirs := net.Pipe()
	go func() { _ = reply(theirs, strings.Repeat("x", wire.MaxFrame)) }()
	frame, p, err := wire.ReadFrame(ours, nil)
	var f protocol.Failure
	if err = errors.Join(err, json.Unmarshal(p, &f)); err != nil || frame != wire.FrameFailed ||
		f.Kind != string(fault.TooLarge) {
		t.Errorf("frame %d of kind %q, %v; want too_large", frame, f.Kind, err)
	}
	if _, err := b.Procs(t.Context()); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestStart_TruncatesCommandMessage(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	answered := make(chan error, 1)
	go func() {
		m, err := far.Recv()
		if err == nil {
			m.Close()
			err = far.Send(initlink.MsgSpawned, initlink.Spawned{Code: 127, Message: strings.Repeat("x", 1<<19)})
		}
		answered <- err
	}()
	served := make(chan struct{})
	go func() { k.serve(); close(served) }()
	e, err := k.start(wire.ExecRequest{Cmd: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(e.exit.Message); n != limit.KeeperText {
		t.Errorf("the message has %d bytes", n)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	k.quit()
	<-served
	if f := protocol.FailureOf(context.DeadlineExceeded); f.Message != context.DeadlineExceeded.Error() {
		t.Errorf("%q", f.Message)
	}
}
