//go:build linux

package cli_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/looptest"
)

// manyFiles creates 20,000 files with names of 200 bytes.
const manyFiles = `mkdir many && cd many && pad=$(printf %0190d 0) && seq 100000 119999 | sed "s/$/$pad/" | xargs touch`

// TestDaemon_SurvivesFloodOfOneSandbox floods the daemon with requests about a huge tree in one sandbox. The daemon
// must stay within its memory limit, and serve another sandbox.
func TestDaemon_SurvivesFloodOfOneSandbox(t *testing.T) {
	t.Parallel()
	if looptest.Race {
		t.Skip("the race detector's memory is not the program's")
	}
	d := newDesk(t)
	d.run("create", "other", "--from", "host", "--no-repo")
	t.Cleanup(func() { d.try("rm", "--force", "other") })
	d.run("exec", sandbox, "--", "sh", "-c", manyFiles)
	d.run("serve", "--stop")
	const soft = 256 << 20
	d.env = append(d.env, "GOMEMLIMIT="+strconv.Itoa(soft))
	d.run("ls")

	c := client.New(client.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		return client.DialSocket(ctx, client.SocketPath(d.dir))
	}})
	defer c.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var answered, refused atomic.Int64
	var flood sync.WaitGroup
	for range 40 {
		flood.Go(func() {
			for ctx.Err() == nil {
				_, err := c.Diff(ctx, sandbox, wire.DiffRequest{A: "HEAD~1", B: "HEAD"})
				var e *client.Error
				switch {
				case err == nil:
					answered.Add(1)
				case errors.As(err, &e) && e.Kind == client.KindUnavailable:
					refused.Add(1)
				case ctx.Err() == nil:
					t.Errorf("a diff failed: %v", err)
					return
				}
				if answered.Load() >= 10 && refused.Load() > 0 {
					return
				}
			}
		})
	}
	if out := d.run("exec", "other", "--", "echo", "here"); !strings.Contains(out, "here") {
		t.Errorf("exec in another sandbox printed %q", out)
	}
	flood.Wait()
	st, err := c.Daemon(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if st.Memory == nil || st.Memory.Limit != soft || st.Memory.Refused == 0 || st.Memory.Held != 0 ||
		st.Memory.Waiting != 0 {
		t.Errorf("the daemon's memory: %+v", st.Memory)
	}
	const program = 128 << 20 // pages of the program and of the database, which are not on the heap
	if most := peak(t, st.PID); most > soft+program {
		t.Errorf("the daemon used %d MiB, with a soft limit of %d MiB", most>>20, soft>>20)
	} else {
		t.Logf("the daemon used %d MiB; %d answers, %d refusals", most>>20, answered.Load(), refused.Load())
	}
}

// peak returns the peak resident memory of a process in bytes (VmHWM in proc_pid_status(5)).
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^VmHWM:\s+([0-9]+) kB$`).FindSubmatch(b)
	if found == nil {
		t.Fatalf("no VmHWM in:\n%s", b)
	}
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}
