package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// The files of a journal, and the maximum sizes of a file and of a line in bytes.
const (
	current  = "net.jsonl"
	previous = "net.1.jsonl"
	lockName = "net.lock"
	maxFile  = 4 << 20
	maxLine  = 4 << 10
	// maxEvent is the maximum length of the JSON of an event, so that it fits into a line when it is
	// encrypted.
	maxEvent = 3000
)

// Journal appends to the journal in one directory. Several may do so at the same time, in this process and in others.
type Journal struct {
	dir  string
	at   Place
	fs   vfs.FS
	key  secretbox.Key
	mu   sync.Mutex  // flock distinguishes descriptors, not goroutines
	lock *os.File    // guarded by mu; nil when closed
	file *os.File    // guarded by mu; the newest file when it was last written, or nil
	is   os.FileInfo // guarded by mu; identifies file
}

// Open opens the journal in a directory that exists, to append to it. The caller
// closes it.
func Open(at Place) (*Journal, error) {
	key, err := at.key()
	if err != nil {
		return nil, fault.Wrap(err, "open the journal in %s", at.Dir)
	}
	lock, err := open(at.Dir, lockName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fault.Wrap(err, "open the journal in %s", at.Dir)
	}
	j := &Journal{dir: at.Dir, at: at, fs: at.FS, key: key, lock: lock}
	if j.fs == nil {
		j.fs = vfs.OS()
	}
	return j, nil
}

// Close closes the journal. It may be called again.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	lock := j.lock
	if j.lock = nil; lock == nil {
		return nil
	}
	return errors.Join(j.leaveLocked(), lock.Close())
}

// Append writes one event. The event is in the file when Append returns without an error; otherwise readers see
// either all or nothing of it.
func (j *Journal) Append(ev wire.NetEvent) error {
	line, err := encode(ev)
	if err == nil {
		line, err = j.at.line(j.key, line)
	}
	if err != nil {
		return fault.Wrap(err, "write to the journal in %s", j.dir)
	}
	line = append(line, '\n')
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lock == nil {
		return fault.New(fault.Unavailable, "the journal in %s is closed", j.dir)
	}
	if err := flock(j.lock, unix.LOCK_EX); err != nil {
		return fault.Wrap(err, "lock the journal in %s", j.dir)
	}
	if err = j.writeLocked(line); err != nil {
		err = errors.Join(err, j.leaveLocked()) // the next Append looks for the newest file again
	}
	return fault.Wrap(errors.Join(err, flock(j.lock, unix.LOCK_UN)), "write to the journal in %s", j.dir)
}

// writeLocked appends a line under the lock. It ends a torn line before it first.
func (j *Journal) writeLocked(line []byte) error {
	size, err := j.findLocked()
	if err != nil {
		return err
	}
	if size > 0 {
		last := make([]byte, 1)
		if _, err := j.file.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if size > 0 && size+int64(len(line)) > maxFile {
		if err := vfs.Rename(j.fs, filepath.Join(j.dir, current), filepath.Join(j.dir, previous)); err != nil {
			return err
		}
		if err := j.enterLocked(true); err != nil {
			return err
		}
		line, size = bytes.TrimPrefix(line, []byte{'\n'}), 0
	}
	return j.fs.WriteAt(int(j.file.Fd()), line, size)
}

// findLocked opens the newest file, and returns its size. An open file is still the newest if the name leads to it:
// while it is open, its inode number is not reused.
func (j *Journal) findLocked() (size int64, err error) {
	if j.file != nil {
		there, err := os.Lstat(filepath.Join(j.dir, current))
		if err == nil && os.SameFile(j.is, there) {
			return there.Size(), nil
		}
	}
	if err := j.enterLocked(false); err != nil {
		return 0, err
	}
	return j.is.Size(), nil
}

// enterLocked opens the newest file instead of the open one. It creates the file if it is missing or fresh is set.
func (j *Journal) enterLocked(fresh bool) error {
	if err := j.leaveLocked(); err != nil {
		return err
	}
	var f *os.File
	err := fs.ErrNotExist
	if !fresh {
		f, err = open(j.dir, current, os.O_RDWR)
	}
	if errors.Is(err, fs.ErrNotExist) {
		f, err = vfs.Create(j.fs, filepath.Join(j.dir, current))
	}
	if err != nil {
		return err
	}
	is, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	j.file, j.is = f, is
	return nil
}

// leaveLocked closes the open file, if there is one.
func (j *Journal) leaveLocked() error {
	f := j.file
	if j.file, j.is = nil, nil; f == nil {
		return nil
	}
	return f.Close()
}

// encode returns the JSON of an event, whose texts are truncated until it is short enough.
func encode(ev wire.NetEvent) ([]byte, error) {
	for most := 1024; ; most /= 2 {
		for _, s := range []*string{&ev.Kind, &ev.Proto, &ev.Name, &ev.Addr, &ev.Verdict, &ev.Rule, &ev.Reason, &ev.Hint,
			&ev.Policy, &ev.Decoy, &ev.Method, &ev.Path, &ev.Syscall, &ev.Program, &ev.Exec} {
			if len(*s) > most {
				*s = (*s)[:most]
			}
		}
		b, err := json.Marshal(ev)
		if err != nil {
			return nil, err
		}
		if len(b) < maxEvent {
			return b, nil
		}
	}
}

// open opens a file of a journal, which must not be a link.
func open(dir, name string, flags int) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, name), flags|unix.O_NOFOLLOW, 0o600)
}

// flock waits for the lock. Its holder only makes a few system calls while it has the lock, and loses it when it
// dies.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
