//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

func TestStart_KillsInitThatIsNotReady(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k := blankKeeper(plan.Config{})
	k.init = &child{Pid: cmd.Process.Pid}
	ctx, cancel := context.WithCancel(t.Context())
	stop := k.killWhenDone(ctx)
	cancel()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Errorf("init exited with %v, want a signal", err)
	}
	stop()
	stop() // may be called twice

	late := blankKeeper(plan.Config{Tier: plan.TierWorkspace, RunDir: t.TempDir()})
	late.startPatience = 0
	if err := late.buildInTime(t.Context()); !fault.Is(err, fault.Timeout) || fault.HintOf(err) == "" {
		t.Errorf("start beyond its deadline: %v", err)
	}
	if late.init != nil {
		t.Error("the failed start left an init")
	}
}

func TestRekey_KillsBoxOfUnresponsiveInit(t *testing.T) {
	t.Parallel()
	k, _ := halfKeeper(t)
	k.rekeyPatience = time.Millisecond
	served := make(chan struct{})
	go func() { k.serve(); close(served) }()
	if _, err := k.rekeyInside(initlink.Rekey{}); err == nil {
		t.Error("a Rekey without an answer succeeds")
	}
	<-served
}

func TestStop_KillsUnresponsiveInit(t *testing.T) {
	t.Parallel()
	k, _ := halfKeeper(t)
	k.stopPatience = time.Millisecond
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k.init = &child{Pid: cmd.Process.Pid}
	served := make(chan struct{})
	go func() { k.serve(); close(served) }()
	if err := k.stopAll(time.Millisecond); err != nil {
		t.Error(err)
	}
	<-served
}

func TestProtections_AreDroppedForKnownErrorsOnly(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.EACCES, unix.ENOMEM, unix.EMFILE, unix.EAGAIN, unix.EPERM, unix.ENOENT} {
		if noIDMap(&idMapError{errno}) {
			t.Errorf("%v drops shifted ids", errno)
		}
	}
	if noIDMap(unix.EINVAL) {
		t.Error("the error of another call drops shifted ids")
	}
	if !noIDMap(fmt.Errorf("home: %w", &idMapError{unix.EINVAL})) || !noCloneIntoCgroup(unix.ENOSYS) {
		t.Error("the error of a missing call is not taken for a lack")
	}
}
