//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/thread"
)

// launcher is the thread from which commands are forked. It is as confined as they are.
type launcher struct {
	guest    plan.Guest
	listener *os.File         // listener of the notifying filter; nil without one
	refusals seccomp.Refusals // rules for the calls that the listener refuses; nil for none
	untold   error            // why the listener refuses nothing although g.Tell is set
	closed   error            // why a locked workspace can make no Unix sockets; nil if it can
	work     chan func()
	env      atomic.Pointer[[]string] // environment of every command
	open     unix.Rlimit              // the limits of commands that forkOpenly starts
	tasks    unix.Rlimit
	scoped   bool  // this thread can signal commands, and nothing else
	child    int32 // atomic; the process that is about to become a command, or 0
}

// openly reports whether commands are started by forkOpenly. That is so where their resource limits may be less than
// init's, or where their programs may be recorded. In gVisor there is another reason: execve(2) of a FIFO waits for a
// writer there, and package syscall would keep a processor from the Go scheduler during the wait.
func (l *launcher) openly() bool { return l.guest.Tier != plan.TierWorkspace || l.guest.Lock != nil }

// isChild reports whether a process is about to become a command. The answer is known before the process runs.
func (l *launcher) isChild(pid int) bool { return int(atomic.LoadInt32(&l.child)) == pid }

// newLauncher starts the thread and confines it. The thread runs until the process exits.
func newLauncher(g plan.Guest) (*launcher, error) {
	l := &launcher{guest: g, work: make(chan func())}
	l.env.Store(&g.Env)
	ready := make(chan error, 1)
	// The launcher must not be the first thread: the kernel takes the credentials and the Landlock domain of that one
	// for init's when a process signals init or reads /proc/1.
	go thread.OnOwn(func() {
		err := l.confine()
		ready <- err
		if err != nil {
			return
		}
		for f := range l.work {
			f()
		}
	})
	return l, <-ready
}

// confine drops from this thread, and so from everything that it forks, what a command must not have. The order
// matters: each step drops what the following steps do not need.
func (l *launcher) confine() error {
	g := l.guest
	if g.Tier == plan.TierWorkspace {
		// The working directory and the umask stay those of the whole process, whose other threads use neither: the
		// filter of a container may refuse unshare(2).
		unix.Umask(0o022)
		if g.Lock == nil {
			return nil
		}
		var err error
		if l.open, err = openFiles(g); err != nil {
			return err
		}
		if l.tasks, err = ownTasks(); err != nil {
			return err
		}
		return l.lock()
	}
	// The thread gets its own working directory and umask.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fault.Wrap(err, "unshare the launcher's working directory")
	}
	unix.Umask(0o022)
	if l.openly() {
		var err error
		if l.open, err = openFiles(g); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fault.Wrap(err, "set no_new_privs")
	}
	if g.Landlock {
		if err := landlockScopes(); err != nil {
			return fault.Wrap(err, "enable Landlock scopes")
		}
	}
	if err := dropPrivileges(g); err != nil {
		return err
	}
	if g.Tier == plan.TierGvisor { // the sandbox's own kernel answers calls as the filters would
		return nil
	}
	open := seccomp.Options{Netlink: g.Netlink, Report: g.Tell}
	return l.filter(open, seccomp.NotifyOptions{Emulate: g.Emulate, Promote: g.Promote, Trace: g.Trace, Refuse: open})
}

// filter installs both filters. Where this process has another listener already, as in some containers, nothing is
// reported; a network with rules needs its own.
func (l *launcher) filter(open seccomp.Options, give seccomp.NotifyOptions) error {
	fd, err := seccomp.Install(seccomp.Notifying(give), seccomp.Listener|seccomp.KeepSpeculation)
	if errors.Is(err, unix.EBUSY) && open.Report && !give.Inet {
		l.untold = err
		open.Report, give.Refuse = false, seccomp.Options{}
		if give.Connect {
			give.Connect, give.Terminals, open.NoUnix = false, false, true
		}
		fd, err = seccomp.Install(seccomp.Notifying(give), seccomp.Listener|seccomp.KeepSpeculation)
	}
	if err != nil {
		return fault.Wrap(err, "install the notifying filter")
	}
	if fd >= 0 {
		l.listener = os.NewFile(uintptr(fd), "seccomp listener")
	}
	l.refusals = seccomp.RefusalsOf(open)
	if _, err := seccomp.Install(seccomp.Hardening(open), seccomp.KeepSpeculation); err != nil {
		return fault.Wrap(err, "install the hardening filter")
	}
	return nil
}

// leastLastCap is CAP_CHECKPOINT_RESTORE (Linux 5.9). Every kernel that can start a box has it.
const leastLastCap = 40

// dropPrivileges leaves the thread with the user's ids and g.Caps: for root as the permitted and effective set and as
// the bounding set, from which execve restores them, and for other users no capabilities. It makes system calls for
// this thread only; those of package syscall would apply to all threads.
func dropPrivileges(g plan.Guest) error {
	keep, have := uint64(0), ^uint64(0)
	for _, c := range g.Caps {
		keep |= 1 << c
	}
	if g.Tier == plan.TierGvisor { // only the capabilities that init has; in other tiers all are tried
		have = 0
		for _, c := range plan.InnerCaps() {
			have |= 1 << c
		}
	}
	for c := uint(0); c < 64; c++ {
		if keep&(1<<c) != 0 || have&(1<<c) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err == unix.EINVAL && c > leastLastCap {
			break // the kernel has no further capabilities
		} else if err != nil {
			return fault.Wrap(err, "drop capability %d", c)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fault.Wrap(err, "clear the ambient capabilities")
	}
	u := g.User
	same := int(u.UID) == os.Getuid() && int(u.GID) == os.Getgid()
	var first unsafe.Pointer
	if len(u.Groups) > 0 {
		first = unsafe.Pointer(&u.Groups[0])
	}
	// If only one id is mapped, setgroups(2) is denied permanently.
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(first), 0); e != 0 &&
		(e != unix.EPERM || !same) {
		return fault.Wrap(e, "set the supplementary groups")
	}
	if !same {
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(u.GID), uintptr(u.GID), uintptr(u.GID)); e != 0 {
			return fault.Wrap(e, "set the group to %d", u.GID)
		}
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(u.UID), uintptr(u.UID), uintptr(u.UID)); e != 0 {
			return fault.Wrap(e, "set the user to %d", u.UID)
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(keep), Permitted: uint32(keep)},
		{Effective: uint32(keep >> 32), Permitted: uint32(keep >> 32)},
	}
	return fault.Wrap(unix.Capset(&head, &data[0]), "drop the capabilities")
}

// start runs s in a new session, with the three files as standard input, output and error.
func (l *launcher) start(s initlink.Spawn, files []int) initlink.Spawned {
	done := make(chan initlink.Spawned)
	l.work <- func() { done <- l.fork(s, files) }
	return <-done
}

// signalPatience bounds the wait for the thread in signalAll. A command that was stopped before it became its program
// keeps the thread waiting.
const signalPatience = 100 * time.Millisecond

// signalAll sends a signal to every command and what they started, and to nothing else, and reports whether it did. The
// kernel holds the list of processes meanwhile (kill(2) of -1): no process can be created that the signal misses. The
// thread is in the commands' Landlock domain, which is all that it can signal, and its own process is left out.
func (l *launcher) signalAll(sig syscall.Signal) bool {
	if !l.scoped {
		return false
	}
	late := time.NewTimer(signalPatience)
	defer late.Stop()
	done := make(chan error, 1)
	select {
	case l.work <- func() { done <- unix.Kill(-1, sig) }:
	case <-late.C:
		return false
	}
	err := <-done
	return err == nil || errors.Is(err, unix.ESRCH)
}

func (l *launcher) fork(s initlink.Spawn, files []int) initlink.Spawned {
	defer unix.Chdir("/") //nolint:errcheck // pins no directory
	if err := l.enter(s.Dir); err != nil {
		return initlink.Spawned{Err: initlink.WireError(err)}
	}
	term := "TERM=dumb"
	if s.TTY {
		term = "TERM=xterm-256color"
	}
	env := plan.MergeEnv(*l.env.Load(), []string{term}, s.Env)
	file, err := lookUp(s.Cmd[0], env)
	if err == nil {
		var pid int
		if l.openly() {
			pid, err = forkOpenly(
				command{file: file, args: s.Cmd, env: env, files: [3]int(files), tty: s.TTY, open: l.open,
					tasks: l.tasks, child: &l.child})
			atomic.StoreInt32(&l.child, 0)
		} else {
			pid, err = syscall.ForkExec(file, s.Cmd, &syscall.ProcAttr{
				Env:   env,
				Files: []uintptr{uintptr(files[0]), uintptr(files[1]), uintptr(files[2])},
				Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: s.TTY},
			})
		}
		if err == nil {
			return initlink.Spawned{PID: pid}
		}
	}
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return initlink.Spawned{
			Err: initlink.WireError(fault.New(fault.Conflict, "the sandbox has reached its limit of processes").Because(err).
				WithHint("stop some (all: coppice stop %s), or raise --limit pids=", l.name()))}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return initlink.Spawned{Code: 127, Message: fmt.Sprintf("%s: %s", s.Cmd[0], reason(s.Cmd[0], file, err))}
	}
	message := fmt.Sprintf("%s: %v", s.Cmd[0], err)
	if l.guest.Lock != nil && errors.Is(err, unix.EACCES) {
		message += "; a locked workspace runs programs only of the system's directories, the sandbox and files.mounts: " +
			"see coppice help create, --confine"
	}
	return initlink.Spawned{Code: 126, Message: message}
}

func reason(word, file string, err error) string {
	switch {
	case file == "" && !strings.Contains(word, "/"):
		return "command not found"
	case file != "" && errors.Is(err, unix.ENOENT):
		var st unix.Stat_t
		if unix.Stat(file, &st) == nil {
			return "its interpreter was not found"
		}
	}
	return err.Error()
}

func (l *launcher) enter(dir string) error {
	if dir == "" {
		for _, dir := range append(slices.Clip(l.guest.Dirs), l.guest.User.Home) {
			if unix.Chdir(dir) == nil {
				return nil
			}
		}
		return fault.Wrap(unix.Chdir("/"), "enter the root directory")
	}
	if !path.IsAbs(dir) {
		return fault.New(fault.Invalid, "invalid working directory %q: must be an absolute path inside the sandbox", dir)
	}
	err := unix.Chdir(dir)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return fault.New(fault.NotFound, "working directory %s not found in the sandbox", dir).
			WithHint("create it first: coppice exec %s -- mkdir -p %q", l.name(), dir)
	case errors.Is(err, unix.ENOTDIR):
		return fault.New(fault.Invalid, "%s is not a directory", dir).
			WithHint("choose another with -w, or see what it is: coppice exec %s -- ls -ld %q", l.name(), dir)
	case errors.Is(err, unix.EACCES):
		return fault.New(fault.Invalid, "user %s may not enter directory %s", l.guest.User.Name, dir).
			WithHint("choose another with -w, or see its permissions: coppice exec %s -- ls -ld %q", l.name(), dir)
	}
	return fault.Wrap(err, "enter working directory %s", dir)
}

// name returns the sandbox's name, for hints.
func (l *launcher) name() string {
	if l.guest.Hostname != "" {
		return l.guest.Hostname
	}
	return "NAME"
}

// lookUp finds a command like execvp(3), with the PATH of env.
func lookUp(word string, env []string) (string, error) {
	if word == "" {
		return "", unix.ENOENT
	}
	var st unix.Stat_t
	if strings.Contains(word, "/") {
		// In gVisor execve(2) of a FIFO waits for a writer. Linux refuses all but regular files.
		if unix.Stat(word, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return word, unix.EACCES
		}
		return word, nil
	}
	search := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	found := error(unix.ENOENT)
	for dir := range strings.SplitSeq(search, ":") {
		file := path.Join(dir, word)
		if dir == "" {
			file = "./" + word
		}
		if unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if err := unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
			found = err
			continue
		}
		return file, nil
	}
	return "", found
}
