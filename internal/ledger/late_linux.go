package ledger

import (
	"io/fs"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// late holds the writes of the intake that are not in the files that are read yet. Their callers have been answered.
// They are placed when no request is waiting, before a read, and at the latest when the intake is folded. Adjacent
// writes to the same file are merged.
type late struct {
	writes []*write          // in the order in which their files were first written to
	newest map[string]*write // of each file
}

func (q *late) add(writes ...write) {
	for _, w := range writes {
		if before := q.newest[w.file]; before != nil && before.offset+int64(len(before.bytes)) == w.offset {
			before.bytes = append(before.bytes, w.bytes...)
			continue
		}
		if q.newest == nil {
			q.newest = map[string]*write{}
		}
		q.newest[w.file] = &w
		q.writes = append(q.writes, &w)
	}
}

// done removes the first write.
func (q *late) done() {
	w := q.writes[0]
	if q.newest[w.file] == w {
		delete(q.newest, w.file)
	}
	if q.writes = q.writes[1:]; len(q.writes) == 0 {
		q.writes = nil
	}
}

// has reports whether a write to a file is late.
func (q *late) has(file string) bool { return q.newest[file] != nil }

// writesOf returns the writes of a plan to the files that are read. It is harmless to repeat them.
func (p *plan) writesOf() []write {
	return append(p.writes[:len(p.writes):len(p.writes)], write{fileHashes, storedCount(p.before) * hashSize, p.hashes})
}

// placeNext places the first of the late writes.
func (l *Ledger) placeNext() error {
	w := l.late.writes[0]
	if w.offset == 0 && w.file != fileHashes {
		if err := l.mkdirSoon(parent(w.file)); err != nil {
			return fault.Wrap(err, "place")
		}
	}
	if err := l.put(*w); err != nil {
		return fault.Wrap(err, "place")
	}
	l.late.done()
	l.captures.placed(w.file)
	return nil
}

// placeLate places all late writes.
func (l *Ledger) placeLate() error {
	for len(l.late.writes) > 0 {
		if err := l.placeNext(); err != nil {
			return err
		}
	}
	return nil
}

// settle is placeLate for a caller that is about to read. On a full disk, some writes stay late.
func (l *Ledger) settle() error {
	err := ignoreNoSpace(l.placeLate())
	l.broken = l.broken || err != nil
	return err
}

// idle places one write while no request is waiting, and reports whether there may be more to place.
func (l *Ledger) idle() (more bool) {
	if l.broken || len(l.late.writes) == 0 {
		return false
	}
	err := l.placeNext()
	if err != nil && !fault.Is(err, fault.NoSpace) {
		l.broken = true // the next request reads the disk again; the intake has everything
	}
	return err == nil
}

// mkdirSoon makes a directory unless it exists. The next fold makes it durable: until then the intake has all of its
// content.
func (l *Ledger) mkdirSoon(name string) error {
	return l.in(name, func(dir int, base string) error {
		l.state.dirty[parent(name)], l.state.dirty[name] = true, true // whichever call created it
		return ignore(l.fs.Mkdir(dir, base, 0o700), fs.ErrExist)
	})
}

func (l *Ledger) put(w write) error {
	l.state.dirty[w.file] = true
	return l.edit(w.file, func() { l.state.dirty[parent(w.file)] = true },
		func(fd int) error { return l.fs.WriteAt(fd, w.bytes, w.offset) })
}

// lateHead reports whether the end of a sandbox's chain is late.
func (l *Ledger) lateHead(id format.Sandbox, h head) bool { return l.late.has(segment(id, h.first)) }
