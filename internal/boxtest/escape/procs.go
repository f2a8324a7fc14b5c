//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
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
)

// processes returns the pids that /proc shows, and always 1.
func processes() []int {
	pids := []int{1}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if n, err := strconv.Atoi(filepath.Base(d)); err == nil && n != 1 {
			pids = append(pids, n)
		}
	}
	return pids
}

// outsiders returns processes that are neither the attacker nor started by a command: init, and another one that must
// not be visible.
func outsiders(f Facts) []int { return []int{1, f.Victim} }

var procAttacks = []Attack{
	{Name: "proc-links", None: Kernel, What: "go through root, cwd, exe and fd links of every process in /proc",
		Run: func(f Facts) error {
			return each(processes(), func(pid int) error {
				var ways []string
				for _, l := range []string{"root", "cwd"} {
					for _, file := range f.Files {
						ways = append(ways, fmt.Sprintf("/proc/%d/%s%s", pid, l, file),
							fmt.Sprintf("/proc/%d/%s%s%s", pid, l, strings.Repeat("/..", 32), file))
					}
				}
				fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
				tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/fd/*", pid))
				for _, fd := range append(fds, tasks...) {
					ways = append(ways, fd)
					for _, file := range f.Files {
						ways = append(ways, fd+file, fd+"/"+filepath.Base(file))
					}
				}
				return each(ways, f.read)
			})
		}},
	{Name: "init-links", Emulated: "names of namespaces of the sandbox's own kernel", None: Kernel,
		What: "read where init's links lead", Run: func(f Facts) error {
			return each([]string{"root", "cwd", "exe", "ns/mnt", "ns/user", "fd/0", "fd/3"}, func(l string) error {
				to, err := os.Readlink("/proc/1/" + l)
				if strings.HasPrefix(l, "ns/") && !slices.Contains(f.Words, to) {
					return f.own(err)
				}
				return err
			})
		}},
	{Name: "init-files", Emulated: "counts of the sandbox's own kernel", None: Kernel,
		What: "read init's memory, environment, maps and state", Run: func(f Facts) error {
			return each(
				[]string{"mem", "environ", "maps", "smaps", "auxv", "stack", "syscall", "pagemap", "io", "task/1/mem", "map_files"},
				func(l string) error {
					b, err := os.ReadFile("/proc/1/" + l)
					if err != nil {
						return err
					}
					if len(b) == 0 {
						return errNothing
					}
					if l == "io" {
						return f.own(nil)
					}
					return nil
				})
		}},
	{Name: "environments", None: Kernel, What: "read the environment of every process", Run: func(f Facts) error {
		return each(processes(), func(pid int) error {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil {
				return err
			}
			return f.holds(b)
		})
	}},
	{Name: "ptrace", Refused: []string{"ptrace"}, What: "attach to init and to a process outside",
		Run: func(f Facts) error {
			return each(outsiders(f), func(pid int) error {
				for _, req := range []int{unix.PTRACE_ATTACH, unix.PTRACE_SEIZE} {
					if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(req), uintptr(pid), 0, 0, 0, 0); e == 0 {
						return nil
					} else if req == unix.PTRACE_SEIZE {
						return e
					}
				}
				return errNothing
			})
		}},
	{Name: "changed-call", Refused: []string{"unshare"},
		What: "have a tracer change a call that is allowed into one that is not, or into a signal to init", Run: changeCalls},
	{Name: "process-memory", Refused: []string{"process_vm_readv"},
		What: "read init's and an outsider's memory by process_vm_readv", Run: func(f Facts) error {
			return each(outsiders(f), func(pid int) error {
				b := make([]byte, 8)
				// The address at which the text of a Go program begins. Init is a Go program.
				_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: 8}},
					[]unix.RemoteIovec{{Base: 0x401000, Len: 8}}, 0)
				return err
			})
		}},
	{Name: "pidfd", Refused: []string{"pidfd_getfd"}, What: "take descriptors out of init", Run: func(f Facts) error {
		return each(outsiders(f), func(pid int) error {
			p, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				p, err = unix.Open(fmt.Sprintf("/proc/%d", pid), unix.O_RDONLY|unix.O_DIRECTORY, 0)
			}
			if err != nil {
				return err
			}
			return each([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}, func(fd int) error { _, err := unix.PidfdGetfd(p, fd, 0); return err })
		})
	}},
	{Name: "signal-outside", None: Kernel, What: "signal a process outside (the victim counts)", Run: func(f Facts) error {
		for _, sig := range []unix.Signal{unix.SIGUSR1, unix.SIGTERM} {
			for _, pid := range []int{f.Victim, -f.Victim} {
				_ = unix.Kill(pid, sig)
			}
		}
		return errors.New("the victim says")
	}},
	{Name: "start-unseen",
		What: "start a program that is not recorded: out of memory, under a tracer, by the x32 number, for a moment, " +
			"with many at once (the record says)",
		Starts: unseen, Run: startUnseen},
	{Name: "signal-init", None: Kernel, What: "kill init, by every signal and every call", Run: func(f Facts) error {
		for sig := unix.Signal(1); sig <= 64; sig++ {
			_ = unix.Kill(1, sig)
			_ = unix.Tgkill(1, 1, sig)
			info := [128]byte{}
			*(*int32)(unsafe.Pointer(&info[0])) = int32(sig)
			*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
			_, _, _ = unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(sig), uintptr(unsafe.Pointer(&info[0])))
		}
		return initLives()
	}},
	{Name: "signal-launcher", Refused: []string{"prlimit64"}, What: "stop or kill every thread of init",
		Run: func(f Facts) error {
			tasks, _ := filepath.Glob("/proc/1/task/*")
			for _, t := range tasks {
				tid, _ := strconv.Atoi(filepath.Base(t))
				_ = unix.Tgkill(1, tid, unix.SIGSTOP)
				_ = unix.Tgkill(1, tid, unix.SIGKILL)
			}
			_ = unix.Setpriority(unix.PRIO_PROCESS, 1, 19)
			_, _, e := unix.RawSyscall6(unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE,
				uintptr(unsafe.Pointer(&unix.Rlimit{Cur: 1, Max: 1})), 0, 0, 0)
			if e == 0 {
				return nil
			}
			return e
		}},
	{Name: "capabilities", None: Nothing, What: "find a capability that commands must not have, or that can be got back",
		Run: func(f Facts) error {
			b, err := os.ReadFile("/proc/self/status")
			if err != nil {
				return err
			}
			const forbidden = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW |
				1<<unix.CAP_SYS_MODULE |
				1<<unix.CAP_SYS_BOOT | 1<<unix.CAP_SYS_RAWIO | 1<<unix.CAP_SYS_TIME | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON |
				1<<unix.CAP_DAC_READ_SEARCH |
				1<<unix.CAP_SYSLOG | 1<<unix.CAP_MAC_ADMIN | 1<<unix.CAP_CHECKPOINT_RESTORE | 1<<unix.CAP_IPC_OWNER
			for line := range strings.Lines(string(b)) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
				switch key {
				case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb":
					if v, err := strconv.ParseUint(value, 16, 64); err != nil || v&forbidden != 0 {
						tell(os.Stdout, line)
						return nil
					}
				case "NoNewPrivs":
					if value != "1" {
						tell(os.Stdout, line)
						return nil
					}
				case "Seccomp": // the sandbox's own kernel refuses calls without a filter
					if value != "2" && !f.Own {
						tell(os.Stdout, line)
						return nil
					}
				}
			}
			return errNothing
		}},
	{Name: "nested-namespaces", Refused: []string{"unshare", "clone"},
		What: "make user and other namespaces by clone, clone3 and unshare", Run: func(f Facts) error {
			flags := []int{unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWIPC,
				unix.CLONE_NEWUTS,
				unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME, unix.CLONE_NEWUSER | unix.CLONE_NEWNS}
			return each(flags, func(flag int) error {
				if err := unix.Unshare(flag); err == nil {
					return nil
				}
				if flag == unix.CLONE_NEWTIME {
					return errNothing
				}
				cmd := exec.Command("/proc/self/exe")
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(flag)}
				if err := cmd.Start(); err == nil {
					_ = cmd.Wait()
					return nil
				}
				args := struct {
					flags, pidfd, childTid, parentTid, exit, stack, size, tls uint64
				}{flags: uint64(flag), exit: uint64(unix.SIGCHLD)}
				pid, _, e := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
				switch {
				case e == 0 && pid == 0:
					_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
				case e == 0:
					return nil
				}
				return e
			})
		}},
	{Name: "setns", Refused: []string{"setns"}, What: "enter the namespaces of init, of others and of pidfds",
		Run: func(f Facts) error {
			return each(processes(), func(pid int) error {
				links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", pid))
				if len(links) == 0 {
					links = []string{fmt.Sprintf("/proc/%d/ns/mnt", pid)}
				}
				err := each(links, func(l string) error {
					fd, err := unix.Open(l, unix.O_RDONLY, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					return unix.Setns(fd, 0)
				})
				if err == nil {
					return nil
				}
				p, perr := unix.PidfdOpen(pid, 0)
				if perr != nil {
					return errors.Join(err, perr)
				}
				defer unix.Close(p)
				return unix.Setns(p, unix.CLONE_NEWNS|unix.CLONE_NEWUSER)
			})
		}},
	{Name: "uid-map", None: Files, What: "write the id maps of our user namespace", Run: func(f Facts) error {
		// Not projid_map: every process may write it once, and ids of quota projects cannot be used in a user namespace
		// (fs/ioctl.c, fileattr_set_prepare).
		return each([]string{"uid_map", "gid_map", "setgroups"}, func(m string) error {
			return os.WriteFile("/proc/self/"+m, []byte("0 0 1\n"), 0)
		})
	}},
	{Name: "shared-memory", None: Kernel, What: "attach a System V segment of the host", Run: func(f Facts) error {
		_, err := unix.SysvShmGet(f.ShmKey, 0, 0)
		return err
	}},
}

// unseen are the argv[0] with which startUnseen starts programs.
var unseen = []string{"unseen-memory", "unseen-traced", "unseen-brief", "unseen-crowd"}

// startUnseen starts programs in ways that a record might miss.
func startUnseen(Facts) error {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("unseen", 0)
	if err != nil {
		return err
	}
	memory := os.NewFile(uintptr(fd), "memory")
	defer memory.Close()
	if _, err := memory.Write(program); err != nil {
		return err
	}
	errs := []error{(&exec.Cmd{Path: fmt.Sprintf("/proc/self/fd/%d", fd), Args: []string{"unseen-memory"}}).Run()}
	traced := &exec.Cmd{Path: "/bin/true", Args: []string{"unseen-traced"},
		SysProcAttr: &syscall.SysProcAttr{Ptrace: true}}
	if err := traced.Start(); err == nil {
		_ = traced.Process.Kill()
		_ = traced.Wait() // it was killed
	}
	errs = append(errs, (&exec.Cmd{Path: "/bin/true", Args: []string{"unseen-brief"}}).Run())
	done := make(chan error)
	for range 64 {
		go func() { done <- (&exec.Cmd{Path: "/bin/true", Args: []string{"unseen-crowd"}}).Run() }()
	}
	for range 64 {
		errs = append(errs, <-done)
	}
	name, _ := unix.BytePtrFromString("/bin/true")
	if err := sys(0x40000000+520, ptr(name), 0, 0); !errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return errors.Join(append(errs, errors.New("the record says"))...)
}

// changeCalls changes calls after they were made: ptrace(2) lets a tracer do so after the filters have run, if the
// kernel runs those first.
func changeCalls(Facts) error {
	_ = changedCall(unix.SYS_KILL, 1, uintptr(unix.SIGKILL)) // init must not receive it, whatever the result
	if changedCall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0) == nil {
		return nil
	}
	return initLives()
}

// changedCall starts a process, changes the first call that it makes, and returns the result.
func changedCall(nr, arg0, arg1 uintptr) error {
	runtime.LockOSThread() // ptrace(2) requires the same thread
	defer runtime.UnlockOSThread()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{Argv0}, SysProcAttr: &syscall.SysProcAttr{Ptrace: true}}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	pid := cmd.Process.Pid
	// The process stops after it was executed, before its first call, and after that call.
	for _, next := range []func() error{
		func() error { return unix.PtraceSyscall(pid, 0) },
		func() error { return errors.Join(changeCall(pid, nr, arg0, arg1), unix.PtraceSyscall(pid, 0)) },
		func() error { return callResult(pid) },
	} {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
			return err
		}
		if !ws.Stopped() {
			return errNothing
		}
		if err := next(); err != nil {
			return err
		}
	}
	return nil
}
