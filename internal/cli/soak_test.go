//go:build linux

package cli_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/looptest"
)

// TestSoak changes files in every way under "coppice run", while the sandbox is rewound and forked, its old snapshots
// are removed, and its daemon is killed, at random. Afterwards every acknowledged snapshot exists, verifies, and has
// a tree that the writer had created: to the step, and to the byte of an incomplete step. COPPICE_SOAK sets the
// duration, as in "10m".
func TestSoak(t *testing.T) {
	length := 40 * time.Second
	switch { // checking each snapshot takes as long again, and longer with the race detector
	case testing.Short():
		length = 8 * time.Second
	case looptest.Race:
		length = 20 * time.Second
	}
	if s := os.Getenv("COPPICE_SOAK"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, driver := range []string{"overlay", "copy"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			s := newSoak(t, driver)
			s.run(length)
			s.checkAll()
			t.Logf("%+v", s.count)
		})
	}
}

// soaking is a sandbox whose writer never exits, and what the daemon acknowledged.
type soaking struct {
	t     *testing.T
	d     *doomed
	ctx   context.Context
	can   []string
	rnd   *rand.Rand
	told  map[string]string // acknowledged snapshots, with the content of besideFile
	count tally
}

// tally counts events.
type tally struct{ Snapshots, Rollbacks, Forks, Kills, Refused, Dropped int }

const (
	soaked     = "soaked"
	besideFile = "/beside/f"
	unknown    = "?"
)

func newSoak(t *testing.T, driver string) *soaking {
	s := &soaking{t: t, d: newDoomed(t), rnd: rand.New(rand.NewPCG(rand.Uint64(), 1)), told: map[string]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s.ctx = ctx
	base := t.TempDir()
	if driver != "overlay" {
		s.can = append(s.can, "hard")
	}
	if unix.Setxattr(base, "user.coppice", []byte("y"), 0) == nil {
		s.can = append(s.can, "attrs")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(libraries(exe), exe, "/bin/sh", "/bin/cat") {
		to := filepath.Join(base, f)
		if f == exe {
			to = filepath.Join(base, "bin", "soak")
		}
		s.give(f, to)
	}
	for _, lib := range append(libraries("/bin/sh"), libraries("/bin/cat")...) {
		s.give(lib, filepath.Join(base, lib))
	}
	for _, dir := range []string{"work", "state", "beside", "etc", "root", "tmp"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.d.client.Create(ctx, wire.CreateRequest{
		Name: soaked, From: wire.Source{Kind: wire.SourceDir, Path: base}, Driver: driver, User: "root",
		Env: []string{"GORACE=atexit_sleep_ms=0", "COPPICE_EXEC_PATH=" + os.Getenv("COPPICE_EXEC_PATH")},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.start()
	return s
}

// give copies a file of the host into the base.
func (s *soaking) give(from, to string) {
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// start starts the writer as the supervised command.
func (s *soaking) start() {
	run, err := s.d.client.Run(s.ctx, soaked, wire.RunRequest{
		Cmd: append([]string{"/bin/soak", "write"}, s.can...), Capture: wire.Capture{QuietMS: 50, MaxMS: 500},
	})
	if err == nil && run.Exit != nil {
		s.t.Fatalf("the writer did not start: %+v", run.Exit)
	}
	if !s.fine("run", err) {
		s.t.Logf("could not start the writer: %v", err)
	}
}

// run disturbs the sandbox for a duration.
func (s *soaking) run(length time.Duration) {
	var done atomic.Bool
	var killer sync.WaitGroup
	killer.Go(func() {
		for !done.Load() {
			time.Sleep(rand.N(4 * time.Second))
			s.d.kill()
			s.d.start()
			s.d.ready(s.ctx)
			s.count.Kills++
		}
	})
	defer killer.Wait()
	defer done.Store(true)
	for end := time.Now().Add(length); time.Now().Before(end) && !s.t.Failed(); {
		time.Sleep(rand.N(600 * time.Millisecond))
		s.alive()
		if ids := s.list(); len(ids) > 0 {
			s.trouble(ids)
		}
	}
}

// alive verifies that the writer runs.
func (s *soaking) alive() {
	st, err := s.d.client.Status(s.ctx, soaked)
	switch {
	case !s.fine("status", err), err != nil:
	case st.Run == nil: // the daemon was killed before it started the command
		s.start()
	case st.Run.Exit != nil:
		var why strings.Builder
		_, err := s.d.client.Exec(s.ctx, soaked, wire.ExecRequest{Cmd: []string{"/bin/cat", soakError}},
			client.Streams{Stdout: &why, Stderr: &why})
		s.t.Errorf("the writer exited: %+v: %s, %v", st.Run.Exit, why.String(), err)
		s.look("HEAD", "")
	}
}

// fine returns false for an error that is expected while daemons are killed, and reports other errors.
func (s *soaking) fine(what string, err error) bool {
	if err == nil {
		return true
	}
	s.count.Refused++
	// A daemon that has collected the result of a command may be killed before it returns it.
	if client.IsKind(err, client.KindUnavailable) || strings.Contains(err.Error(), "its result was collected") {
		return false
	}
	s.t.Errorf("%s: %v", what, err)
	return false
}

// list returns the snapshots, newest first, and verifies that the acknowledged ones are among them.
func (s *soaking) list() (ids []string) {
	log, err := s.d.client.Log(s.ctx, soaked)
	if !s.fine("log", err) {
		return nil
	}
	there := map[string]bool{}
	for _, n := range log.Nodes {
		there[n.ID] = true
		ids = append(ids, n.ID)
	}
	for id := range s.told {
		if !there[id] {
			s.t.Errorf("acknowledged snapshot %s is lost", id)
			delete(s.told, id)
		}
	}
	for _, id := range ids {
		if _, ok := s.told[id]; !ok {
			s.tell(id, unknown)
		}
	}
	return ids
}

func (s *soaking) tell(id, text string) {
	if _, ok := s.told[id]; !ok {
		s.count.Snapshots++
	}
	s.told[id] = text
}

// trouble performs a random operation on the sandbox.
func (s *soaking) trouble(ids []string) {
	c := s.d.client
	id := ids[s.rnd.IntN(len(ids))]
	switch s.rnd.IntN(20) {
	case 0, 1, 2, 3, 4:
		r, err := c.Checkout(s.ctx, soaked, wire.CheckoutRequest{Node: id})
		s.moved("checkout", r, err)
	case 5:
		r, err := c.Undo(s.ctx, soaked, wire.UndoRequest{N: 1 + s.rnd.IntN(3)})
		if !client.IsKind(err, client.KindInvalid) && !client.IsKind(err, client.KindNotFound) {
			s.moved("undo", r, err)
		}
		if r, err = c.Redo(s.ctx, soaked, wire.RedoRequest{}); !client.IsKind(err, client.KindInvalid) &&
			!client.IsKind(err, client.KindNotFound) {
			s.moved("redo", r, err)
		}
	case 6, 7, 8:
		s.look(id, s.told[id])
	case 9, 10:
		s.look("", "")
	case 11, 12, 13, 14:
		text := fmt.Sprint("text", s.rnd.Uint64())
		x, err := c.Exec(s.ctx, soaked, wire.ExecRequest{Cmd: []string{"/bin/sh", "-c", "echo " + text + " >" + besideFile}},
			client.Streams{})
		switch {
		case !s.fine("exec", err):
		case x.Code == 128+9: // rewound meanwhile
		case x.Code != 0:
			s.t.Errorf("exec: %+v", x)
		case x.Snapshot != "" && x.Changed:
			s.tell(x.Snapshot, text)
		}
	case 15, 16:
		if r, err := c.Commit(s.ctx, soaked, "by hand"); s.fine("commit", err) {
			s.tell(r.Node, unknown)
		}
	case 17:
		_, err := c.SetTag(s.ctx, soaked, fmt.Sprint("tag", s.rnd.IntN(5)), id)
		s.fine("tag", err)
	case 18:
		s.thin()
	case 19:
		r, err := c.Verify(s.ctx, soaked, nil)
		if s.fine("verify", err) && len(r.Damage) > 0 {
			s.t.Errorf("verify: %+v", r.Damage)
		}
	}
}

func (s *soaking) moved(what string, r wire.MoveResult, err error) {
	if !s.fine(what, err) {
		return
	}
	s.count.Rollbacks++
	if r.Kept != "" {
		s.tell(r.Kept, unknown)
	}
}

// thin removes old snapshots.
func (s *soaking) thin() {
	r, err := s.d.client.GC(s.ctx, wire.GCRequest{Keep: wire.Keep{Last: 40}}, nil)
	if !s.fine("gc", err) {
		// Which snapshots were removed is unknown.
		s.told = map[string]string{}
		return
	}
	s.count.Dropped += len(r.Removed)
	for _, id := range r.Removed {
		delete(s.told, id)
	}
}

// look forks the sandbox, and compares the trees of the forks with the model. A ref of "" is the live state.
func (s *soaking) look(ref, text string) {
	n := 1 + s.rnd.IntN(2)
	r, err := s.d.client.Fork(s.ctx, soaked, wire.ForkRequest{At: ref, N: n})
	if !s.fine("fork "+ref, err) {
		return
	}
	s.count.Forks += n
	for _, f := range r.Sandboxes {
		s.compare(f, text)
	}
}

// compare runs the check in a fork, and removes the fork.
func (s *soaking) compare(f wire.Sandbox, text string) {
	var out strings.Builder
	x, err := s.d.client.Exec(s.ctx, f.Name, wire.ExecRequest{Cmd: append([]string{"/bin/soak", "check"}, s.can...)},
		client.Streams{Stdout: &out, Stderr: &out})
	if s.fine("check "+f.Name, err) && x.Code != 0 {
		made, _ := s.d.client.Show(s.ctx, f.Name, "HEAD~1")
		s.t.Errorf("%+v: exit code %d: %s%s", made.Snapshot, x.Code, x.Message, out.String())
	}
	if text != "" && text != unknown {
		out.Reset()
		x, err := s.d.client.Exec(s.ctx, f.Name, wire.ExecRequest{Cmd: []string{"/bin/cat", besideFile}},
			client.Streams{Stdout: &out, Stderr: &out})
		if s.fine("cat in "+f.Name, err) && (x.Code != 0 || strings.TrimSpace(out.String()) != text) {
			s.t.Errorf("snapshot %s has %q in besideFile, want %q", f.Head, out.String(), text)
		}
	}
	s.fine("rm "+f.Name, s.d.client.Remove(s.ctx, f.Name, true))
}

// checkAll checks every snapshot after the writer was stopped and the daemon was restarted a last time.
func (s *soaking) checkAll() {
	c := s.d.client
	if _, err := c.Stop(s.ctx, soaked); err != nil {
		s.t.Fatal(err)
	}
	refused := s.count.Refused
	s.d.kill()
	s.d.start()
	s.d.ready(s.ctx)
	for _, id := range s.list() {
		s.look(id, s.told[id])
	}
	r, err := c.Verify(s.ctx, "", nil)
	if err != nil || len(r.Damage) > 0 || r.Unfinalized > 0 {
		s.t.Errorf("verify: %+v, %v", r, err)
	}
	if _, err := c.GC(s.ctx, wire.GCRequest{}, nil); err != nil {
		s.t.Error(err)
	}
	if s.count.Refused != refused {
		s.t.Error("an operation failed while no daemon was killed")
	}
	if s.count.Snapshots < 5 || s.count.Kills == 0 {
		s.t.Errorf("%+v: too few events for the test", s.count)
	}
}
