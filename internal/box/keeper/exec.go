//go:build linux && (amd64 || arm64)

package keeper

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
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
)

const (
	// lingering is how long the end of a command waits, once all that the command wrote has been read, while other
	// processes hold its pipes open.
	lingering = 50 * time.Millisecond
	// exitTimeout is the exit code of a command that exceeded its time, as with timeout(1).
	exitTimeout = 124
	// exitOutput is the exit code of a command that exceeded the limit of output: as if killed by SIGXFSZ, which is
	// sent for files that become too large.
	exitOutput = 128 + int(unix.SIGXFSZ)
)

// execution is one command.
type execution struct {
	k        *keeper
	id       string
	cmd      []string
	env      []string // the command's own environment
	kept     bool     // supervised: outlives its clients, and several may attach
	tty      bool
	capture  wire.Capture // as the command was started with; the next daemon reads it here
	started  time.Time
	before   cgroup.Hits // counts of the box's limits when the command started
	born     chan initlink.Spawned
	pid      int      // set before Started is sent
	denials  int64    // number of refused calls; used by the goroutine of receive
	master   *os.File // nil without a terminal
	out      *output
	ready    chan struct{} // closed when pipes is complete
	pipes    []*pipe
	pumps    sync.WaitGroup
	gone     chan struct{} // closed when the command has ended
	drained  chan struct{} // closed when all output has been read
	finished chan struct{} // closed when exit is set
	hungUp   atomic.Bool   // the master is closed or is about to be

	mu     sync.Mutex
	timer  *time.Timer
	why    string            // why the keeper ended it: outOfTime or a limit; "" if it exited or a client ended it
	conns  map[net.Conn]bool // attached clients: at most one, unless kept
	size   wire.Size         // size of the terminal
	in     *input            // nil without stdin; set before a client attaches
	exit   *wire.Exit
	at     time.Time  // time of the exit
	result *wire.Exit // the result to report once the output is complete
	alone  bool       // no process was left when the command was reaped
	cut    bool       // the box was being stopped when the command ended
	used   wire.Resources
}

// outOfTime is the reason if a command exceeded the time that its caller gave it.
const outOfTime = "timeout"

func newExecID() string {
	var b [5]byte
	_, _ = rand.Read(b[:])
	return "x" + hex.EncodeToString(b[:])
}

// exec handles an exec stream. A nil error means that the stream has sent its last frame, or that its reader is gone.
func (k *keeper) exec(conn *net.UnixConn, req wire.ExecRequest) error {
	if req.Attach != "" {
		k.mu.Lock()
		e := k.execs[req.Attach]
		k.mu.Unlock()
		if e == nil {
			return fault.New(fault.NotFound, "exec %s has exited and its result was collected", req.Attach)
		}
		return e.attend(conn, req)
	}
	e, err := k.start(req)
	if err != nil {
		return err
	}
	return e.attend(conn, wire.ExecRequest{})
}

// start starts the command. A command that cannot be run is returned as an execution that has ended.
func (k *keeper) start(req wire.ExecRequest) (*execution, error) {
	if req.ID == "" {
		req.ID = newExecID()
	}
	e := k.newExecution(req)
	var ends pipeEnds
	defer func() { closeAll(ends.theirs) }()
	if !req.TTY {
		err := ends.open(req.Stdin)
		if err == nil && k.config.Confined() && k.config.Tier != plan.TierGvisor { // whose kernel has pipes of its own
			err = ends.giveTo(k.user)
		}
		if err != nil {
			closeAll(ends.ours)
			return nil, err
		}
	}
	env := slices.Concat(k.secrets.Load().Env, req.Env) // the last value of a variable wins
	spawn := initlink.Spawn{Exec: e.id, Cmd: req.Cmd, Env: env, Dir: req.Dir, TTY: req.TTY, Size: req.Size}
	if err := k.submit(e, spawn, ends.theirs); err != nil {
		closeAll(ends.ours)
		return nil, err
	}
	files := ends.files()
	s := <-e.born
	if s.PID == 0 {
		for _, f := range files {
			f.Close()
		}
		if s.Err != nil {
			k.drop(e.id)
			return nil, (*protocol.Failure)(s.Err).Fault()
		}
		close(e.drained)
		return e, nil // the command has ended already
	}
	in := e.connect(files)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.in = in
	switch {
	case e.exit != nil: // it has ended already
		if in != nil {
			in.close()
		}
	default:
		if ms, why := k.patience(req); ms > 0 {
			e.timer = time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { e.end(why) })
		}
	}
	return e, nil
}

// submit registers a command and asks init to start it. After an error it is not registered. e.born reports whether it
// was started.
func (k *keeper) submit(e *execution, spawn initlink.Spawn, pipes []int) error {
	k.spawning.Lock()
	if err := k.register(e); err != nil {
		k.spawning.Unlock()
		return err
	}
	err := k.link.Send(initlink.MsgSpawn, spawn, pipes...)
	k.spawning.Unlock()
	switch {
	case initlink.NotPassed(err):
		k.notSpawned(e, err)
	case err != nil:
		k.quit() // init is gone; end answers in its place
	}
	return nil
}

// register adds a command to those of the box unless the box accepts none. k.spawning is held.
func (k *keeper) register(e *execution) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ending:
		return fault.New(fault.Unavailable, "the sandbox is being stopped")
	case k.paused != nil:
		return errPaused()
	case k.execs[e.id] != nil: // requested by a daemon that was killed, and by the next one
		return fault.New(fault.Exists, "exec %s already exists", e.id)
	}
	k.order = append(k.order, e)
	k.execs[e.id] = e
	return nil
}

// newExecution returns a command that has not started.
func (k *keeper) newExecution(req wire.ExecRequest) *execution {
	e := &execution{
		k: k, id: req.ID, cmd: req.Cmd, kept: req.Keep, tty: req.TTY, capture: req.Capture, started: time.Now(),
		before: k.hits(),
		conns:  map[net.Conn]bool{}, out: newOutput(&k.buffers),
		born: make(chan initlink.Spawned, 1), ready: make(chan struct{}),
		gone: make(chan struct{}), drained: make(chan struct{}), finished: make(chan struct{}),
	}
	e.out.shared, e.out.limit = req.Keep, k.config.Limits.Output
	e.out.record.keep = min(k.config.Record, plan.MaxRecord)
	e.env = req.Env
	if req.Size != nil {
		e.size = *req.Size
	}
	return e
}

// patience returns how long a command may run, and the reason to report when it is ended: the caller's timeout or the
// limit of the box, whichever is shorter. 0 means no limit.
func (k *keeper) patience(req wire.ExecRequest) (ms int64, why string) {
	if limit := k.config.Limits.TimeMS; limit > 0 && (req.TimeoutMS <= 0 || limit <= req.TimeoutMS) {
		return limit, wire.LimitTime
	}
	return req.TimeoutMS, outOfTime
}

// spawned pairs init's answer with the oldest request. It runs in the goroutine that also dispatches exits, so a
// command is known before it exits.
func (k *keeper) spawned(s initlink.Spawned, fds []int) {
	k.spawns.Add(1)
	k.mu.Lock()
	if len(k.order) == 0 {
		k.mu.Unlock()
		initlink.Message{FDs: fds}.Close()
		return
	}
	e := k.order[0]
	k.order = k.order[1:]
	want := 0
	if e.tty && s.PID != 0 {
		want = 1
	}
	if len(fds) != want { // init can no longer be trusted
		k.order = slices.Insert(k.order, 0, e) // endExecs sends the answer
		k.mu.Unlock()
		initlink.Message{FDs: fds}.Close()
		k.halt(fmt.Sprintf("init sent %d descriptors, expected %d", len(fds), want))
		return
	}
	if s.PID != 0 {
		e.pid = s.PID
		k.byPID[s.PID] = e
		k.refused.started(s.PID, e.id)
	}
	k.mu.Unlock()
	if len(fds) == 1 {
		_ = unix.SetNonblock(fds[0], true)
		e.master = os.NewFile(uintptr(fds[0]), "terminal")
	}
	if s.PID == 0 && s.Err == nil { // set now, or the end of the box could be reported instead
		e.finish(wire.Exit{Code: s.Code, Message: limit.Cut(s.Message, limit.KeeperText)})
	}
	e.born <- s
}

// notSpawned answers a request that was not sent to init.
func (k *keeper) notSpawned(e *execution, err error) {
	k.mu.Lock()
	asked := slices.Contains(k.order, e)
	k.order = slices.DeleteFunc(k.order, func(o *execution) bool { return o == e })
	k.mu.Unlock()
	if !asked { // init answered without a request, or the box has ended
		return
	}
	f := protocol.FailureOf(fault.OfHost(fault.Wrap(err, "open the pipes of the command")))
	e.born <- initlink.Spawned{Err: (*wire.Error)(f)}
}

func (k *keeper) drop(id string) {
	k.mu.Lock()
	delete(k.execs, id)
	k.mu.Unlock()
}

// over reports whether the command has ended.
func (e *execution) over() bool {
	select {
	case <-e.gone:
		return true
	case <-e.k.stop:
		return true
	default:
		return false
	}
}

// exited handles the exit of the command.
func (e *execution) exited(end initlink.Exited) {
	ws := unix.WaitStatus(end.Status)
	x := wire.Exit{Code: ws.ExitStatus(), Hits: e.k.hits().Since(e.before), Denials: e.denials}
	if ws.Signaled() {
		x.Code = 128 + int(ws.Signal())
		x.Signal = strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")
	}
	e.mu.Lock()
	if e.timer != nil {
		e.timer.Stop()
	}
	switch e.why {
	case outOfTime:
		x.Code, x.TimedOut = exitTimeout, true
	case wire.LimitTime:
		x.Code, x.TimedOut, x.Limit = exitTimeout, true, wire.LimitTime
		most := time.Duration(e.k.config.Limits.TimeMS) * time.Millisecond
		x.Message = "it exceeded the sandbox's limit for a command, time=" + most.String()
	}
	e.result, e.alone, e.cut, e.used = &x, end.Alone, e.k.beingStopped(), end.Used
	e.mu.Unlock()
	close(e.gone)
	select {
	case <-e.drained:
		e.finish(x)
		return
	default:
	}
	// In a separate goroutine: it waits, and init's other messages must not.
	e.k.own.Go(func() {
		// The command's own output is delivered however slowly it is read; other writers of the same pipe are read
		// briefly.
		select {
		case <-e.ready:
			for i, p := range e.pipes {
				if i < len(end.Written) {
					e.awaitWritten(p, end.Written[i], e.relayed(p, end.Written[i]))
				} else {
					e.awaitWritten(p, p.outstanding(), p.outstanding)
				}
			}
		case <-e.k.stop:
		}
		select {
		case <-e.drained:
		case <-time.After(lingering):
		case <-e.k.stop:
		}
		e.finish(x)
	})
}

// finish sets the result once.
func (e *execution) finish(x wire.Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit != nil {
		return
	}
	if e.result != nil { // the first call wins
		x = *e.result
		// This includes a command that exited before all of its output was read: the reported output is then
		// incomplete.
		if !x.TimedOut && e.out.exceeded() {
			x.Code, x.Limit = exitOutput, wire.LimitOutput
			x.Message = "it exceeded the sandbox's limit for a command, output=" +
				strconv.FormatInt(e.k.config.Limits.Output, 10) + "; its output is truncated"
		}
	} else {
		e.cut = e.k.beingStopped()
	}
	e.exit, e.at = &x, time.Now()
	close(e.finished)
	if e.timer != nil {
		e.timer.Stop()
	}
	e.out.finish()
	if e.in != nil {
		e.in.close()
	}
}

// forgetEnded drops an exec that has ended.
func (k *keeper) forgetEnded(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.execs[id]; e != nil {
		if _, ended := e.ended(); ended {
			delete(k.execs, id)
		}
	}
}

// await waits until an exec exits and reports its result, after its recorded output. It returns early if the
// caller disconnects.
func (k *keeper) await(conn *net.UnixConn, id string) (protocol.Exit, error) {
	k.mu.Lock()
	e := k.execs[id]
	k.mu.Unlock()
	if e == nil {
		return protocol.Exit{}, fault.New(fault.NotFound, "exec %s has exited and its result was collected", id)
	}
	left := make(chan struct{})
	k.calls.Go(func() {
		_, _, _ = wire.ReadFrame(conn, nil) // returns when the connection ends
		close(left)
	})
	select {
	case <-e.finished:
	case <-left:
		return protocol.Exit{}, fault.New(fault.Cancelled, "the client disconnected")
	}
	e.out.awaitReaders() // the caller may react by stopping the box
	if err := e.sendRecorded(conn); err != nil {
		return protocol.Exit{}, fault.New(fault.Cancelled, "the client disconnected").Because(err)
	}
	return e.reported(), nil
}

// reported returns the result of a command that has exited.
func (e *execution) reported() protocol.Exit {
	e.mu.Lock()
	defer e.mu.Unlock()
	return protocol.Exit{Exit: *e.exit, Alone: e.alone, Stopped: e.cut, TTY: e.tty, Resources: e.used, Env: e.env}
}

func (e *execution) ended() (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.exit != nil
}

func (e *execution) status() protocol.ExecStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return protocol.ExecStatus{
		ID: e.id, PID: e.pid, Cmd: cutArgs(e.cmd), Started: e.started, Attached: len(e.conns) > 0, Exit: e.exit,
		Kept: e.kept, TTY: e.tty, Stdin: e.in != nil, Capture: e.capture,
	}
}

// cutArgs returns the first limit.StatusArgs bytes of a command. If it leaves something out, the last argument ends in
// "...".
func cutArgs(cmd []string) []string {
	room := limit.StatusArgs
	for i, arg := range cmd {
		if len(arg)+len(`"",`) > room {
			return append(slices.Clone(cmd[:i]), limit.Cut(arg, max(0, room-len(`"",...`)))+"...")
		}
		room -= len(arg) + len(`"",`)
	}
	return cmd
}

// end ends a command for a reason, unless it has ended or is being ended for another reason.
func (e *execution) end(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit == nil && e.result == nil && e.why == "" {
		e.why = why
		e.terminate()
	}
}

// hits counts how often the limits of the box's groups were reached.
func (k *keeper) hits() cgroup.Hits { return k.group.Hits().Plus(k.shares.Hits()) }
