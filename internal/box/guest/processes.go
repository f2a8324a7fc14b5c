//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// What a list of processes holds at most: as JSON, in which three bytes take four,
// it fits into a frame of the keeper (wire.MaxFrame).
const (
	maxListed   = 2048
	maxCmdline  = 4096      // bytes of the arguments of one process
	maxListArgs = 256 << 10 // bytes of the arguments of all
	argCost     = 6         // of each argument, beside its bytes
	listTime    = 2 * time.Second
	ticks       = 100 // USER_HZ: the same on every machine
)

// processes lists the processes of the sandbox but init.
func (o *onlooker) processes(r *argReader) (initlink.Seen, error) {
	if o.blind {
		return initlink.Seen{}, o.blindness()
	}
	list, err := scan(o.self)
	if err != nil {
		return initlink.Seen{}, fault.Wrap(err, "list the sandbox's processes")
	}
	slices.SortFunc(list, func(a, b process) int { return a.pid - b.pid })
	var s initlink.Seen
	if len(list) > maxListed {
		s.More = len(list) - maxListed
		list = list[:maxListed]
	}
	boot := bootTime()
	ctx, cancel := context.WithTimeout(context.Background(), listTime)
	defer cancel()
	left := maxListArgs
	for _, p := range list {
		n := initlink.Process{
			PID: p.pid, PPID: p.ppid, State: stateOf(p.state), Start: p.start, Started: boot.Add(time.Duration(p.start) * time.Second / ticks).Truncate(time.Second / ticks),
			CPUMS: int64(p.cpu) * 1000 / ticks, RSS: p.rss * pageSize, Name: nameOf(p.pid),
		}
		if left > 0 && !p.dead() {
			n.Args, n.Cut = splitArgs(r.read(ctx, p.pid))
			for _, a := range n.Args {
				left -= len(a) + argCost
			}
		}
		s.Processes = append(s.Processes, n)
	}
	return s, nil
}

// stateOf is the letter of a state; "?" for what is none.
func stateOf(c byte) string {
	if c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
		return string(rune(c))
	}
	return "?"
}

// bootTime is when the clock of Process.Start began.
func bootTime() time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return time.Time{}
	}
	return time.Now().UTC().Add(-time.Duration(ts.Nano()))
}

// nameOf is what a process calls itself, 15 bytes at most of programs.
func nameOf(pid int) []byte {
	var buf [64]byte
	return bytes.Clone(bytes.TrimSuffix(readSmall("/proc/"+strconv.Itoa(pid)+"/comm", buf[:]), []byte("\n")))
}

// splitArgs takes what /proc/PID/cmdline holds apart; cut says that it is the
// beginning.
func splitArgs(b []byte) (args [][]byte, cut bool) {
	if len(b) > maxCmdline {
		b, cut = b[:maxCmdline], true
	}
	if len(b) == 0 {
		return nil, false
	}
	args = bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0})
	// Each costs something, also where it is empty.
	if most := maxCmdline / 16; len(args) > most {
		args, cut = args[:most], true
	}
	return args, cut
}

// argReader reads arguments, which lie in the memory of a process, on a goroutine of
// its own. Memory may be such that a read of it waits for somebody (of a FUSE file):
// the goroutine then waits, and nothing is read until it returns. read is called
// from one goroutine.
type argReader struct {
	ask     chan int
	got     chan []byte // of one
	waiting bool        // for got
}

func newArgReader() *argReader {
	r := &argReader{ask: make(chan int), got: make(chan []byte, 1)}
	go func() {
		for pid := range r.ask {
			r.got <- bytes.Clone(readSmall("/proc/"+strconv.Itoa(pid)+"/cmdline", make([]byte, maxCmdline+1)))
		}
	}()
	return r
}

// read gives the arguments of a process, or nil when they do not come before ctx
// ends.
func (r *argReader) read(ctx context.Context, pid int) []byte {
	if r.waiting {
		select {
		case <-r.got:
			r.waiting = false
		default:
			return nil
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	r.ask <- pid
	select {
	case b := <-r.got:
		return b
	case <-ctx.Done():
		r.waiting = true
		return nil
	}
}
