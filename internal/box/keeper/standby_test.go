//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
)

// waitingKeeper returns a keeper whose gate waits for a packet, and the box's end of the link. The gate is the program
// at path, which is not a gate.
func waitingKeeper(t *testing.T, path string) (k *keeper, box *os.File) {
	t.Helper()
	k, _ = halfKeeper(t)
	k.config.ID, k.config.Journal, k.config.Tier = "box", filepath.Join(t.TempDir(), "journal"), plan.TierSupervised
	if err := os.Mkdir(k.config.Journal, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err == nil {
		k.helpers.gate, err = program.Executable(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.helpers.gate.Close() })
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	box = os.NewFile(uintptr(pair[0]), "box")
	t.Cleanup(func() { box.Close() })
	k.asleep = os.NewFile(uintptr(pair[1]), "gate")
	return k, box
}

// denials returns the reasons of the denials in the journal of k.
func denials(t *testing.T, k *keeper) (all []string) {
	t.Helper()
	r, err := journal.Read(journal.Place{Dir: k.config.Journal, Key: k.config.JournalKey}, journal.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r {
		if e.Kind == wire.NetDeny {
			all = append(all, e.Reason)
		}
	}
	return all
}

// TestAwake_UsesNoGateThatFailed checks that a gate which could not begin is reported once, and that no later request
// talks to it.
func TestAwake_UsesNoGateThatFailed(t *testing.T) {
	t.Parallel()
	k, box := waitingKeeper(t, "/bin/true")
	done := served(k)
	if _, err := box.Write([]byte("a packet")); err != nil {
		t.Fatal(err)
	}
	for {
		if all := denials(t, k); len(all) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		if _, err := k.network(); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
			t.Errorf("network: %v", err)
		}
		if err := k.setPolicy([]plan.Phase{{Digest: "another"}}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("another policy: %v", err)
		}
	}
	if _, err := box.Write([]byte("another")); err == nil {
		t.Error("the link is open")
	}
	k.quit()
	ends(t, "the keeper does not end", done)
	if all := denials(t, k); len(all) != 1 {
		t.Errorf("reported as %q", all)
	}
}

// TestEnd_WaitsForStandby checks that serve returns after the wait for a packet has ended, which closes the link.
func TestEnd_WaitsForStandby(t *testing.T) {
	t.Parallel()
	k, box := waitingKeeper(t, "/bin/true")
	done := served(k)
	k.quit()
	ends(t, "the keeper does not end", done)
	if k.asleep != nil {
		t.Error("the link is kept")
	}
	if _, err := box.Write([]byte("late")); err == nil {
		t.Error("the link is open")
	}
	if all := denials(t, k); len(all) != 0 {
		t.Errorf("without a packet: %q", all)
	}
}

// TestEnd_ReportsUnreadPackets checks that packets which no gate could decide about are reported.
func TestEnd_ReportsUnreadPackets(t *testing.T) {
	t.Parallel()
	k, box := waitingKeeper(t, "/bin/true")
	k.quit()
	if _, err := box.Write([]byte("a packet")); err != nil {
		t.Fatal(err)
	}
	ends(t, "the keeper does not end", served(k))
	if all := denials(t, k); len(all) != 1 {
		t.Errorf("reported as %q", all)
	}
}

// TestGateway_StopsWhileItStarts checks that a stop does not wait for a start that hangs, and that a process which it
// gives later is stopped.
func TestGateway_StopsWhileItStarts(t *testing.T) {
	t.Parallel()
	exe, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(exe)
	if err == nil {
		f, err = program.Executable(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // after the subtests
	for name, give := range map[string]func(g *gateway, cancel func()){
		"closed":   func(g *gateway, _ func()) { g.close() },
		"deadline": func(_ *gateway, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, journal := newGateway(), t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun, hang, late := make(chan struct{}), make(chan struct{}), make(chan *control.Process, 1)
			failed := make(chan error)
			go func() {
				_, err := g.start(ctx.Done(), func() (*control.Process, error) {
					close(begun)
					<-hang
					p, err := control.Start(f, "1000", journal, nil, os.Stderr)
					if err != nil {
						t.Error(err)
					}
					late <- p
					return p, err
				})
				failed <- err
			}()
			<-begun
			give(g, cancel)
			if err := <-failed; err == nil {
				t.Error("a start that hangs succeeded")
			}
			if _, err := g.process(); !fault.Is(err, fault.Unavailable) {
				t.Errorf("%v", err)
			}
			close(hang)
			p := <-late
			if p == nil {
				t.Fatal("the program did not start")
			}
			<-p.Gone()
			if _, err := g.process(); err == nil {
				t.Error("the process that started later is used")
			}
			g.close()
			if _, err := g.start(nil, nil); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a start after the end: %v", err)
			}
		})
	}
}
