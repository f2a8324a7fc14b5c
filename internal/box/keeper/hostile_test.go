//go:build linux && (amd64 || arm64)

package keeper

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// In tier gvisor init belongs to the sandbox: programs that compromise it may send anything at any time. They can end
// their own box in this way, and nothing else.

// ends fails the test unless done is closed in time.
func ends(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal(what)
	}
}

// served runs a keeper. The channel is closed when it has ended.
func served(k *keeper) <-chan struct{} {
	done := make(chan struct{})
	go func() { k.serve(); close(done) }()
	return done
}

func TestStop_IgnoresUnsolicitedAnswer(t *testing.T) {
	t.Parallel()
	for _, kind := range []initlink.Kind{initlink.MsgCounted, initlink.MsgReady, initlink.MsgAdopt} {
		k, far := halfKeeper(t)
		k.config.Tier = plan.TierGvisor
		init := exec.CommandContext(t.Context(), "sleep", "1000")
		if err := init.Start(); err != nil {
			t.Fatal(err)
		}
		k.init = &child{Pid: init.Process.Pid}
		reaped := make(chan struct{})
		go func() { _ = init.Wait(); far.Shutdown(); close(reaped) }() // the link ends with init
		done := served(k)
		for range 3 {
			if err := far.Send(kind, initlink.Counted{}); err != nil {
				t.Fatal(err)
			}
		}
		stopped := make(chan struct{})
		go func() { _ = k.stopAll(0); close(stopped) }()
		ends(t, fmt.Sprintf("a stop waits behind message %q", byte(kind)), stopped)
		ends(t, "the keeper does not end", done)
		<-reaped
	}
}

func TestServe_NoticesExitAfterExtraAnswers(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	done := served(k)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = far.Recv()
		for range 3 {
			_ = far.Send(initlink.MsgUnknown, initlink.Unknown{Kind: initlink.MsgCount})
		}
		far.Shutdown()
	}()
	_ = k.ask(initlink.MsgCount, nil)
	ends(t, "the end of init is not noticed", done)
	<-answered
}

func TestNotSpawned_AnswersOnce(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(k *keeper){
		"by init":       func(k *keeper) { k.spawned(initlink.Spawned{Code: 1}, nil) },
		"by the end":    func(k *keeper) { k.endExecs() },
		"by nobody yet": func(*keeper) {},
	} {
		k, _ := halfKeeper(t)
		e := k.newExecution(wire.ExecRequest{ID: "x"})
		if err := k.register(e); err != nil {
			t.Fatal(err)
		}
		answer(k)
		done := make(chan struct{})
		go func() { k.notSpawned(e, unix.ETOOMANYREFS); close(done) }()
		ends(t, "answered "+name+": notSpawned blocks", done)
		if len(e.born) != 1 {
			t.Errorf("answered %s: %d answers", name, len(e.born))
		}
	}
}

func TestSpawned_ClosesUnexpectedDescriptors(t *testing.T) {
	t.Parallel()
	k, _ := halfKeeper(t)
	e := k.newExecution(wire.ExecRequest{ID: "x"})
	if err := k.register(e); err != nil {
		t.Fatal(err)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r := os.NewFile(uintptr(p[0]), "read end")
	defer r.Close()
	k.spawned(initlink.Spawned{Code: 127, Message: "no"}, p[1:])
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil { // the other end is closed
		t.Errorf("read %d, %v", n, err)
	}
	if !k.ending || e.master != nil {
		t.Errorf("the box was not ended: ending %v, terminal %v", k.ending, e.master)
	}
}

// awaits returns the building of a tier gvisor box that is resumed from memory, whose init is about to be ready.
func awaits(k *keeper) *building {
	k.config.Tier, k.config.Image = plan.TierGvisor, "/image"
	return &building{k: k, config: k.config, spare: func() {}}
}

func TestAwaitReady_IgnoresForgedProtections(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	b := awaits(k)
	b.enforced = plan.Enforced{Tier: plan.TierGvisor, Items: []plan.Item{
		{Name: "pids", State: plan.Weak}, {Name: "gate", State: plan.On},
	}}
	forged := []plan.Item{
		{Name: "pids", State: plan.On}, {Name: "landlock", State: plan.On}, {Name: "gate", State: plan.Weak, Detail: "forged"},
	}
	if err := far.Send(initlink.MsgReady, initlink.Ready{Weak: forged}); err != nil {
		t.Fatal(err)
	}
	if err := b.awaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := k.enforced
	if e.State("pids") != plan.Weak || e.State("landlock") != "" || e.State("gate") != plan.Weak {
		t.Errorf("enforced: %+v", e.Items)
	}
	for _, f := range e.Found {
		if f.Lacks == "forged" || f.Protection == "landlock" {
			t.Errorf("the home would record %+v", f)
		}
	}
}

func TestAwaitReady_RefusesOtherMessage(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	if err := far.Send(initlink.MsgSelf, initlink.Ready{}); err != nil {
		t.Fatal(err)
	}
	if err := awaits(k).awaitReady(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("another message was accepted as Ready: %v", err)
	}
}

func TestAwaitReady_BoundsAdoptedCommands(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		long := string(make([]byte, mostAdopted/64))
		for i := range 200 {
			if far.Send(initlink.MsgAdopt, initlink.Adopt{Exec: fmt.Sprint("x", i), PID: i + 2, Cmd: []string{long}}) != nil {
				return
			}
		}
	}()
	if err := awaits(k).awaitReady(t.Context()); !fault.Is(err, fault.TooLarge) {
		t.Errorf("adopted commands are not bounded: %v", err)
	}
	k.link.Close()
	<-sent
}

func TestForgetInit_LetsAdoptedCommandsEnd(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	k.config.Limits.Output = 1
	b := awaits(k)
	b.undos[undoInit] = k.forgetInit
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	adopted := initlink.Adopt{Exec: "x", PID: 2, Cmd: []string{"sh"}, Has: []string{"stdout"}}
	if err := far.Send(initlink.MsgAdopt, adopted, int(r.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := far.Send(initlink.MsgReady, initlink.Ready{Err: &wire.Error{Kind: "internal", Message: "no"}}); err != nil {
		t.Fatal(err)
	}
	if err := b.awaitReady(t.Context()); err == nil {
		t.Fatal("the start did not fail")
	}
	b.undo()
	if _, err := w.WriteString("more than one byte"); err != nil { // the limit of output ends the command
		t.Fatal(err)
	}
	w.Close()
	k.execs["x"].pumps.Wait()
}
