package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// The files of a journal, and how large they and their lines get.
const (
	current  = "net.jsonl"
	previous = "net.1.jsonl"
	lockName = "net.lock"
	maxFile  = 4 << 20
	maxLine  = 4 << 10
)

// Journal appends to the journal in one directory. Many may do so at a time, in this
// process and in others.
type Journal struct {
	dir  string
	mu   sync.Mutex // flock knows descriptors, and not goroutines
	lock *os.File   // guarded by mu; nil when closed
}

// Open opens the journal in a directory that exists, to append to it. The caller
// closes it.
func Open(dir string) (*Journal, error) {
	lock, err := open(dir, lockName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fault.Wrap(err, "open the journal in %s", dir)
	}
	return &Journal{dir: dir, lock: lock}, nil
}

// Close lets go of the journal; more than once does no harm.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	lock := j.lock
	if j.lock = nil; lock == nil {
		return nil
	}
	return lock.Close()
}

// Append writes one event. It is in the file when Append returns, unless there is an
// error: then readers see all of it or nothing.
func (j *Journal) Append(ev wire.NetEvent) error {
	line, err := encode(ev)
	if err != nil {
		return fault.Wrap(err, "write to the journal in %s", j.dir)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lock == nil {
		return fault.New(fault.Unavailable, "the journal in %s is closed", j.dir)
	}
	if err := flock(j.lock, unix.LOCK_EX); err != nil {
		return fault.Wrap(err, "lock the journal in %s", j.dir)
	}
	err = write(j.dir, line)
	return fault.Wrap(errors.Join(err, flock(j.lock, unix.LOCK_UN)), "write to the journal in %s", j.dir)
}

// write appends a line under the lock. A torn line before it is ended first.
func write(dir string, line []byte) (err error) {
	f, err := open(dir, current, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if size > 0 && size+int64(len(line)) > maxFile {
		if err := os.Rename(filepath.Join(dir, current), filepath.Join(dir, previous)); err != nil {
			return err
		}
		next, err := open(dir, current, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND)
		if err != nil {
			return err
		}
		_, err = next.Write(bytes.TrimPrefix(line, []byte{'\n'}))
		return errors.Join(err, next.Close())
	}
	_, err = f.Write(line)
	return err
}

// encode gives the line of an event, whose texts are cut until it is short enough.
func encode(ev wire.NetEvent) ([]byte, error) {
	for most := 1024; ; most /= 2 {
		for _, s := range []*string{&ev.Kind, &ev.Proto, &ev.Name, &ev.Addr, &ev.Verdict, &ev.Rule, &ev.Reason, &ev.Hint, &ev.Policy, &ev.Decoy, &ev.Method, &ev.Path} {
			if len(*s) > most {
				*s = (*s)[:most]
			}
		}
		b, err := json.Marshal(ev)
		if err != nil {
			return nil, err
		}
		if len(b) < maxLine {
			return append(b, '\n'), nil
		}
	}
}

// open opens a file of a journal, which is no link.
func open(dir, name string, flags int) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, name), flags|unix.O_NOFOLLOW, 0o600)
}

// flock waits for the lock. Whoever has it does a few system calls meanwhile, and
// loses it when he dies.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
