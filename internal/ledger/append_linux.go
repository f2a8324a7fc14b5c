package ledger

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// append appends the records of a group of callers, and answers the callers.
func (l *Ledger) append(group []ask) {
	p := l.state.plan(l.o.SegmentBytes)
	answers := make([]answer, len(group))
	for i, a := range group {
		if answers[i].err = l.sound(p, a.drafts); answers[i].err == nil {
			answers[i].records, answers[i].err = p.add(&l.state, l.o.Now(), a.drafts)
		}
	}
	err := l.commit(p)
	for i, a := range group {
		if err != nil && answers[i].err == nil {
			answers[i] = answer{err: err}
		}
		a.reply <- answers[i]
	}
	if err == nil && l.state.intake >= l.o.IntakeBytes {
		// The records are safe in the intake. A full disk is the only reason for which fold may fail without harm.
		if err := l.fold(); err != nil && !fault.Is(err, fault.NoSpace) {
			l.broken = true
		}
	}
}

// sound returns an error unless the segments that drafts go to end at the last record. Otherwise another process has
// changed them, and they are left as they are.
func (l *Ledger) sound(p *plan, drafts []Draft) error {
	for _, d := range drafts {
		h := l.state.heads[d.Sandbox]
		if _, looked := p.heads[d.Sandbox]; looked || h.seq == 0 || h.removed || l.lateHead(d.Sandbox, h) {
			continue
		}
		info, err := l.stat(segment(d.Sandbox, h.first))
		if err != nil || info.Size() != h.bytes {
			return fault.New(fault.Corrupt, "the newest segment of %s has changed since it was written", d.Sandbox).Because(err).
				WithHint("find the damage: coppice system verify")
		}
	}
	return nil
}

// appendNow appends records on behalf of serve.
func (l *Ledger) appendNow(drafts ...Draft) error {
	p := l.state.plan(l.o.SegmentBytes)
	if err := l.sound(p, drafts); err != nil {
		return err
	}
	if _, err := p.add(&l.state, l.o.Now(), drafts); err != nil {
		return err
	}
	return l.commit(p)
}

// commit writes a plan to the disk, with the captures that wait: into the intake, which is flushed. The files that
// are read are written later: see late.
func (l *Ledger) commit(p *plan) error {
	if p.tree.Size() == p.before {
		return nil
	}
	signed, err := format.Sign(l.checkpoint(&p.tree).Text(), l.secrets.signer)
	if err != nil {
		return err
	}
	l.captures.drop(func(c *capture) bool { return c.waiting && l.state.heads[c.id].removed })
	riding := l.captures.next()
	if err := l.take(commit(p.withCaptures(riding), signed)); err != nil {
		return err
	}
	l.captures.took(riding)
	l.late.add(p.writesOf()...)
	l.state.took(p)
	return nil
}

// reserveBytes is the space that the intake reserves beyond its end, so that on a full disk the removals that free
// space can be recorded.
const reserveBytes = 1 << 20

// reserve reserves space for more bytes, if the file system supports that.
func (l *Ledger) reserve(fd int, more int64) {
	if l.state.intake+more+reserveBytes/2 <= l.reserved {
		return
	}
	if unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, l.state.intake, more+reserveBytes) == nil {
		l.reserved = l.state.intake + more + reserveBytes
	}
}

// take writes a batch to the intake. If that fails, it removes the batch again.
func (l *Ledger) take(batch []byte) error {
	if err := l.writable(); err != nil {
		return err
	}
	return l.edit(fileIntake, nil, func(fd int) error {
		l.reserve(fd, int64(len(batch)))
		err := l.fs.WriteAt(fd, batch, l.state.intake)
		if err == nil {
			err = l.fs.Sync(fd)
		}
		if err == nil {
			l.state.intake += int64(len(batch))
			return nil
		}
		undo := l.fs.Truncate(fd, l.state.intake)
		if undo == nil {
			undo = l.fs.Sync(fd)
		}
		l.broken = undo != nil
		return errors.Join(err, undo)
	})
}

func (l *Ledger) checkpoint(t *format.Tree) format.Checkpoint {
	return format.Checkpoint{Origin: l.secrets.keys.Origin(), Size: t.Size(), Root: t.Root()}
}

// fold flushes all writes, publishes the ends of the chains, and starts a new intake. Until the last step the old
// intake has everything as well.
func (l *Ledger) fold() error {
	if err := l.writable(); err != nil {
		return err
	}
	if err := l.placeLate(); err != nil {
		return fault.Wrap(err, "flush") // nothing has changed
	}
	err := l.flush()
	if err == nil {
		err = l.publish()
	}
	if err == nil {
		err = l.edit(fileIntake, nil, func(fd int) error {
			if err := l.fs.Truncate(fd, 0); err != nil {
				return err
			}
			l.reserved = 0
			return l.fs.Sync(fd)
		})
	}
	if err = fault.Wrap(err, "flush"); err != nil {
		// On a full disk the old intake stays in use: its published part is skipped when it is read again.
		l.broken = !fault.Is(err, fault.NoSpace) || l.reserved == 0
		return err
	}
	l.state.intake = 0
	return nil
}

// manyDirty is the number of files from which on the whole file system is flushed at once. A thousand forks write two
// thousand files, each of which would need a flush.
const manyDirty = 128

func (l *Ledger) flush() error {
	if len(l.state.dirty) >= manyDirty {
		dir, err := l.dir(".")
		if err != nil {
			return err
		}
		if err := errors.Join(l.fs.SyncFS(int(dir.Fd())), dir.Close()); err != nil {
			return err
		}
		clear(l.state.dirty)
		return nil
	}
	for name := range l.state.dirty {
		if err := l.sync(name); err != nil {
			return err
		}
	}
	clear(l.state.dirty)
	return nil
}

// publish writes the ends of the log and of the chains.
func (l *Ledger) publish() error {
	c := l.checkpoint(&l.state.tree)
	signed, err := format.Sign(heads{c, l.state.heads}.text(), l.secrets.signer)
	if err != nil {
		return err
	}
	if err := l.replace(fileHeads, signed); err != nil {
		return err
	}
	if signed, err = format.Sign(c.Text(), l.secrets.signer); err != nil {
		return err
	}
	return l.replace(fileCheckpoint, signed)
}
