//go:build linux && (amd64 || arm64)

package boxtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// In a disturbed start, a system call of the keeper, of init, or of a process that they start is made to fail. Three
// processes take part. The test starts the disturber. The disturber traces (ptrace(2)) the starter. The starter
// installs a filter that stops at the calls in disturbed, and starts the box. The filter leaves the only notification
// listener that a process can have (seccomp(2)) to the box. The disturber exits when every process of the start has
// exited.
const (
	DisturberArgv0 = "box-disturber"
	DisturbedArgv0 = "box-disturbed"
)

// Step is a system call of a start: the K-th call with that number, counted from 1, by the processes with the argv[0]
// Role.
type Step struct {
	Role string
	Call int
	K    int
}

func (s Step) String() string { return fmt.Sprintf("%s's %s no. %d", s.Role, s.Name(), s.K) }

// Name returns the name of the system call.
func (s Step) Name() string { return disturbed[s.Call] }

// Disturbance configures a disturber.
type Disturbance struct {
	Config plan.Config
	Step   Step          // disturbs nothing if Role is ""
	Errno  syscall.Errno // error of the step
	Always bool          // calls after the K-th fail too
	Script string        // runs in the box if it starts
}

// Disturbed is the result of a disturbed start.
type Disturbed struct {
	Enforced plan.Enforced `json:",omitzero"`
	Err      *wire.Error   `json:",omitempty"` // error of the start
	Inside   string        `json:",omitempty"` // output of Script
	Outside  string        `json:",omitempty"` // confinement of the box's processes on the host
	Trouble  string        `json:",omitempty"` // an error after the start
	Steps    []Step        `json:",omitempty"` // last step of each role and call
	Failed   string        `json:",omitempty"` // the call that failed, with its arguments; "" if none did
}

// disturbed are the calls that are made to fail: those with which the set-up of a box changes or queries something,
// except calls whose failure makes the Go runtime exit.
var disturbed = map[int]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_PREAD64: "pread64",
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", sysFstatat: "newfstatat", unix.SYS_FSTAT: "fstat",
	unix.SYS_STATX:   "statx",
	unix.SYS_FSTATFS: "fstatfs", unix.SYS_STATFS: "statfs", unix.SYS_READLINKAT: "readlinkat",
	unix.SYS_GETDENTS64: "getdents64",
	unix.SYS_MKDIRAT:    "mkdirat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_UNLINKAT: "unlinkat",
	unix.SYS_RENAMEAT: "renameat",
	unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHOWNAT: "fchownat",
	unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_CHDIR:     "chdir", unix.SYS_FCHDIR: "fchdir", unix.SYS_FACCESSAT: "faccessat",
	unix.SYS_FACCESSAT2: "faccessat2",
	unix.SYS_GETXATTR:   "getxattr", unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_FLOCK: "flock",
	unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount2", unix.SYS_PIVOT_ROOT: "pivot_root",
	unix.SYS_OPEN_TREE:  "open_tree",
	unix.SYS_MOVE_MOUNT: "move_mount", unix.SYS_MOUNT_SETATTR: "mount_setattr", unix.SYS_FSOPEN: "fsopen",
	unix.SYS_FSCONFIG: "fsconfig", unix.SYS_FSMOUNT: "fsmount",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_UNSHARE: "unshare", unix.SYS_SETNS: "setns",
	unix.SYS_EXECVE: "execve", unix.SYS_SETSID: "setsid",
	unix.SYS_PRCTL: "prctl", unix.SYS_SECCOMP: "seccomp", unix.SYS_CAPSET: "capset", unix.SYS_CAPGET: "capget",
	unix.SYS_LANDLOCK_CREATE_RULESET: "landlock_create_ruleset", unix.SYS_LANDLOCK_ADD_RULE: "landlock_add_rule",
	unix.SYS_LANDLOCK_RESTRICT_SELF: "landlock_restrict_self",
	unix.SYS_SETUID:                 "setuid", unix.SYS_SETGID: "setgid", unix.SYS_SETGROUPS: "setgroups",
	unix.SYS_SETRESUID: "setresuid",
	unix.SYS_SETRESGID: "setresgid",
	unix.SYS_SETFSUID:  "setfsuid", unix.SYS_SETFSGID: "setfsgid", unix.SYS_PRLIMIT64: "prlimit64",
	unix.SYS_SETRLIMIT: "setrlimit", unix.SYS_SETPRIORITY: "setpriority",
	unix.SYS_SETHOSTNAME: "sethostname", unix.SYS_UNAME: "uname", unix.SYS_PIDFD_OPEN: "pidfd_open",
	unix.SYS_PIDFD_GETFD: "pidfd_getfd", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal",
	unix.SYS_SOCKET: "socket", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_BIND: "bind", unix.SYS_LISTEN: "listen",
	unix.SYS_CONNECT:    "connect",
	unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_GETSOCKNAME: "getsockname",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SENDTO: "sendto",
	unix.SYS_PIPE2: "pipe2", unix.SYS_DUP3: "dup3", unix.SYS_FCNTL: "fcntl", unix.SYS_IOCTL: "ioctl",
	unix.SYS_MEMFD_CREATE: "memfd_create", unix.SYS_CLOSE_RANGE: "close_range",
	unix.SYS_INOTIFY_INIT1: "inotify_init1", unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch",
}

// Disturb starts a box as d specifies, and stops it. All of its processes have exited on return.
func Disturb(ctx context.Context, d Disturbance) (r Disturbed, err error) {
	plan, err := json.Marshal(d)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{DisturberArgv0, string(plan)}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run() // if it is killed, its tracees are killed too
	if err != nil {
		return r, fmt.Errorf("%w: %s", err, errs.String())
	}
	for dec := json.NewDecoder(&out); ; { // each process adds its part
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return r, err
		}
	}
}

// DisturbMain runs the disturber or the starter, selected by argv[0]. It returns the exit code.
func DisturbMain(args []string) int {
	var d Disturbance
	err := json.Unmarshal([]byte(args[1]), &d)
	switch {
	case err != nil:
	case args[0] == DisturberArgv0:
		err = disturb(d, args[1])
	default:
		err = startDisturbed(d)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", args[0], err)
		return 1
	}
	return 0
}

// startDisturbed starts the box. It writes nothing to standard output before the start has ended.
func startDisturbed(d Disturbance) error {
	runtime.LockOSThread() // the filter is that of this thread, which forks the keeper
	if err := stopAtCalls(); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	ctx := context.Background()
	b, e, err := box.Start(ctx, programtest.Programs(), d.Config)
	if err != nil {
		return out.Encode(
			Disturbed{Err: &wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}})
	}
	if err := out.Encode(Disturbed{Enforced: e}); err != nil {
		return err
	}
	defer b.Close()
	var after Disturbed
	s, err := b.Exec(ctx, wire.ExecRequest{Cmd: []string{"sh", "-c", d.Script}})
	if err == nil {
		r := Collect(s)
		s.Close()
		after.Inside, err = r.Stdout+r.Stderr, r.Err
		if err == nil && (r.Failed != nil || r.Exit.Code != 0) {
			err = fmt.Errorf("the script ended with %d: %v", r.Exit.Code, r.Failed)
		}
		after.Outside = heldBy(os.Getpid())
	}
	if err = errors.Join(err, b.Stop(ctx, 0)); err != nil {
		after.Trouble = err.Error()
	}
	return out.Encode(after)
}

// Nameless is the name of processes without arguments: those in which gVisor runs the sandbox's code.
const Nameless = "."

// heldBy describes the confinement of the descendants of a process on the host, by their argv[0]: their filters,
// capabilities, ids, and the namespaces that they share with the process.
func heldBy(pid int) string {
	var lines []string
	for _, p := range descendants(pid) {
		at := fmt.Sprintf("/proc/%d/", p)
		status, err := os.ReadFile(at + "status")
		if err != nil {
			continue // it has exited
		}
		line := roleOf(p)
		for says := range strings.Lines(string(status)) {
			key, value, _ := strings.Cut(strings.TrimSpace(says), ":\t")
			switch key {
			case "Seccomp", "Seccomp_filters", "NoNewPrivs", "CapPrm", "CapEff", "CapAmb", "Uid", "Gid":
				line += " " + key + "=" + strings.ReplaceAll(value, "\t", ",")
			}
		}
		for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
			own, _ := os.Readlink(at + "ns/" + ns)
			if ours, _ := os.Readlink("/proc/self/ns/" + ns); own == ours {
				line += " shares " + ns
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// descendants lists the descendants of a process. It reads the parent of every process, because
// /proc/PID/task/TID/children may omit some while others exit (proc_pid_task(5)).
func descendants(pid int) (all []int) {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has exited
		}
		var child, parent int
		var state string
		after := text[bytes.LastIndexByte(text, ')')+1:]
		if _, err := fmt.Sscan(string(after), &state, &parent); err != nil {
			continue
		}
		if child, err = strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		all = append(all, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return all
}

// Offsets in struct seccomp_data (linux/seccomp.h), on little-endian machines.
const (
	dataCall     = 0
	dataHighAddr = 12 // the high half of the instruction pointer
)

// stopAtCalls makes calls of this thread, and of everything that it forks, stop for the tracer. Calls from code above 4
// GiB do not stop. This binary is linked below; the processes in which gVisor runs the sandbox's code make calls from
// above, on behalf of gVisor, their tracer.
func stopAtCalls() error {
	p := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dataHighAddr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 1, Jf: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dataCall},
	}
	for nr := range disturbed {
		p = append(p,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jt: 0, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE})
	}
	p = append(p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("install the filter: %w", e)
	}
	return nil
}

// disturber traces a start.
type disturber struct {
	Disturbance
	starter int
	known   map[int]bool // tasks that have stopped before
	counts  map[Step]int // by role and call
	over    bool         // the start has ended
	failed  string
}

// disturb runs a starter until it and everything that it started has exited.
func disturb(d Disturbance, text string) error {
	runtime.LockOSThread() // ptrace(2) requires the same thread
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{DisturbedArgv0, text}, Env: os.Environ(),
		Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Ptrace: true},
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t := &disturber{Disturbance: d, starter: cmd.Process.Pid, known: map[int]bool{}, counts: map[Step]int{}}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(t.starter, &ws, unix.WALL, nil); err != nil {
		return err
	}
	t.known[t.starter] = true
	const follow = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEFORK |
		unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC
	if err := unix.PtraceSetOptions(t.starter, follow); err != nil {
		return fmt.Errorf("trace the starter: %w", err)
	}
	for at := t.starter; ; {
		if err := t.resume(at, t.signal(at, ws)); err != nil && !errors.Is(err, unix.ESRCH) { // killed meanwhile
			return fmt.Errorf("resume %d: %w", at, err)
		}
		for {
			pid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if errors.Is(err, unix.ECHILD) {
				return json.NewEncoder(os.Stdout).Encode(t.report())
			}
			if err != nil {
				return err
			}
			if ws.Stopped() {
				at = pid
				break
			}
		}
	}
}

// sentryRole is the role of gVisor's kernel, and of each process that it forks to run the sandbox's code.
const sentryRole = "runsc-sandbox"

// resume continues a task with a signal. A process of gVisor that runs the sandbox's code, and stops itself when it is
// ready, is detached for gVisor: a task can have only one tracer.
func (t *disturber) resume(tid, sig int) error {
	if sig == int(unix.SIGSTOP) && roleOf(tid) == sentryRole {
		if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(sig), 0, 0); e != 0 {
			return e
		}
		return nil
	}
	return unix.PtraceCont(tid, sig)
}

// signal handles a stop, and returns the signal with which the task continues.
func (t *disturber) signal(tid int, ws unix.WaitStatus) int {
	switch {
	case !t.known[tid]:
		t.known[tid] = true
		if ws.StopSignal() == unix.SIGSTOP { // the first stop after attaching
			return 0
		}
	case ws.StopSignal() == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
		t.call(tid)
		return 0
	}
	if ws.StopSignal() == unix.SIGTRAP {
		return 0
	}
	return int(ws.StopSignal())
}

// entry is a call at which a task has stopped.
type entry struct {
	call int
	args [5]uint64
}

// call counts a call, and makes it fail if it is the step.
func (t *disturber) call(tid int) {
	if t.over {
		return
	}
	e, err := entryOf(tid)
	if err != nil {
		return // it was killed
	}
	role := roleOf(tid)
	if role == DisturbedArgv0 {
		t.over = e.call == unix.SYS_WRITE && e.args[0] == 1
		return
	}
	if ofTheRuntime(tid, e) {
		return
	}
	s := Step{Role: role, Call: e.call}
	t.counts[s]++
	if role != t.Step.Role || e.call != t.Step.Call || t.counts[s] < t.Step.K || t.counts[s] > t.Step.K && !t.Always {
		return
	}
	t.failed = fmt.Sprintf("%s(%#x %s, %#x %s, %#x, %#x, %#x)", disturbed[e.call],
		e.args[0], fileOf(tid, e.args[0]), e.args[1], textOf(tid, e.args[1]), e.args[2], e.args[3], e.args[4])
	_ = failCall(tid, t.Errno) // ESRCH: it was killed
}

// ofTheRuntime reports whether a call is the Go runtime's own, and its failure would end or hang the process: a thread,
// its wake-ups, its checks of the standard files, and the eight bytes by which syscall.ForkExec learns of an error of
// its child.
func ofTheRuntime(tid int, e entry) bool {
	switch e.call {
	case unix.SYS_CLONE:
		return e.args[0]&unix.CLONE_THREAD != 0
	case unix.SYS_CLONE3:
		flags := make([]byte, 8)
		_, err := unix.PtracePeekData(tid, uintptr(e.args[0]), flags)
		return err != nil || binary.NativeEndian.Uint64(flags)&unix.CLONE_THREAD != 0
	case unix.SYS_READ, unix.SYS_WRITE:
		file := fileOf(tid, e.args[0])
		return strings.Contains(file, "eventfd") || strings.HasPrefix(file, "pipe:") && e.args[2] == 8
	case unix.SYS_FCNTL:
		return e.args[0] <= 2
	}
	return false
}

// roleOf returns the base name of the argv[0] of a task's process.
func roleOf(tid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/cmdline")
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(b), "\x00")
	return filepath.Base(name)
}

func fileOf(tid int, fd uint64) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)))
	if err != nil {
		return ""
	}
	return name
}

func textOf(tid int, at uint64) string {
	b := make([]byte, 64)
	n, err := unix.PtracePeekData(tid, uintptr(at), b)
	if err != nil {
		return ""
	}
	text, _, _ := bytes.Cut(b[:n], []byte{0})
	return strconv.Quote(string(text))
}

func (t *disturber) report() (r Disturbed) {
	for s, n := range t.counts {
		s.K = n
		r.Steps = append(r.Steps, s)
	}
	r.Failed = t.failed
	return r
}
