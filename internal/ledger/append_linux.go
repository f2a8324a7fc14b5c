package ledger

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// append appends what a group of callers asked for, and answers them.
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
		l.broken = l.fold() != nil // the records are safe in the intake
	}
}

// sound: the segments that drafts go to end where the last record does. Else somebody
// changed them, and they are left as they are.
func (l *Ledger) sound(p *plan, drafts []Draft) error {
	for _, d := range drafts {
		h := l.state.heads[d.Sandbox]
		if _, looked := p.heads[d.Sandbox]; looked || h.seq == 0 || h.removed {
			continue
		}
		info, err := os.Lstat(filepath.Join(l.path, segment(d.Sandbox, h.first)))
		if err != nil || info.Size() != h.bytes {
			return fault.New(fault.Corrupt, "the newest segment of %s is not as it was written", d.Sandbox).Because(err).
				WithHint("find what is wrong with `coppice verify`")
		}
	}
	return nil
}

// appendNow appends for serve itself.
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

// commit puts a plan on the disk: into the intake, which is flushed, and then where its
// records are read.
func (l *Ledger) commit(p *plan) error {
	if p.tree.Size() == p.before {
		return nil
	}
	signed, err := format.Sign(l.checkpoint(&p.tree).Text(), l.secrets.signer)
	if err != nil {
		return err
	}
	if err := l.take(commit(p.lines, signed)); err != nil {
		return err
	}
	if err := l.place(p); err != nil {
		l.broken = true
		return err
	}
	l.state.took(p)
	return nil
}

// take writes a batch to the intake. If that fails, the batch is taken out again.
func (l *Ledger) take(batch []byte) error {
	return l.edit(fileIntake, nil, func(fd int) error {
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

// place writes what a plan has for segments and hashes. Doing so twice does no harm.
func (l *Ledger) place(p *plan) error {
	for _, w := range p.writes {
		if w.offset == 0 {
			if err := l.mkdirSoon(dirSandboxes + "/" + segmentDir(w.file)); err != nil {
				return err
			}
		}
		if err := l.put(w); err != nil {
			return err
		}
	}
	return l.put(write{fileHashes, storedCount(p.before) * hashSize, p.hashes})
}

// mkdirSoon makes a directory unless it is there, which the next fold makes durable: until
// then the intake has all that goes into it.
func (l *Ledger) mkdirSoon(name string) error {
	return l.in(name, func(dir int, base string) error {
		l.state.dirty[parent(name)], l.state.dirty[name] = true, true // whoever made it
		return ignore(l.fs.Mkdir(dir, base, 0o700), fs.ErrExist)
	})
}

func (l *Ledger) put(w write) error {
	l.state.dirty[w.file] = true
	return l.edit(w.file, func() { l.state.dirty[parent(w.file)] = true }, func(fd int) error { return l.fs.WriteAt(fd, w.bytes, w.offset) })
}

func (l *Ledger) checkpoint(t *format.Tree) format.Checkpoint {
	return format.Checkpoint{Origin: l.secrets.keys.Origin(), Size: t.Size(), Root: t.Root()}
}

// fold flushes all that was written, says where the chains end, and begins the intake
// anew. Until the last step the intake has everything as well.
func (l *Ledger) fold() error {
	err := l.flush()
	if err == nil {
		err = l.publish()
	}
	if err == nil {
		err = l.edit(fileIntake, nil, func(fd int) error {
			if err := l.fs.Truncate(fd, 0); err != nil {
				return err
			}
			return l.fs.Sync(fd)
		})
	}
	if err != nil {
		l.broken = true
		return fault.Wrap(err, "flush")
	}
	l.state.intake = 0
	return nil
}

// manyDirty is from how many files on all of the file system is flushed at once. After a
// thousand forks there are two thousand, each of which would take a flush.
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

// publish writes where the log and the chains end.
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
