package ledger

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Options configures a ledger. The zero Options are valid.
type Options struct {
	FS           vfs.FS           // file system for writes; nil: the real one
	Now          func() time.Time // clock; default time.Now
	SegmentBytes int64            // size of a segment; default 4 MiB
	IntakeBytes  int64            // size of the intake after which it is flushed; default 4 MiB
}

func (o *Options) fill() {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = 4 << 20
	}
	if o.IntakeBytes <= 0 {
		o.IntakeBytes = 4 << 20
	}
}

// Opened describes what Open found.
type Opened struct {
	New    bool     // the ledger was created
	Mended int      // acknowledged records that were not, or may not have been, in the files that are read
	Aside  []string // files, below the ledger's directory, with torn data that was never acknowledged
	Torn   bool     // no space to set aside a torn tail of the intake: nothing can be appended until there is
}

// Open opens the ledger in a directory, which is created if it is missing, and repairs it after a crash. Only one
// process can have it open: another one gets Conflict. The caller closes it.
func Open(dir string, o Options) (*Ledger, Opened, error) {
	o.fill()
	l := &Ledger{Reader: NewReader(dir), files: files{o.FS, dir}, o: o, asks: make(chan ask), closing: make(chan struct{}),
		closed: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, Opened{}, fault.Wrap(err, "open the ledger in %s", dir)
	}
	// The readers of these files restore no access; what a sandbox has is reached when it is written.
	for _, name := range []string{fileLock, fileKey, fileIntake, fileHashes, fileHeads, fileCheckpoint, fileKeys,
		fileWitness, dirSandboxes, dirBlobs} {
		if _, err := dirfd.OwnAccess(dir, name); err != nil {
			return nil, Opened{}, fault.Wrap(err, "open the ledger in %s", dir)
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, fileLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, Opened{}, fault.Wrap(err, "open the ledger in %s", dir)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, Opened{}, fault.New(fault.Conflict, "the ledger in %s is open in another process", dir).Because(err)
	}
	l.lock = lock
	report, err := l.load()
	if err != nil {
		lock.Close()
		return nil, report, fault.Wrap(err, "open the ledger in %s", dir)
	}
	l.naming = l.secrets
	go l.serve()
	return l, report, nil
}

// load reads the state from the disk, and completes interrupted writes. It may be called again after a failure.
func (l *Ledger) load() (o Opened, err error) {
	if o.New, err = l.begin(); err != nil {
		return o, err
	}
	old, err := l.ends(l.secrets.keys)
	if err != nil {
		return o, err
	}
	s := state{heads: old.all, dirty: map[string]bool{}}
	if s.tree, err = l.treeAt(old.at); err != nil {
		return o, err
	}
	intake, err := l.read(fileIntake)
	if err != nil {
		return o, err
	}
	batches, end, err := parseIntake(intake)
	if err != nil {
		return o, err
	}
	if o.Torn, err = l.setTornAside(intake, end, &o); err != nil {
		return o, err
	}
	l.torn = o.Torn
	l.state, l.late, l.reserved = s, late{}, 0
	redone := map[string]int64{}
	for _, b := range batches {
		p, err := replay(&l.state, l.secrets.keys, b)
		if err != nil {
			return o, err
		}
		if p == nil {
			continue // it was flushed before the new intake could start
		}
		l.late.add(p.writesOf()...)
		for _, w := range p.writes {
			redone[w.file] = w.offset + int64(len(w.bytes))
		}
		o.Mended += len(b.entries)
		l.state.took(p)
	}
	l.state.intake = int64(end)
	l.captures.drop(func(c *capture) bool { return !c.waiting && !l.late.has(c.file()) })
	if err := l.placeLate(); fault.Is(err, fault.NoSpace) {
		l.broken = false
		return o, nil // the caller frees space, and then the writes are placed
	} else if err != nil {
		return o, err
	}
	for name, end := range redone {
		if err := l.cut(name, end, &o); err != nil {
			return o, err
		}
	}
	if o.Torn {
		l.broken = false
		return o, nil
	}
	if l.state.intake > 0 || o.New {
		// If the disk is full, the caller frees space and tries again.
		if err := l.fold(); fault.Is(err, fault.NoSpace) && !o.New {
			l.broken = false
			return o, nil
		} else if err != nil {
			return o, err
		}
	}
	err = l.finish()
	l.broken = err != nil
	return o, err
}

// setTornAside moves the bytes after the last complete batch out of the intake. stays reports that they remain there
// because the disk is full.
func (l *Ledger) setTornAside(intake []byte, end int, o *Opened) (stays bool, err error) {
	if end == len(intake) {
		return false, nil
	}
	kept, err := l.aside(fileIntake, intake[end:])
	if err = fault.Wrap(err, "set aside the torn end"); err != nil {
		return fault.Is(err, fault.NoSpace), ignoreNoSpace(err)
	}
	o.Aside = append(o.Aside, kept)
	return false, l.edit(fileIntake, nil, func(fd int) error { return l.fs.Truncate(fd, int64(end)) })
}

func ignoreNoSpace(err error) error {
	if fault.Is(err, fault.NoSpace) {
		return nil
	}
	return err
}

// begin creates the files of a new ledger.
func (l *Ledger) begin() (fresh bool, err error) {
	for _, name := range []string{dirLog, dirSandboxes, dirBlobs} {
		if err := l.mkdir(name); err != nil {
			return false, err
		}
	}
	key, err := l.read(fileKey)
	if err != nil {
		return false, err
	}
	if key != nil {
		if l.secrets, err = parseSecrets(key); err != nil {
			return false, err
		}
	}
	signed, err := l.read(fileHeads)
	if err != nil || signed != nil && key != nil {
		return false, err
	}
	if signed != nil {
		return false, fault.New(fault.Corrupt, "the ledger has no key").
			WithHint("restore the file key; without it no record can be added")
	}
	if err := l.untouched(); err != nil {
		return false, err
	}
	if key == nil {
		if l.secrets, err = newSecrets(); err != nil {
			return false, err
		}
		if err := l.replace(fileKey, l.secrets.encode()); err != nil {
			return false, err
		}
	}
	for _, name := range []string{fileIntake, fileHashes, fileKeys} {
		content := []byte(nil)
		if name == fileKeys {
			content = l.secrets.keys.Encode()
		}
		if err := l.replace(name, content); err != nil {
			return false, err
		}
	}
	l.state = state{heads: map[format.Sandbox]head{}, dirty: map[string]bool{}}
	return true, l.publish()
}

// untouched checks that nothing was ever appended here. Otherwise log/heads was removed.
func (l *Ledger) untouched() error {
	for _, name := range []string{fileIntake, fileHashes} {
		if b, err := l.read(name); err != nil || len(b) > 0 {
			return errors.Join(err, fault.New(fault.Corrupt, "the ledger has no log/heads").
				WithHint("restore the file"))
		}
	}
	names, err := l.names(dirSandboxes)
	if err == nil && len(names) > 0 {
		err = fault.New(fault.Corrupt, "the ledger has records but no log").WithHint("restore the directory log/")
	}
	return err
}

// treeAt reads the edge of the tree at a checkpoint, whose root must match.
func (l *Ledger) treeAt(c format.Checkpoint) (format.Tree, error) {
	stored, err := l.hashes()
	if err != nil {
		return format.Tree{}, err
	}
	defer stored.Close()
	return stored.tree(c)
}

// cut removes the bytes after the last committed record from a segment.
func (l *Ledger) cut(name string, end int64, o *Opened) error {
	f, err := l.open(name, os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	rest, err := io.ReadAll(io.LimitReader(io.NewSectionReader(f, end, maxSmall), maxSmall))
	if err != nil || len(rest) == 0 {
		return err
	}
	if len(bytes.Trim(rest, "\x00")) > 0 {
		kept, err := l.aside(name, rest)
		if err != nil {
			return err
		}
		o.Aside = append(o.Aside, kept)
	}
	return l.fs.Truncate(int(f.Fd()), end)
}

// finish completes interrupted operations that were recorded: a rotation, and removals.
func (l *Ledger) finish() error {
	if err := l.replaceIfOther(fileKeys, l.secrets.keys.Encode()); err != nil {
		return err
	}
	for id, h := range l.state.heads {
		if h.removed {
			if err := l.wipe(id); err != nil {
				return err
			}
		}
	}
	if l.secrets.recorded {
		return nil
	}
	return l.recordRotation()
}

func (l *Ledger) replaceIfOther(name string, content []byte) error {
	was, err := l.read(name)
	if err != nil || bytes.Equal(was, content) {
		return err
	}
	return l.replace(name, content)
}
