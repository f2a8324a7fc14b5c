//go:build linux

package cli_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/daemon"
)

// TestKilledDaemon kills a real daemon, and sometimes the monitors, at random moments while clients work, and
// restarts it, many times. Afterwards every acknowledged snapshot exists with its content, the store is intact, and
// the audit log records every acknowledged operation once, and none that did not happen. COPPICE_SOAK sets a minimum
// duration, as in "5m".
func TestKilledDaemon(t *testing.T) {
	t.Parallel()
	crashes := 200
	if testing.Short() {
		crashes = 20
	}
	d := newDoomed(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()

	var workers sync.WaitGroup
	var done atomic.Bool
	ledgers := make([]*ledger, 3)
	for i := range ledgers {
		ledgers[i] = &ledger{name: "w" + strconv.Itoa(i), rnd: rand.New(rand.NewPCG(uint64(i), 7)),
			shows: map[string]string{}}
	}
	// The duration of a command determines when to kill the daemon.
	var step time.Duration
	for _, l := range ledgers {
		step = max(step, l.begin(ctx, t, d.client))
	}
	for _, l := range ledgers {
		workers.Go(func() { l.work(ctx, t, d.client, &done) })
	}
	length := time.Duration(0)
	if s := os.Getenv("COPPICE_SOAK"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	killed := 0
	for end := time.Now().Add(length); killed < crashes || time.Now().Before(end); killed++ {
		time.Sleep(rand.N(100*time.Millisecond + min(6*step, time.Second)))
		if killed%10 == 9 {
			for _, l := range ledgers {
				killKeeper(t, l.id)
			}
		}
		d.kill()
		d.start()
		d.ready(ctx)
	}
	done.Store(true)
	workers.Wait()

	acknowledged := 0
	for _, l := range ledgers {
		l.check(ctx, t, d.client)
		l.told.check(ctx, t, d.client, l.name)
		acknowledged += len(l.shows)
	}
	r, err := d.client.Verify(ctx, "", nil)
	if err != nil || len(r.Damage) > 0 || r.Unfinalized > 0 {
		t.Errorf("verify: %+v, %v", r, err)
	}
	if _, err := d.client.GC(ctx, wire.GCRequest{}, nil); err != nil {
		t.Error(err)
	}
	if acknowledged < crashes/8 {
		t.Errorf("only %d snapshots were taken, too few for the test", acknowledged)
	}
	t.Logf("%d crashes, %d acknowledged snapshots", killed, acknowledged)
}

// ledger is what the daemon acknowledged to one client.
type ledger struct {
	name    string
	id      string
	told    acknowledged
	rnd     *rand.Rand
	shows   map[string]string // content of the file by snapshot
	last    string            // the latest snapshot, or the one that HEAD was moved to
	n       int
	refused error // the last error, for debugging
}

const file = "~/ledger"

// begin creates the sandbox, and returns the duration of a command in it.
func (l *ledger) begin(ctx context.Context, t *testing.T, c *client.Client) time.Duration {
	sb, err := c.Create(ctx, wire.CreateRequest{Name: l.name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.id = sb.ID
	start := time.Now()
	if x, err := c.Exec(ctx, l.name, wire.ExecRequest{Cmd: []string{"true"}}, client.Streams{}); err != nil ||
		x.Code != 0 {
		t.Fatalf("first command: %+v, %v", x, err)
	}
	return time.Since(start)
}

// work writes, moves and forks, until done. Errors are expected: check verifies afterwards what was acknowledged.
func (l *ledger) work(ctx context.Context, t *testing.T, c *client.Client, done *atomic.Bool) {
	for !done.Load() && ctx.Err() == nil {
		if l.n > 3 && l.rnd.IntN(4) == 0 {
			l.move(ctx, t, c)
			continue
		}
		if l.rnd.IntN(10) == 0 {
			if r, err := c.Fork(ctx, l.name, wire.ForkRequest{}); err == nil {
				l.told.add("fork", r.Sandboxes[0].ID)
				_ = c.Remove(ctx, r.Sandboxes[0].Name, true) // a daemon that is killed meanwhile has no fork to remove
			}
			continue
		}
		l.n++
		text := fmt.Sprintf("%s %d", l.name, l.n)
		begun, script := "", "echo "+text+" >"+file
		if l.n%8 == 0 { // enough changes that the upper directory itself becomes the layer
			script += " && rm -rf ~/many && mkdir ~/many && cd ~/many && touch $(seq 600)"
		}
		x, err := c.Exec(ctx, l.name, wire.ExecRequest{Cmd: []string{"sh", "-c", script}},
			client.Streams{Started: func(s wire.Started) { begun = s.Exec; l.told.add("exec", begun) }})
		if err != nil {
			l.refused = err
			continue
		}
		l.told.add("exit", begun)
		if x.Changed {
			l.told.add("snapshot", x.Snapshot)
		}
		if x.Code == 128+9 { // its monitor was killed
			continue
		}
		if x.Code != 0 {
			t.Errorf("%s: exit code %d: %s", text, x.Code, x.Message)
			return
		}
		if x.Snapshot != "" && x.Changed {
			l.shows[x.Snapshot] = text
			l.last = x.Snapshot
		}
	}
}

func (l *ledger) move(ctx context.Context, t *testing.T, c *client.Client) {
	for id := range l.shows {
		r, err := c.Checkout(ctx, l.name, wire.CheckoutRequest{Node: id})
		if err != nil {
			if client.IsKind(err, client.KindNotFound) {
				t.Errorf("%s: acknowledged snapshot %s: %v", l.name, id, err)
			}
			return
		}
		l.last = r.Head
		l.told.add("rollback", id)
		if r.Kept != "" {
			l.told.add("snapshot", r.Kept)
		}
		return
	}
}

// check verifies every acknowledged snapshot.
func (l *ledger) check(ctx context.Context, t *testing.T, c *client.Client) {
	log, err := c.Log(ctx, l.name)
	if err != nil {
		t.Errorf("log of %s: %v", l.name, err)
		return
	}
	known := map[string]bool{}
	for _, n := range log.Nodes {
		known[n.ID] = true
	}
	looked := 0
	for id, text := range l.shows {
		if !known[id] {
			t.Errorf("%s: acknowledged snapshot %s is lost", l.name, id)
			continue
		}
		if looked++; looked > 15 {
			continue
		}
		if _, err := c.Checkout(ctx, l.name, wire.CheckoutRequest{Node: id}); err != nil {
			t.Errorf("%s: checkout of %s: %v", l.name, id, err)
			continue
		}
		var out strings.Builder
		x, err := c.Exec(ctx, l.name, wire.ExecRequest{Cmd: []string{"sh", "-c", "cat " + file}},
			client.Streams{Stdout: &out})
		if err != nil || x.Code != 0 || strings.TrimSpace(out.String()) != text {
			t.Errorf("%s: snapshot %s shows %q, want %q (%v)", l.name, id, out.String(), text, err)
		}
	}
}

// doomed is a daemon in its own process, which the test kills.
type doomed struct {
	t      *testing.T
	home   string
	args   []string // arguments of serve
	cmd    *exec.Cmd
	log    *os.File
	client *client.Client
}

func newDoomed(t *testing.T, args ...string) *doomed {
	home, err := os.MkdirTemp("", "crash")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(home + ".log")
	if err != nil {
		t.Fatal(err)
	}
	d := &doomed{t: t, home: home, args: args, log: log}
	d.client = client.New(client.Options{Dial: d.dial, Patience: time.Minute})
	d.start()
	t.Cleanup(func() {
		ctx := context.Background()
		if all, err := d.client.List(ctx); err == nil {
			for _, s := range all {
				_ = d.client.Remove(ctx, s.Name, true)
			}
		}
		d.client.Close()
		d.kill()
		_ = exec.CommandContext(ctx, "chmod", "-R", "u+rwx", home).Run()
		_ = os.RemoveAll(home)
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("log of the daemons:\n%s", text[max(0, len(text)-10_000):])
		}
		_ = os.Remove(log.Name())
	})
	return d
}

// dial waits until the daemon listens.
func (d *doomed) dial(ctx context.Context) (net.Conn, error) {
	for {
		c, err := client.DialSocket(ctx, daemon.SocketPath(d.home))
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (d *doomed) start() { d.startAs("coppice") }

// startAs starts the daemon with name as its argv[0].
func (d *doomed) startAs(name string) {
	d.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{name, "serve", "--home", d.home}, d.args...),
		Env: append(os.Environ(), "COPPICE_HOME="+d.home), Stderr: d.log,
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

// ready waits until the daemon accepts connections.
func (d *doomed) ready(ctx context.Context) {
	c, err := d.dial(ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	_ = c.Close()
}

// kill kills the daemon. For an unprivileged user the process that it started only waits for the daemon, and exits.
func (d *doomed) kill() {
	killed := false
	if pid, err := os.ReadFile(filepath.Join(d.home, "lock")); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(pid))); err == nil && n > 1 {
			if p, err := os.FindProcess(n); err == nil {
				killed = p.Kill() == nil
			}
		}
	}
	// The waiting process of an unprivileged user exits with the daemon, which accepts no connections by then.
	patience := 5 * time.Second
	if !killed { // it has not written its PID yet
		patience = 0
	}
	this := d.cmd.Process // a late timer must not kill the next process
	late := time.AfterFunc(patience, func() { _ = this.Kill() })
	defer late.Stop()
	_ = d.cmd.Wait()
}
