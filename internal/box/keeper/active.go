//go:build linux && (amd64 || arm64)

package keeper

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"net"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Polling intervals for whether a process has run. They grow while none has, but remain short enough that a change is
// noticed by the time it must be captured, or shortly after. After half a minute the interval is a second, since every
// poll wakes this process. Output of a command is noticed at once.
const (
	lookBusy = 25 * time.Millisecond
	lookIdle = 250 * time.Millisecond
	lookLong = time.Second
	longIdle = 30 * time.Second

	looksPerClock = 10
)

// lookAfter returns the wait until the next poll if a process was last seen running so long ago: a tenth of that time,
// within limits.
func lookAfter(quiet time.Duration) time.Duration {
	if quiet > longIdle {
		return lookLong
	}
	return min(max(quiet/10, lookBusy), lookIdle)
}

// observe marks a call as an observer, which does not keep the box busy, until done is called.
func (k *keeper) observe() (done func()) {
	add := func(n int) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.busy += n
	}
	add(-1)
	return func() { add(1) }
}

// activity waits until a clock of the box differs from since. It also returns when the caller disconnects. least is the
// least interval between two polls; if it is 0, output of a command is noticed at once.
func (k *keeper) activity(
	conn net.Conn, since uint64, clock func() (uint64, error), least time.Duration,
) (uint64, error) {
	defer k.observe()()
	var stirred <-chan struct{}
	if least == 0 {
		var forget func()
		stirred, forget = k.stirred.listen()
		defer forget()
	}
	left := make(chan struct{})
	k.calls.Go(func() {
		_, _, _ = wire.ReadFrame(conn, nil) // returns when the connection ends
		close(left)
	})
	var last pulse
	for from, looks := time.Now(), 0; ; looks++ {
		// The kernel's lists of processes may miss some, so the clock is checked regularly as well.
		if k.isPaused() == nil && (looks%looksPerClock == 0 || !k.still(last)) {
			last = k.pulse()
			now, err := clock()
			if err != nil || now != since {
				return now, err
			}
			if k.config.Tier == plan.TierGvisor { // init has run to answer, and belongs to these processes
				last = k.pulse()
			}
		}
		var err error
		wait := time.NewTimer(max(least, lookAfter(time.Since(from))))
		select {
		case <-wait.C:
		case <-stirred:
		case <-left:
			err = fault.New(fault.Cancelled, "the client disconnected")
		case <-k.stop:
			err = fault.New(fault.Unavailable, "the sandbox is being stopped")
		}
		if wait.Stop(); err != nil {
			return 0, err
		}
	}
}

// stirs wakes the goroutines in activity when a command has written output. The zero value is ready to use.
type stirs struct {
	mu      sync.Mutex
	waiting map[chan struct{}]bool // guarded by mu; each channel has room for one token
}

// listen returns a channel that receives a token at each stir, until forget is called.
func (s *stirs) listen() (token <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[chan struct{}]bool{}
	}
	s.waiting[c] = true
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting, c)
	}
}

// stir wakes the goroutines that wait in activity.
func (s *stirs) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.waiting {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// clock returns a number, never 0, that does not change while no process of the box runs.
func (k *keeper) clock() (uint64, error) {
	if k.config.Tier == plan.TierGvisor {
		return k.familyClock(), nil
	}
	if k.group != nil {
		if n, err := k.group.Usage(); err == nil {
			return n + 1, nil
		}
	}
	return k.strictClock()
}

// familyClock is the clock of a box with its own kernel, whose clocks miss processes that run briefly. It counts the
// processor time of the host processes that run this kernel, init included. They run at all times, even without
// commands; work within one long system call advances the clock in steps.
func (k *keeper) familyClock() uint64 {
	const step = 100 * time.Millisecond
	sum := fnv.New64a()
	add := func(pid int, t int64) {
		var b [16]byte
		binary.LittleEndian.PutUint64(b[:8], uint64(pid))
		binary.LittleEndian.PutUint64(b[8:], uint64(t))
		_, _ = sum.Write(b[:])
	}
	for _, pid := range k.commandsOf(math.MaxInt) {
		if t, ok := ranFor(pid); ok {
			add(pid, t)
		}
	}
	for _, pid := range children(k.init.Pid) {
		if t, ok := ranFor(pid); ok {
			add(pid, t/int64(step))
		}
	}
	return max(sum.Sum64(), 1)
}

// strictClock is the clock without init, which is also in the control group: a caller that sends init a request and
// then reads this clock must not see the activity that it caused.
func (k *keeper) strictClock() (uint64, error) {
	var c initlink.Clocked
	if err := k.ask(initlink.MsgClock, &c); err != nil {
		return 0, err
	}
	if c.Err != nil {
		return 0, (*protocol.Failure)(c.Err).Fault()
	}
	// Where process ids cannot be compared, a command may have started and exited unnoticed.
	return max(c.Clock+k.spawns.Load(), 1), nil
}
