//go:build linux && (amd64 || arm64)

package keeper

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestEnd_ReportsExitOfStartingCommand covers a command that is starting or exiting when the
// sandbox stops: init may have sent a last message that was not read yet, or none.
func TestEnd_ReportsExitOfStartingCommand(t *testing.T) {
	const why = "a decoy was opened"
	began := func(l *initlink.Link) error { return l.Send(initlink.MsgSpawned, initlink.Spawned{PID: 7}) }
	ended := func(l *initlink.Link) error {
		if err := began(l); err != nil {
			return err
		}
		return l.Send(initlink.MsgExited, initlink.Exited{PID: 7, Status: 3 << 8, Alone: true})
	}
	failed := func(l *initlink.Link) error {
		return l.Send(initlink.MsgSpawned, initlink.Spawned{Code: 127, Message: "true: command not found"})
	}
	nothing := func(*initlink.Link) error { return nil }
	for _, c := range []struct {
		name    string
		says    func(*initlink.Link) error // sends the last messages of init
		why     string                     // reason of the end; "" if it was requested
		code    int
		message string
		refused bool
	}{
		{"it had begun", began, why, 137, "the sandbox was stopped: " + why, false},
		{"it had begun, and the box was to end", began, "", 137, "the sandbox was stopped", false},
		{"it had ended", ended, why, 3, "", false},
		{"it had ended, and the box was to end", ended, "", 3, "", false},
		{"it could not be run", failed, why, 127, "true: command not found", false},
		{"it may have begun", nothing, why, 137, "the sandbox was stopped: " + why, false},
		{"nobody knows of it, and the box was to end", nothing, "", 0, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k, far := halfKeeper(t)
			type answer struct {
				e   *execution
				err error
			}
			told := make(chan answer, 1)
			go func() {
				e, err := k.start(wire.ExecRequest{Cmd: []string{"true"}})
				told <- answer{e, err}
			}()
			m, err := far.Recv()
			if err != nil || m.Kind != initlink.MsgSpawn {
				t.Fatalf("%q, %v", m.Kind, err)
			}
			m.Close()
			// The messages arrive before the monitor reads from the link.
			if err := c.says(far); err != nil {
				t.Fatal(err)
			}
			if c.why != "" {
				k.halt(c.why)
			} else {
				k.quit()
			}
			k.serve()
			a := <-told
			if c.refused {
				if !fault.Is(a.err, fault.Unavailable) {
					t.Errorf("%v", a.err)
				}
				return
			}
			if a.err != nil {
				t.Fatal(a.err)
			}
			<-a.e.finished
			if x := a.e.exit; x.Code != c.code || x.Message != c.message || (x.Signal == "KILL") != (c.code == 137) {
				t.Errorf("%+v", x)
			}
		})
	}
}

// TestEnd_WorksWithoutServe stops a sandbox that turned out unusable before the monitor began
// to read from init.
func TestEnd_WorksWithoutServe(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	if err := far.Send(initlink.MsgCounted, initlink.Counted{}); err != nil {
		t.Fatal(err)
	}
	k.end()
	k.link.Close()
}

// TestHalt_WaitsForNoAnswer checks that the sandbox stops whatever init sends in the meantime and whichever request
// waits for an answer.
func TestHalt_WaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	k, far := halfKeeper(t)
	for range 100 { // answers without a request
		if err := far.Send(initlink.MsgCounted, initlink.Counted{Procs: 1}); err != nil {
			t.Fatal(err)
		}
	}
	k.halt("it is over")
	k.serve()
}

// halfKeeper returns a keeper without an init, and init's end of its link. Commands run as root, which is the user of
// the test outside.
func halfKeeper(t *testing.T) (*keeper, *initlink.Link) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	far := initlink.NewLink(pair[1])
	t.Cleanup(far.Close)
	k := blankKeeper(plan.Config{RunDir: t.TempDir(), IdleAfter: -1})
	k.link = initlink.NewLink(pair[0])
	k.user = protocol.InsideUser{UIDs: onlyRoot(os.Geteuid()), GIDs: onlyRoot(os.Getegid())}
	if k.listener, err = listen(k.config.RunDir); err != nil {
		t.Fatal(err)
	}
	return k, far
}

// onlyRoot maps root inside to an id outside.
func onlyRoot(outside int) []plan.IDMap { return []plan.IDMap{{Outside: uint32(outside), Size: 1}} }
