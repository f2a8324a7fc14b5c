package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/thread"
)

// Time limits of a start. A daemon may have to wait lockTimeout for its predecessor to exit. Then it repairs the home,
// which takes minutes for ten thousand sandboxes on a busy host; startTimeout only ends the wait for one that hangs.
const (
	lockTimeout  = 30 * time.Second
	startTimeout = 5 * time.Minute
)

// start starts a daemon and waits until it is ready. The daemon outlives this process. An error that the daemon
// reports is returned unchanged.
func (s Starter) start(ctx context.Context) error {
	if err := inheritNothing(); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fault.Wrap(err, "start the daemon")
	}
	defer r.Close()
	args := append([]string{s.Name}, s.Args...)
	args = append(args, "--home", s.Home, "--ready-fd", "3")
	if s.Idle != "" {
		args = append(args, "--idle", s.Idle)
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: args, Env: s.Env, Dir: "/", ExtraFiles: []*os.File{w}}
	err = startInNamespace(cmd, &syscall.SysProcAttr{Setsid: true})
	if errors.Is(err, errNoNamespace) {
		cmd = &exec.Cmd{Path: cmd.Path, Args: args, Env: s.Env, Dir: "/", ExtraFiles: []*os.File{w},
			SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
		err = cmd.Start()
	}
	w.Close()
	if err != nil {
		return fault.Wrap(err, "start the daemon")
	}
	_ = cmd.Process.Release() // the daemon outlives this process, and init reaps it

	answer := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(r).ReadBytes('\n')
		var m ready
		switch {
		case err != nil || json.Unmarshal(line, &m) != nil:
			answer <- fault.New(fault.Unavailable, "the daemon exited before it was ready").WithHint("see %s", LogPath(s.Home))
		case m.Error != nil:
			answer <- &fault.Error{Kind: fault.Kind(m.Error.Kind), Message: m.Error.Message, Hint: m.Error.Hint}
		default:
			answer <- nil
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fault.New(fault.Timeout, "wait for the daemon to be ready").Because(ctx.Err()).
			WithHint("see %s", LogPath(s.Home))
	}
}

// inheritNothing marks all descriptors above 2 close-on-exec. A daemon and its monitors live long, and would hold
// what the user's shell had open, such as a lock or an end of a pipe.
func inheritNothing() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	return fault.Wrap(err, "close inherited file descriptors on exec")
}

// realIDs is the environment variable with the daemon's IDs outside its user namespace, as "uid:gid".
const realIDs = "COPPICE_REAL_IDS"

// isRoot reports whether this process is root, and may do what root can. Root of a container usually lacks
// CAP_SYS_ADMIN, and is then an ordinary user: it may do more in a user namespace of its own, if it may create one.
func isRoot() bool { return os.Getuid() == 0 && thread.HasCapability(unix.CAP_SYS_ADMIN) }

// errNoNamespace means that the host allows no user namespace.
var errNoNamespace = errors.New("cannot create a user namespace")

// startInNamespace starts cmd. For an ordinary user it creates a user namespace, in which the process is uid 0
// with every capability over the user's files. If the host does not allow that, it starts nothing and returns
// errNoNamespace; cmd cannot be reused.
func startInNamespace(cmd *exec.Cmd, attr *syscall.SysProcAttr) error {
	cmd.SysProcAttr = attr
	if isRoot() {
		return cmd.Start()
	}
	uid, gid := os.Getuid(), os.Getgid()
	attr.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], fmt.Sprintf("%s=%d:%d", realIDs, uid, gid))
	err := cmd.Start()
	for _, none := range []syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.ENOSPC, syscall.EUSERS, syscall.EINVAL,
		syscall.ENOSYS} {
		if errors.Is(err, none) {
			return errNoNamespace
		}
	}
	return err
}

// RealIDs parses COPPICE_REAL_IDS, the IDs of the daemon outside its user namespace; both are -1 if the value is
// empty.
func RealIDs(value string) (uid, gid int) {
	if _, err := fmt.Sscanf(value, "%d:%d", &uid, &gid); err != nil {
		return -1, -1
	}
	return uid, gid
}
