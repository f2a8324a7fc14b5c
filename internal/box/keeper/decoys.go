//go:build linux && (amd64 || arm64)

package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
)

// decoys watches the files of plan.Config.Access.Decoys. The watch is on their inodes, which only the box has: the
// kernel reports each open(2), by any path and mount, before the opener gets the descriptor. The kernel merges an event
// with an equal one that is last in its queue.
type decoys struct {
	in   *os.File
	at   map[int32]string // paths inside, by watch
	tell *journal.Journal
	seen map[string]*touched
}

// touched counts how often one honeytoken was opened since the last report.
type touched struct {
	since time.Time
	count int
}

// touchAgain is how long openings are counted before they are reported again.
const touchAgain = 10 * time.Second

// watchDecoys starts to watch the honeytokens. files contains them, in the order of the configuration. No process can
// have opened them yet.
func (k *keeper) watchDecoys(files []int) (err error) {
	list := k.config.Access.Decoys
	if len(list) == 0 {
		return nil
	}
	if len(files) != len(list) || k.config.Journal == "" {
		return fault.New(fault.Internal, "invalid honeytokens: %d named, %d created, journal in %q", len(list), len(files),
			k.config.Journal)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fault.New(fault.Unavailable, "watch the honeytokens").Because(err).
			WithHint("too many inotify instances; stop sandboxes, or raise fs.inotify.max_user_instances")
	}
	d := &decoys{in: os.NewFile(uintptr(fd), "inotify"), at: map[int32]string{}, seen: map[string]*touched{}}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	for i, file := range files {
		wd, err := unix.InotifyAddWatch(fd, "/proc/self/fd/"+strconv.Itoa(file), unix.IN_OPEN)
		if err != nil {
			return fault.New(fault.Unavailable, "watch the honeytoken %s", list[i].At).Because(err).
				WithHint("too many inotify watches; stop sandboxes, or raise fs.inotify.max_user_watches")
		}
		d.at[int32(wd)] = list[i].At
	}
	if d.tell, err = journal.Open(journal.Place{Dir: k.config.Journal, Key: k.config.JournalKey}); err != nil {
		return err
	}
	k.decoys = d
	return nil
}

// settle discards the openings so far. They are those of the sandbox's own kernel, which opened the files when it
// started; nothing else has run in the sandbox. d may be nil.
func (d *decoys) settle() {
	if d == nil {
		return
	}
	raw, err := d.in.SyscallConn()
	if err != nil {
		return // the watch has ended, which its reader reports
	}
	buf := make([]byte, 16<<10)
	_ = raw.Control(func(fd uintptr) {
		for {
			if n, err := unix.Read(int(fd), buf); n <= 0 && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
}

// close ends the watch. d may be nil.
func (d *decoys) close() {
	if d == nil {
		return
	}
	d.in.Close()
	if d.tell == nil {
		return
	}
	if err := d.tell.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: close the journal of honeytokens:", err)
	}
}

// reportTouches reports openings until all processes inside are gone and all openings are reported.
func (k *keeper) reportTouches() {
	d := k.decoys
	defer d.close()
	go func() { // ends with the box
		<-k.ended
		_ = d.in.SetReadDeadline(time.Unix(1, 0))
	}()
	buf := make([]byte, 16<<10)
	for {
		n, err := d.in.Read(buf)
		switch {
		case err == nil:
			k.touches(buf[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
		default:
			fmt.Fprintln(os.Stderr, "coppice-keeper: stopped watching honeytokens:", err)
			k.halt("its honeytokens can no longer be watched")
		}
		select {
		case <-k.ended:
			k.lastTouches(buf)
			return
		default:
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			<-k.ended
			return
		}
		k.repeat(time.Now(), false)
		_ = d.in.SetReadDeadline(d.due())
		select {
		case <-k.ended: // the timer of the poll may have fired first
			_ = d.in.SetReadDeadline(time.Unix(1, 0))
		default:
		}
	}
}

// lastTouches reports the openings that arrived while the box ended.
func (k *keeper) lastTouches(buf []byte) {
	raw, err := k.decoys.in.SyscallConn()
	if err != nil {
		return
	}
	for {
		n := 0
		_ = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) })
		if n <= 0 {
			break
		}
		k.touches(buf[:n])
	}
	k.repeat(time.Now(), true)
}

// due returns when counted openings must be reported, or zero for never.
func (d *decoys) due() (at time.Time) {
	for _, t := range d.seen {
		if end := t.since.Add(touchAgain); at.IsZero() || end.Before(at) {
			at = end
		}
	}
	return at
}

// touches handles events of inotify(7).
func (k *keeper) touches(b []byte) {
	d := k.decoys
	for len(b) >= unix.SizeofInotifyEvent {
		wd, mask, size := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]),
			binary.NativeEndian.Uint32(b[12:])
		b = b[min(unix.SizeofInotifyEvent+int(size), len(b)):]
		at, known := d.at[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			at = "" // some of the honeytokens
		case !known || mask&unix.IN_OPEN == 0:
			continue
		}
		if t := d.seen[at]; t != nil {
			t.count++
			continue
		}
		d.seen[at] = &touched{since: time.Now()}
		k.reportTouch(at, 1)
	}
}

// repeat reports how often honeytokens were opened again after a report.
func (k *keeper) repeat(now time.Time, all bool) {
	for at, t := range k.decoys.seen {
		if !all && now.Sub(t.since) < touchAgain {
			continue
		}
		delete(k.decoys.seen, at)
		if t.count > 0 {
			k.reportTouch(at, t.count)
			k.decoys.seen[at] = &touched{since: now}
		}
	}
}

// reportTouch reports openings of a honeytoken, and applies the policy for it. An opening that cannot be reported stops
// the box: it would go unnoticed.
func (k *keeper) reportTouch(at string, count int) {
	ev := wire.NetEvent{Time: time.Now().UTC(), Kind: wire.NetDecoy, Decoy: at, Reason: wire.DecoyOpened}
	why := "the honeytoken " + at + " was opened"
	if at == "" {
		ev.Reason = wire.DecoyMany
		why = ev.Reason
	}
	if count > 1 {
		ev.Count = count
	}
	stops := k.config.OnTouch == plan.TouchStop
	if stops {
		ev.Verdict = wire.VerdictStop
	}
	// The record is written first: a client that sees the box end looks there for the reason.
	if err := k.decoys.tell.Append(ev); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper:", why, "but could not be recorded:", err)
		k.halt(why + ", which could not be recorded")
	}
	if stops {
		k.halt(why)
	}
}
