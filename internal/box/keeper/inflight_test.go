//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// inFlight is set in the environment of the child process of the test below, which has its own user and limit.
const inFlight = "COPPICE_TEST_IN_FLIGHT"

// TestStart_OutlivesDescriptorsInFlight checks that a command whose pipes cannot be passed to init is refused, and that
// the box continues: other programs of the same user may have too many descriptors in flight.
func TestStart_OutlivesDescriptorsInFlight(t *testing.T) {
	t.Parallel()
	if os.Getenv(inFlight) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inFlight+"=yes", "TMPDIR=/tmp")
		cmd.Dir = "/"
		if os.Getenv("COPPICE_TEST_REAL_ID") == "" { // the kernel does not count for real root
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	drain := fillFlight(t)
	k, far := halfKeeper(t)
	if _, err := k.start(wire.ExecRequest{Cmd: []string{"true"}}); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.HintOf(err), "descriptors") {
		t.Errorf("with too many descriptors in flight: %v", err)
	}
	drain()
	asked := make(chan initlink.Message, 1)
	go func() {
		m, err := far.Recv()
		if err == nil {
			err = far.Send(initlink.MsgSpawned,
				initlink.Spawned{Err: &wire.Error{Kind: string(fault.NotFound), Message: "asked"}})
		}
		if err != nil {
			t.Error(err)
		}
		asked <- m
	}()
	served := make(chan struct{})
	go func() { k.serve(); close(served) }()
	if _, err := k.start(wire.ExecRequest{Cmd: []string{"true"}}); !fault.Is(err, fault.NotFound) {
		t.Errorf("afterwards: %v, want the answer of init", err)
	}
	if m := <-asked; m.Kind != initlink.MsgSpawn || len(m.FDs) != 2 {
		t.Errorf("init received message %q with %d descriptors", m.Kind, len(m.FDs))
	}
	k.quit()
	<-served
}

// TestSpawned_EndsBoxOnWrongDescriptors checks that a missing terminal, or one that was not requested, stops the
// sandbox: a compromised init may answer anything.
func TestSpawned_EndsBoxOnWrongDescriptors(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{false, true} {
		k, far := halfKeeper(t)
		served := make(chan struct{})
		go func() { k.serve(); close(served) }()
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			var fds []int
			m, err := far.Recv()
			if err == nil && !tty {
				fds = m.FDs[:1]
			}
			if err == nil {
				err = far.Send(initlink.MsgSpawned, initlink.Spawned{PID: 7}, fds...)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		e, err := k.start(wire.ExecRequest{Cmd: []string{"true"}, TTY: tty})
		if err != nil || !strings.Contains(e.exit.Message, "init sent") {
			t.Errorf("with a terminal %v: %+v, %v", tty, e, err)
		}
		<-answered
		<-served
	}
}

// fillFlight puts as many descriptors in flight as this process may have open, until drain is called.
func fillFlight(t *testing.T) (drain func()) {
	t.Helper()
	// Few enough not to affect other programs of the user, which have other limits.
	few := unix.Rlimit{Cur: 1000, Max: 1000}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	rights := unix.UnixRights(make([]int, 200)...) // each is stdin
	var open []int
	drain = func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}
	for range 100 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, pair[0], pair[1])
		if err := unix.Sendmsg(pair[0], []byte{0}, rights, nil, 0); errors.Is(err, unix.ETOOMANYREFS) {
			return drain
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the kernel does not count the descriptors in flight")
	return nil
}
