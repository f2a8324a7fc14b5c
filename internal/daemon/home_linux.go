package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/unixsock"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// The contents of the file "format" of a home. A home in which layers record removals as files has formatFiles, so that
// builds that would misread these layers refuse it.
const (
	format      = "coppice home 1\n"
	formatFiles = "coppice home 2\n"
)

// maxLog is the size of a log, in bytes, at which a new daemon starts a new file.
const maxLog = 4 << 20

// errServed means that another daemon serves the home already.
var errServed = errors.New("another daemon serves this home")

// home is a home locked by this process.
type home struct {
	path string
	dir  *os.File
	lock *os.File
	held bool              // this process holds the lock
	ln   *net.UnixListener // nil before listen

	regained regained // by openHome
}

// openHome creates a missing home, checks it, and locks it. If another process holds the lock, it waits for the
// duration wait until that process exits or serves (errServed). With wait 0 it fails at once.
func openHome(ctx context.Context, path string, wait time.Duration) (_ *home, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, homeFault(err, "create the home %s", path)
	}
	changed, err := dirfd.OwnAccess(path, "lock") // of the directory, too
	if err != nil {
		return nil, homeFault(err, "open the home %s", path)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, homeFault(err, "open the home %s", path)
	}
	h := &home{path: path, dir: dir}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if err := h.check(); err != nil {
		return nil, err
	}
	h.lock, err = os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, homeFault(err, "lock the home %s", path)
	}
	deadline := time.Now().Add(wait)
	for {
		err := unix.Flock(int(h.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			h.held = true
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, homeFault(err, "lock the home %s", path)
		}
		if wait > 0 {
			if conn, err := client.DialSocket(ctx, SocketPath(path)); err == nil {
				conn.Close()
				return nil, errServed
			}
		}
		if !time.Now().Before(deadline) {
			return nil, h.heldFault()
		}
		select {
		case <-ctx.Done():
			return nil, fault.Wrap(ctx.Err(), "lock the home %s", path)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := h.lock.Truncate(0); err != nil {
		return nil, homeFault(err, "lock the home %s", path)
	}
	if _, err := h.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, homeFault(err, "lock the home %s", path)
	}
	if h.regained, err = h.regain(); err != nil {
		return nil, homeFault(err, "restore modes in the home %s", path)
	}
	h.regained.paths = append(changed, h.regained.paths...)
	return h, nil
}

// check verifies that the directory belongs to this user, is closed to others, and is a home.
func (h *home) check() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(h.dir.Fd()), &st); err != nil {
		return homeFault(err, "open the home %s", h.path)
	}
	if int(st.Uid) != os.Geteuid() {
		return fault.New(fault.Denied, "the home %s belongs to another user", h.path).
			WithHint("set COPPICE_HOME to a directory that you own")
	}
	name := filepath.Join(h.path, "format")
	b, err := os.ReadFile(name)
	switch {
	case err == nil && (string(b) == format || string(b) == formatFiles):
	case err == nil && strings.HasPrefix(string(b), "coppice home "):
		return fault.New(fault.Version, "unknown version of the home %s (%s)", h.path,
			strings.TrimSpace(strings.TrimPrefix(string(b), "coppice home "))).
			WithHint("use the version of coppice that created it, or set COPPICE_HOME to another directory")
	case err == nil:
		return fault.New(fault.Corrupt, "invalid content of %s", name).
			WithHint("if %s is a Coppice home, write the line %q to that file", h.path, strings.TrimSpace(format))
	case !errors.Is(err, fs.ErrNotExist):
		return homeFault(err, "open the home %s", h.path)
	default:
		names, err := h.dir.Readdirnames(8)
		for _, n := range names {
			// "lock" may exist already: another daemon may be starting, or one was killed here. The broker creates run
			// and secrets, and may be first. "lost+found" is in every fresh file system.
			if !slices.Contains([]string{"lock", "lost+found", "format", "run", "secrets"}, n) &&
				!strings.HasPrefix(n, ".format-") {
				return fault.New(fault.Invalid, "%s is not empty and not a Coppice home", h.path).
					WithHint("set COPPICE_HOME to a new or empty directory")
			}
		}
		if err != nil && len(names) > 0 {
			return homeFault(err, "open the home %s", h.path)
		}
		if err := writeFormat(name); err != nil {
			return homeFault(err, "create the home %s", h.path)
		}
	}
	// Files below a set-group-ID directory get its group. The user namespace of an ordinary user does not map
	// that group, so nothing in a live root could be changed.
	if int(st.Gid) != os.Getegid() && st.Mode&unix.S_ISGID != 0 {
		if err := h.dir.Chown(-1, os.Getegid()); err != nil {
			return homeFault(err, "change the group of the home %s", h.path)
		}
	}
	if st.Mode&(0o077|unix.S_ISGID) != 0 {
		if err := h.dir.Chmod(0o700); err != nil {
			return homeFault(err, "make the home %s private", h.path)
		}
	}
	return nil
}

// raiseFormat gives a home formatFiles. It must be called before a layer records a removal as a file.
func raiseFormat(home string) error {
	name := filepath.Join(home, "format")
	if b, err := os.ReadFile(name); err == nil && string(b) == formatFiles {
		return nil
	}
	if err := vfs.WriteFile(vfs.OS(), name, []byte(formatFiles)); err != nil {
		return homeFault(err, "raise the version of the home %s", home)
	}
	return nil
}

// writeFormat writes the file atomically, even if another process does the same.
func writeFormat(name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".format-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is gone when the rename went well
	_, err = f.WriteString(format)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func (h *home) heldFault() error {
	b := make([]byte, 32)
	n, _ := h.lock.ReadAt(b, 0)
	who := "another daemon"
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
		who = fmt.Sprintf("another daemon (pid %d)", pid)
	}
	return fault.New(fault.Conflict, "%s serves the home %s", who, h.path).
		WithHint("stop it first: coppice serve --stop")
}

// homeFault wraps an error about a home, with a hint.
func homeFault(err error, format string, args ...any) error {
	e := &fault.Error{Kind: fault.KindOf(err), Message: fmt.Sprintf(format, args...), Err: err}
	switch e.Kind {
	case fault.ReadOnly:
		e.Hint = "make it writable, or set COPPICE_HOME to another directory"
	case fault.NoSpace:
		e.Hint = "free space there, or set COPPICE_HOME to another directory"
	case fault.Denied:
		e.Hint = "set COPPICE_HOME to a directory that you can write to"
	case fault.Internal:
		e.Kind = fault.Unavailable
		if errors.Is(err, unix.ENOTDIR) {
			e.Kind, e.Hint = fault.Invalid, "set COPPICE_HOME to a directory"
		}
	}
	return e
}

// openLog opens the log and makes it the process's stdout and stderr, so that it also contains crashes.
func (h *home) openLog() (*os.File, error) {
	name := LogPath(h.path)
	if st, err := os.Lstat(name); err == nil && st.Size() > maxLog {
		if err := os.Rename(name, name+".1"); err != nil {
			return nil, homeFault(err, "create the ledger")
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, homeFault(err, "open the ledger")
	}
	for fd := 1; fd <= 2; fd++ {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			f.Close()
			return nil, homeFault(err, "open the ledger")
		}
	}
	return f, nil
}

// Close unlocks the home. It may be called on the zero value and on a partly opened home.
func (h *home) Close() {
	h.unlisten()
	if h.held {
		_ = h.lock.Truncate(0) // a stale pid would only mislead
	}
	if h.lock != nil {
		h.lock.Close()
	}
	h.dir.Close()
}

// listen creates the socket. It replaces one of an earlier daemon: this process holds the lock.
func (h *home) listen() (net.Listener, error) {
	dir := fmt.Sprintf("/proc/self/fd/%d/.", h.dir.Fd()) // the locked directory, whatever its path is now
	ln, err := unixsock.Listen(dir, filepath.Base(SocketPath(h.path)), 0o600)
	if err != nil {
		return nil, homeFault(err, "create the socket in %s", h.path)
	}
	h.ln = ln
	return unixsock.Own{UnixListener: ln}, nil
}

// unlisten removes the socket's name, so that no new client connects.
func (h *home) unlisten() {
	if h.ln != nil {
		_ = os.Remove(SocketPath(h.path)) // the next daemon replaces a leftover socket
	}
}

// acceptLast waits, after unlisten, until all clients that found the socket's name are accepted. Clients that
// still wait when the socket is closed get a connection reset.
func (h *home) acceptLast() {
	const (
		found = 50 * time.Millisecond // from finding the name to waiting in the queue
		most  = 5 * time.Second
	)
	for end := time.Now().Add(most); time.Now().Before(end); {
		time.Sleep(found)
		if !waiting(h.ln) {
			return
		}
	}
}

// waiting reports whether a connection waits to be accepted.
func waiting(ln *net.UnixListener) bool {
	raw, err := ln.SyscallConn()
	if err != nil {
		return false // it is closed
	}
	n := 0
	err = raw.Control(func(fd uintptr) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err == nil && n > 0
}
