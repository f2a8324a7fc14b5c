package ledger

import (
	"context"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Ledger is an open ledger, with all methods of a Reader. All methods are safe for concurrent use.
type Ledger struct {
	Reader
	files
	o    Options
	lock *os.File

	naming    *secrets   // as they were when it was opened; the secret that names blobs never changes
	blobs     sync.Mutex // held while a capture is stored
	captures  captures
	asks      chan ask
	closeOnce sync.Once
	closing   chan struct{} // closed when no more requests are accepted
	closed    chan struct{} // closed when everything is on the disk
	closeErr  error         // valid once closed is closed

	// The following fields belong to serve, and before it starts to load.
	secrets *secrets
	state   state
	broken  bool // a write failed: the disk must be read again first
	torn    bool // the intake has a torn tail, and there is no space to set it aside

	late     late
	reserved int64 // end of the space that is reserved for the intake
}

// ask is a request to serve: records to append, or another operation that needs the state.
type ask struct {
	drafts []Draft
	do     func() error
	reply  chan answer
}

type answer struct {
	records []format.Record
	err     error
}

// Append appends records in order, all or none. When it returns without an error they are durable. After an error
// they may or may not have been appended. ctx is ignored once writing has started. Many callers share one flush.
func (l *Ledger) Append(ctx context.Context, drafts ...Draft) ([]format.Record, error) {
	if len(drafts) == 0 {
		return nil, nil
	}
	got := l.ask(ctx, ask{drafts: drafts})
	return got.records, fault.Wrap(got.err, "append to the ledger in %s", l.path)
}

// do lets serve, which owns the state, call fn.
func (l *Ledger) do(ctx context.Context, what string, fn func() error) error {
	return fault.Wrap(l.ask(ctx, ask{do: fn}).err, "%s of the ledger in %s", what, l.path)
}

// Size returns the number of records in the log.
func (l *Ledger) Size(ctx context.Context) (leaves int64, err error) {
	err = l.do(ctx, "measure the records of a sandbox", func() error {
		leaves = l.state.tree.Size()
		return nil
	})
	return leaves, err
}

// Last returns the number of the last record of a sandbox; 0 if there is none, or they were removed.
// Afterwards, everything that was appended before the call can be read.
func (l *Ledger) Last(ctx context.Context, id format.Sandbox) (seq int64, err error) {
	err = l.do(ctx, "find the last record of a sandbox", func() error {
		if err := l.settle(); err != nil {
			return err
		}
		if h := l.state.heads[id]; !h.removed {
			seq = h.seq
		}
		return nil
	})
	return seq, err
}

func (l *Ledger) ask(ctx context.Context, a ask) answer {
	got, begun := l.askUntil(ctx.Done(), a)
	if !begun {
		return answer{err: context.Cause(ctx)}
	}
	return got
}

// askUntil asks serve, unless done is closed before serve starts with the request.
func (l *Ledger) askUntil(done <-chan struct{}, a ask) (got answer, begun bool) {
	a.reply = make(chan answer, 1)
	select {
	case l.asks <- a:
		return <-a.reply, true
	case <-done:
		return answer{}, false
	case <-l.closing:
		return answer{err: fault.New(fault.Unavailable, "the ledger is closed")}, true
	}
}

// Close flushes everything and closes the ledger. It may be called again.
func (l *Ledger) Close() error {
	l.closeOnce.Do(func() { close(l.closing) })
	<-l.closed
	return fault.Wrap(l.closeErr, "close the ledger in %s", l.path)
}

// most is the maximum number of callers that share one flush.
const most = 256

// serve owns the state until the ledger is closed.
func (l *Ledger) serve() {
	defer close(l.closed)
	defer l.unlock()
	for more := true; ; {
		if more {
			select {
			case a := <-l.asks:
				l.handle(a)
			default:
				more = l.idle()
			}
			continue
		}
		select {
		case <-l.closing:
			if !l.broken && !l.torn && l.state.intake > 0 {
				if err := l.fold(); !fault.Is(err, fault.NoSpace) { // the intake has everything
					l.closeErr = err
				}
			}
			return
		case a := <-l.asks:
			l.handle(a)
			more = true
		}
	}
}

// writable returns an error if the intake has a torn tail: nothing may be written behind it, and it must not be
// discarded.
func (l *Ledger) writable() error {
	if !l.torn {
		return nil
	}
	return fault.New(fault.NoSpace, "no space to set aside the torn end of its intake").
		WithHint("free space on the file system of %s; it then resumes automatically", l.path)
}

// unlock lets another process open the ledger. It unlocks explicitly, since a child process that is being forked
// still has the file open.
func (l *Ledger) unlock() {
	l.closeErr = errors.Join(l.closeErr, unix.Flock(int(l.lock.Fd()), unix.LOCK_UN), l.lock.Close())
}

// handle serves a request, together with all waiting requests to append.
func (l *Ledger) handle(a ask) {
	group := []ask{a}
	for a.do == nil && len(group) < most {
		select {
		case next := <-l.asks:
			group = append(group, next)
			a = next
			continue
		default:
		}
		break
	}
	last := group[len(group)-1]
	if last.do != nil {
		group = group[:len(group)-1]
	}
	if err := l.mend(); err != nil {
		for _, a := range group {
			a.reply <- answer{err: err}
		}
		if last.do != nil {
			last.reply <- answer{err: err}
		}
		return
	}
	if len(group) > 0 {
		l.append(group)
	}
	if last.do != nil {
		err := l.mend()
		if err == nil {
			err = last.do()
		}
		last.reply <- answer{err: err}
	}
}

// mend reads the disk again after a failure, or if there was no space for a torn tail.
func (l *Ledger) mend() error {
	if !l.broken && !l.torn {
		return nil
	}
	_, err := l.load()
	return err
}
