//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

// keeper owns one box. Lock order: freezing, spawning, mu, then the mu of an execution.
type keeper struct {
	config   plan.Config
	enforced plan.Enforced
	started  time.Time
	link     *initlink.Link
	init     *child
	helpers  helpers
	exe      *os.File        // the program of init, during the start
	inner    shown           // the program of PID 1 in tier gvisor
	client   shown           // the program coppice in tier gvisor, if the sandbox shows it
	hold     *os.File        // the root's mounts, so that the last of them is unmounted when the keeper exits
	owners   protocol.Owners // how stored ids appear in the root
	proc     *os.File        // /proc/PID of init; never refers to a later process with that pid
	user     protocol.InsideUser
	group    *cgroup.Group // nil without one
	shares   cgroup.Shares // limits that version 1 enforces
	gate     *gateway      // started only if Config.Gated
	wire     [2]*os.File   // in tier gvisor: both ends of the gate's link
	netns    *os.File      // otherwise, with a gate: its link lives as long, so that the gate can read all packets
	decoys   *decoys       // nil if there are none
	refused  *refused      // nil if refusals are not reported
	listener *net.UnixListener

	// Bounds on how long init may take to become ready and to answer. Outside of tests they are limit.StartSeconds,
	// limit.UnansweredStopSeconds, limit.RekeySeconds, limit.InitAnswerSeconds and limit.SaveSeconds.
	startPatience, stopPatience, rekeyPatience, answerPatience, savePatience time.Duration

	freezing chan struct{} // one token: held from freeze to thaw
	rekeying sync.Mutex
	apart    *quarantine // guarded by rekeying; nil except in a resumed box that was not released yet
	asleep   *os.File    // guarded by rekeying; the gate's end of the link while the gate waits for a packet, else nil
	trusted  bool        // guarded by rekeying after the start: the inside trusts the authority of the gate
	secrets  atomic.Pointer[plan.Secrets]
	stirred  stirs
	stopping chan struct{} // closed when a stop has begun, which thaws the box
	iced     atomic.Bool   // init is frozen with its control group, or about to be
	asking   sync.Mutex    // held from a request to init to its answer
	answers  chan initlink.Message
	asked    atomic.Uint32 // the initlink.Kind of the pending request; 0 for none
	misses   sync.Once     // reports the first message that init did not know
	looks    looks
	programs programRing
	spawning sync.Mutex // held while a Spawn is queued and sent
	spawns   atomic.Uint64
	buffers  buffers      // for the output of commands
	selves   atomic.Int64 // connections to the sandbox's own socket

	mu       sync.Mutex
	order    []*execution // guarded by mu; commands that were sent to init and not yet answered
	execs    map[string]*execution
	byPID    map[int]*execution
	conns    map[net.Conn]bool
	busy     int                   // calls in progress
	ending   bool                  // no new exec is accepted
	paused   *protocol.FrozenReply // state of the box when it was paused; nil if it is not paused
	why      string                // reason of the end, unless the box was idle or stopped by a caller
	idleFrom time.Time

	served bool          // receive runs or has run
	over   chan struct{} // closed when init is gone and its last messages are handled
	ended  chan struct{} // closed when all processes inside are gone
	stop   chan struct{} // closed when the keeper must exit
	once   sync.Once
	calls  sync.WaitGroup
	own    sync.WaitGroup // the keeper's own goroutines
}

// Main runs the keeper that box.Start started, and returns the exit code of the process.
func Main() int {
	_ = os.WriteFile("/proc/self/comm", []byte(protocol.Argv0), 0) // for ps
	ready := os.NewFile(protocol.ReadyFD, "ready")
	unix.CloseOnExec(protocol.ReadyFD)
	unix.CloseOnExec(protocol.LockFD) // held as long as it is open: until the keeper exits
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	k, err := newKeeper(ctx)
	o := protocol.Outcome{Err: protocol.FailureOf(fault.OfHost(err))}
	if err == nil {
		o.Enforced = k.enforced
	}
	if e := json.NewEncoder(ready).Encode(o); err == nil {
		err = errors.Join(e, ctx.Err()) // the caller did not get the answer, or has gone
		if err != nil {
			k.end()
		}
	}
	stop()
	ready.Close() // the parent may kill this process now
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
		return 1
	}
	k.serve()
	return 0
}

// newKeeper starts a box and returns its keeper, unless ctx ends first.
func newKeeper(ctx context.Context) (*keeper, error) {
	unix.CloseOnExec(protocol.ConfigFD)
	f := os.NewFile(protocol.ConfigFD, "config")
	var c plan.Config
	err := json.NewDecoder(f).Decode(&c)
	f.Close()
	if err != nil {
		return nil, fault.New(fault.Internal, "cannot read the plan").Because(err)
	}
	if c.Version != plan.Version {
		return nil, fault.New(fault.Version, "unsupported plan version %[2]d: must be %[1]d", plan.Version, c.Version).
			WithHint("coppice was replaced while the daemon ran; restart the daemon: coppice serve")
	}
	if c.Confined() {
		if err := leaveToOwner(); err != nil {
			return nil, err
		}
	}
	k := blankKeeper(c)
	if k.helpers, err = takeHelpers(c); err != nil {
		return nil, err
	}
	if err := k.buildInTime(ctx); err != nil {
		k.removeGroups()
		return nil, err
	}
	if err := errors.Join(weaker(c, k.enforced), without(c, k.enforced)); err != nil {
		k.end()
		return nil, err
	}
	if k.listener, err = listen(c.RunDir); err != nil {
		k.end()
		return nil, fault.Wrap(err, "listen in %s", c.RunDir)
	}
	return k, nil
}

// blankKeeper returns a keeper without a box.
func blankKeeper(c plan.Config) *keeper {
	k := &keeper{
		config: c, started: time.Now(), idleFrom: time.Now(), gate: newGateway(),
		startPatience: limit.StartSeconds * time.Second,
		stopPatience:  limit.UnansweredStopSeconds * time.Second, rekeyPatience: limit.RekeySeconds * time.Second,
		answerPatience: limit.InitAnswerSeconds * time.Second, savePatience: limit.SaveSeconds * time.Second,
		freezing: make(chan struct{}, 1), answers: make(chan initlink.Message, 1),
		execs: map[string]*execution{}, byPID: map[int]*execution{}, conns: map[net.Conn]bool{},
		over: make(chan struct{}), ended: make(chan struct{}), stop: make(chan struct{}), stopping: make(chan struct{}),
	}
	k.secrets.Store(&c.Secrets)
	return k
}

func listen(runDir string) (*net.UnixListener, error) {
	return unixsock.Listen(runDir, protocol.SocketName, 0o600)
}

// serve runs until the box has been stopped, has been idle for long enough, or its init is gone. When it returns, this
// process is the only one left.
func (k *keeper) serve() {
	k.served = true
	k.own.Go(k.receive)
	k.own.Go(k.watchIdle)
	if k.config.Gated() {
		k.own.Go(k.watchGate)
	}
	if k.decoys != nil {
		k.own.Go(k.reportTouches)
	}
	k.own.Go(func() {
		for {
			conn, err := k.listener.AcceptUnix()
			if err != nil {
				return
			}
			k.calls.Go(func() { k.answer(conn) })
		}
	})
	select {
	case <-k.stop:
	case <-k.over:
	}
	k.end()
	// Attached clients get the exit of their exec. A client that does not read it is disconnected.
	done := make(chan struct{})
	go func() { k.calls.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Second):
		k.mu.Lock()
		for c := range k.conns {
			c.Close()
		}
		k.mu.Unlock()
		<-done
	}
	k.own.Wait()
	k.link.Close()
}

// end kills init, and with it everything inside, waits for it, and gives every running exec a result. It is called
// once.
func (k *keeper) end() {
	k.mu.Lock()
	k.ending = true
	k.mu.Unlock()
	if k.init != nil {
		k.endInit()
	}
	if k.listener != nil { // a new client must start another keeper
		k.listener.Close()
		_ = os.Remove(filepath.Join(k.config.RunDir, protocol.SocketName))
	}
	k.quit() // no caller waits for an answer any longer
	k.closeGate()
	k.netns.Close() // returns ErrInvalid for nil
	if k.link != nil {
		k.link.Shutdown()
	}
	if k.served {
		<-k.over // init may have reported starts and exits until it exited
	}
	// A client that stopped the box must find all of its reports.
	k.refused.close()
	if err := k.savePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: store the record of programs:", err)
	}
	close(k.ended)
	k.endExecs()
	k.removeGroups()
}

// removeGroups removes the control groups of the box, and their list.
func (k *keeper) removeGroups() {
	k.group.Remove()
	k.shares.Remove()
	if err := cgroup.RemoveLeft(k.config.RunDir, time.Second); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
	}
}

// endExecs gives every exec without a result one. Init may have been killed between starting a command and reporting
// it. If the box was ended because of what commands did, a command that may have started counts as started, since its
// caller would otherwise retry the possible cause. Otherwise it counts as not started.
func (k *keeper) endExecs() {
	k.mu.Lock()
	defer k.mu.Unlock()
	killed := wire.Exit{Code: 128 + int(unix.SIGKILL), Signal: "KILL", Message: "the sandbox was stopped"}
	unborn := initlink.Spawned{Err: &wire.Error{Kind: string(fault.Unavailable), Message: killed.Message}}
	if k.why != "" {
		killed.Message += ": " + k.why
		unborn = initlink.Spawned{Code: killed.Code, Message: killed.Message}
	}
	for _, e := range k.execs {
		e.out.drop()
		x := killed
		x.Denials = e.denials // receive has returned
		e.finish(x)
	}
	for _, e := range k.order {
		e.born <- unborn
	}
	k.order = nil
}

// quit makes serve return.
func (k *keeper) quit() { k.once.Do(func() { close(k.stop) }) }

// halt ends the box at once. why is reported to the callers that wait for a command.
func (k *keeper) halt(why string) {
	k.mu.Lock()
	k.ending = true
	if k.why == "" {
		k.why = why
	}
	k.mu.Unlock()
	k.quit() // serve kills init, and with it all processes
}
