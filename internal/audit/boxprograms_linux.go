//go:build linux

package audit

import (
	"context"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// The programs that a box reports become records when a command exits, and otherwise after limit.ProgramsInterval.
// Programs with the same file become one record, with a list of them. The last of the records that are written
// together has the number of the last event that they include (Through). After a crash, the next daemon finds in the
// audit log where to continue, and the keeper still has the later events. So no event is recorded twice or omitted.

// programRest is how long the events of a box are collected.
const programRest = time.Second

// ProgramBox is a box that reports the starts and exits of programs.
type ProgramBox interface {
	// Programs returns the events after the one with number after, as soon as there are any. The caller has recorded
	// the events up to kept. It returns Unsupported if the box does not report programs.
	Programs(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error)
	// ProgramsNow is Programs without waiting.
	ProgramsNow(ctx context.Context, after, kept uint64) (wire.ProgramEvents, error)
	// Gone returns a channel that is closed when the box has exited.
	Gone() <-chan struct{}
}

// LeftPrograms gives access to the events that exited boxes left in their directories.
type LeftPrograms interface {
	// LeftPrograms returns the events that the keeper of a directory had not reported, which are encrypted with key. It
	// returns NotFound if there are none, and Corrupt if they are damaged.
	LeftPrograms(runDir string, key []byte) (wire.ProgramEvents, error)
	// ForgetPrograms removes these events.
	ForgetPrograms(runDir string) error
}

// ProgramsConfig configures Programs. All fields are required.
type ProgramsConfig struct {
	Book    *Book
	Budgets *Budgets
	Left    LeftPrograms
	// Evidence returns what the policy of a sandbox says about evidence.
	Evidence func(context.Context, *meta.Sandbox) (policy.Evidence, error)
	// Place returns the journal of a sandbox, whose key encrypts the events that a keeper leaves. RunDir returns the
	// directory of these events.
	Place  func(timeline.SandboxID) journal.Place
	RunDir func(timeline.SandboxID) string
}

// Programs records the programs that are started in boxes. All methods are safe for concurrent use.
type Programs struct {
	config ProgramsConfig // never changed
}

// NewPrograms returns Programs.
func NewPrograms(c ProgramsConfig) *Programs { return &Programs{config: c} }

// BoxPrograms turns the programs of one box into records.
type BoxPrograms struct {
	programs *Programs
	sandbox  timeline.SandboxID
	box      ProgramBox
	done     chan struct{} // closed when everything is recorded

	mu    sync.Mutex  // held while records are made and written
	known bool        // guarded by mu; after and kept are set
	after uint64      // guarded by mu; the last event in sum or in records
	kept  uint64      // guarded by mu; the last event in records
	sum   *ProgramSum // guarded by mu
	since time.Time   // guarded by mu; when the first event was added to sum; zero: sum is empty
	// guarded by mu; the last records included losses, so the next losses wait for their interval
	short bool
}

// Of returns the programs of a box. fresh says that the box has reported nothing yet. Otherwise, the position up to
// which an earlier daemon recorded them is read from the audit log.
func (p *Programs) Of(id timeline.SandboxID, b ProgramBox, fresh bool) *BoxPrograms {
	return &BoxPrograms{
		programs: p, sandbox: id, box: b, done: make(chan struct{}), known: fresh, sum: newProgramSum(limit.ProgramGroups),
	}
}

// Done returns a channel that is closed when Follow has returned.
func (b *BoxPrograms) Done() <-chan struct{} { return b.done }

// Follow records the programs of a box until the box has exited and everything is recorded, or ctx is canceled. It is
// called once. started is the record of the start of the box, which is written first: if it cannot be written, the
// caller stops the box, and Follow records nothing. started is nil if an earlier daemon wrote it.
func (b *BoxPrograms) Follow(ctx context.Context, started *Pending) {
	defer close(b.done)
	if started != nil && started.Wait() != nil {
		return
	}
	log := b.programs.config.Book.config.Logger.With("sandbox", b.sandbox)
	for ctx.Err() == nil {
		err := b.Fetch(ctx)
		// The box does not report programs, or the sandbox was removed.
		if fault.Is(err, fault.Unsupported) || fault.Is(err, fault.NotFound) {
			return
		}
		if err != nil && !fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
			log.Error("could not record programs yet", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-b.box.Gone():
			if err := b.finish(ctx); err != nil && !fault.Is(err, fault.NotFound) && ctx.Err() == nil {
				log.Error("could not record the last programs", "err", err)
			}
			return
		case <-time.After(programRest):
		}
	}
}

// Fetch waits for events of the box, or until the collected events are due. It records them if they are due, or too
// many to hold.
func (b *BoxPrograms) Fetch(ctx context.Context) error {
	b.mu.Lock()
	err := b.learn(ctx)
	after, kept, since := b.after, b.kept, b.since
	b.mu.Unlock()
	if err != nil {
		return err
	}
	wait, cancel := context.WithCancel(ctx)
	if !since.IsZero() {
		wait, cancel = context.WithTimeout(ctx, limit.ProgramsInterval-time.Since(since))
	}
	evs, err := b.box.Programs(wait, after, kept)
	due := !since.IsZero() && wait.Err() != nil
	cancel()
	if err != nil && !due {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.take(evs)
	}
	if due || b.sum.Bytes() >= limit.ProgramsHeld || b.sum.Lost() > 0 && !b.short ||
		time.Since(b.since) >= limit.ProgramsInterval && !b.since.IsZero() {
		return b.write(ctx)
	}
	return nil
}

// take adds the new events. b.mu is held.
func (b *BoxPrograms) take(evs wire.ProgramEvents) {
	if evs.Next <= b.after {
		return
	}
	list := evs.Events
	for len(list) > 0 && list[0].Seq <= b.after {
		list = list[1:]
	}
	b.sum.Add(list, int64(evs.Next-b.after)-int64(len(list)))
	b.after = evs.Next
	if b.since.IsZero() && (b.sum.Len() > 0 || b.sum.Lost() > 0) {
		b.since = time.Now()
	}
}

// learn finds in the audit log the number of the last recorded event. b.mu is held.
func (b *BoxPrograms) learn(ctx context.Context) error {
	if b.known {
		return nil
	}
	l := b.programs.config.Book.Ledger
	if _, err := l.Last(ctx, format.Sandbox(b.sandbox)); err != nil { // makes appended records readable
		return err
	}
	through := int64(0)
	for r, err := range l.Read(ctx, format.Sandbox(b.sandbox),
		ledger.Filter{Kinds: []format.Kind{format.KindStart, format.KindProgram, format.KindLost}}) {
		if err != nil {
			return err
		}
		switch of := r.Body.(type) {
		case *format.Start: // a new box counts from 1 again
			through = 0
		case *format.Program:
			through = max(through, of.Through)
		case *format.Lost:
			through = max(through, of.Through)
		}
	}
	b.after, b.kept, b.known, b.since = uint64(through), uint64(through), true, time.Time{}
	b.sum = newProgramSum(limit.ProgramGroups)
	return nil
}

// write records the events in sum. b.mu is held.
func (b *BoxPrograms) write(ctx context.Context) error {
	book := b.programs.config.Book
	rec, err := book.config.Store.Sandbox(ctx, string(b.sandbox))
	if err != nil {
		return err
	}
	all, err := b.records(ctx, &rec)
	if err == nil && len(all) > 0 {
		err = book.Record(ctx, &rec, all...)
	}
	b.written(err)
	return err
}

// written notes the result of writing the events in sum; with an error, it is unknown which are recorded. b.mu is
// held.
func (b *BoxPrograms) written(err error) {
	if err != nil {
		b.known = false
		return
	}
	b.sum.Clear()
	b.kept, b.since = b.after, time.Time{}
}

// finish records the events that an exited box left. It may be called more than once.
func (b *BoxPrograms) finish(ctx context.Context) error {
	p := b.programs
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.learn(ctx); err != nil {
		return err
	}
	left, err := p.config.Left.LeftPrograms(p.config.RunDir(b.sandbox), p.config.Place(b.sandbox).Key)
	why := ""
	switch {
	case err == nil:
		b.take(left)
	case fault.Is(err, fault.Corrupt):
		why = "the program list of the monitor is damaged, or encrypted with a lost key"
	case !fault.Is(err, fault.NotFound):
		return err
	case b.after > 0: // otherwise, perhaps no program was started
		why = "the monitor was killed; records that it had not reported are lost"
	}
	if why != "" {
		if rec, err := p.config.Book.config.Store.Sandbox(ctx, string(b.sandbox)); err == nil {
			p.config.Book.Note(ctx, &rec, ByDaemon(&format.Lost{Of: string(format.KindProgram), Reason: why})...)
		}
	}
	if err := b.write(ctx); err != nil {
		return err
	}
	return p.config.Left.ForgetPrograms(p.config.RunDir(b.sandbox))
}

// Finish records the programs of a box that exited while no daemon ran.
func (p *Programs) Finish(ctx context.Context, id timeline.SandboxID) {
	if _, err := p.config.Left.LeftPrograms(p.config.RunDir(id), p.config.Place(id).Key); fault.Is(err, fault.NotFound) {
		return
	}
	if err := p.Of(id, nil, false).finish(ctx); err != nil {
		p.config.Book.config.Logger.Error("could not record the last programs", "sandbox", id, "err", err)
	}
}

// EndingPrograms are records of programs that are written with the exit of a command. Until they are, Follow of the
// box waits. The caller of End owns it; it is not safe for concurrent use.
type EndingPrograms struct {
	all []Statement
	of  *BoxPrograms // the box whose lock is held; nil: none
}

// End returns the records of the programs of a box whose command has exited, as far as they are available. The caller
// writes them with the exit, and calls Written afterwards.
func (b *BoxPrograms) End(ctx context.Context, rec *meta.Sandbox) *EndingPrograms {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	n := &EndingPrograms{of: b}
	for more := b.known; more; {
		evs, err := b.box.ProgramsNow(ctx, b.after, b.kept)
		if more = err == nil && len(evs.Events) > 0 && b.sum.Bytes() < limit.ProgramsHeld; more {
			b.take(evs)
		}
	}
	if !b.known {
		return n
	}
	all, err := b.records(ctx, rec)
	if err != nil {
		b.programs.config.Book.config.Logger.Error("could not record programs yet", "sandbox", b.sandbox, "err", err)
		n.Written(err)
		return n
	}
	n.all = all
	return n
}

// Records returns the records to write.
func (n *EndingPrograms) Records() []Statement {
	if n == nil {
		return nil
	}
	return n.all
}

// Written reports the result of writing the records, and unblocks Follow. It may be called more than once.
func (n *EndingPrograms) Written(err error) {
	if n == nil || n.of == nil {
		return
	}
	n.of.written(err)
	n.of.mu.Unlock()
	n.of, n.all = nil, nil
}
