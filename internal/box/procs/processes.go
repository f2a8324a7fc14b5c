//go:build linux && (amd64 || arm64)

package procs

import (
	"bytes"
	"context"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// The bounds of a list of processes. As JSON, in which three bytes take four, it fits into a frame
// of the keeper (wire.MaxFrame).
const (
	maxListed   = 2048
	maxCmdline  = 4096      // bytes of the arguments of one process
	maxListArgs = 256 << 10 // bytes of the arguments of all processes
	argCost     = 6         // overhead of each argument in bytes
	listTime    = 2 * time.Second
	ticks       = 100 // USER_HZ, the same on every machine
)

// Processes lists the processes of the sandbox except init.
func (v *View) Processes() (initlink.Seen, error) {
	if v.blind {
		return initlink.Seen{}, v.blindness()
	}
	list, err := Scan(v.self)
	if err != nil {
		return initlink.Seen{}, fault.Wrap(err, "list the sandbox's processes")
	}
	slices.SortFunc(list, func(a, b Stat) int { return a.PID - b.PID })
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
			PID: p.PID, PPID: p.ppid, State: stateOf(p.state), Start: p.start,
			Started: boot.Add(time.Duration(p.start) * time.Second / ticks).Truncate(time.Second / ticks),
			CPUMS:   int64(p.cpu) * 1000 / ticks, RSS: p.rss * pageSize, Name: nameOf(p.PID),
		}
		if left > 0 && !p.Dead() {
			n.Args, n.Cut = splitArgs(v.args.read(ctx, p.PID))
			for _, a := range n.Args {
				left -= len(a) + argCost
			}
		}
		s.Processes = append(s.Processes, n)
	}
	return s, nil
}

// stateOf returns the letter of a state, or "?" if c is not a letter.
func stateOf(c byte) string {
	if c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
		return string(rune(c))
	}
	return "?"
}

// bootTime is the time from which Process.Start is counted.
func bootTime() time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return time.Time{}
	}
	return time.Now().UTC().Add(-time.Duration(ts.Nano()))
}

// splitArgs splits the contents of /proc/PID/cmdline. cut reports whether arguments, or parts of
// them, are missing.
func splitArgs(b []byte) (args [][]byte, cut bool) {
	if len(b) > maxCmdline {
		b, cut = b[:maxCmdline], true
	}
	if len(b) == 0 {
		return nil, false
	}
	args = bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0})
	// An empty argument takes space too.
	if most := maxCmdline / 16; len(args) > most {
		args, cut = args[:most], true
	}
	return args, cut
}

// argReader reads the arguments of processes in a separate goroutine. If a read blocks (see Cmdline), further ones
// return nothing until it returns. Only one goroutine at a time may call read.
type argReader struct {
	ask     chan int
	got     chan []byte // the result for one pid
	waiting bool        // a read has timed out; its result will still arrive on got
}

func newArgReader() *argReader {
	r := &argReader{ask: make(chan int), got: make(chan []byte, 1)}
	go func() {
		for pid := range r.ask {
			r.got <- bytes.Clone(Cmdline(pid, make([]byte, maxCmdline+1)))
		}
	}()
	return r
}

// read returns the arguments of a process, or nil if the read does not return before ctx ends.
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

// pageSize is the unit in which proc_pid_stat(5) counts memory.
var pageSize = int64(os.Getpagesize())
