//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ptr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// sys returns nil if a call succeeded. Arguments are chosen so that a success is harmless.
func sys(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// failed returns the error of a call that has left r in the result register.
func failed(r uint64) error {
	if e := -int64(r); e > 0 && e < 4096 {
		return unix.Errno(e)
	}
	return nil
}

var empty [256]byte

// ownFiles are files of gVisor's own kernel, which discards writes to most of them (fsimpl/proc). The harness checks
// those that also exist on the host.
var ownFiles = map[string]bool{
	"/proc/sysrq-trigger": true, "/proc/sys/kernel/hostname": true, "/proc/sys/kernel/pid_max": true,
	"/proc/sys/vm/overcommit_memory": true, "/proc/sys/net/ipv4/ip_forward": true,
}

var kernelAttacks = []Attack{
	{Name: "io-uring", None: Ordinary, What: "make a ring, whose operations no filter sees", Run: func(f Facts) error {
		var params [120]byte
		return sys(unix.SYS_IO_URING_SETUP, 8, ptr(&params))
	}},
	{Name: "bpf", Refused: []string{"bpf"}, What: "make a map", Run: func(f Facts) error {
		attr := [18]uint32{2, 4, 4, 1} // BPF_MAP_TYPE_ARRAY, key, value, entries
		return sys(unix.SYS_BPF, 0, ptr(&attr), unsafe.Sizeof(attr))
	}},
	{Name: "perf", Refused: []string{"perf_event_open"}, What: "open a performance counter", Run: func(f Facts) error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
		_, err := unix.PerfEventOpen(&attr, 0, -1, -1, 0)
		return err
	}},
	{Name: "userfaultfd", Refused: []string{"userfaultfd"}, What: "make one, to win races with",
		Run: func(f Facts) error { return sys(unix.SYS_USERFAULTFD, 1) }},
	{Name: "keyring", Refused: []string{"keyctl", "add_key", "request_key"},
		What: "use the kernel's keyrings, which no namespace divides", Run: func(f Facts) error {
			return any1(map[string]func() error{
				"session": func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); return err },
				"user":    func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true); return err },
				"add": func() error {
					_, err := unix.AddKey("user", "escape", []byte("x"), unix.KEY_SPEC_USER_KEYRING)
					return err
				},
				"request": func() error { _, err := unix.RequestKey("user", "escape", "", 0); return err },
			})
		}},
	{Name: "machine",
		Refused: []string{"init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapoff", "acct", "syslog",
			"quotactl", "fanotify_init"}, What: "modules, kexec, reboot, swap, clock, accounting, ports, kernel log, quotas",
		Run: func(f Facts) error {
			var now unix.Timespec
			_ = unix.ClockGettime(unix.CLOCK_REALTIME, &now)
			ways := map[string]func() error{
				"init_module":   func() error { return sys(unix.SYS_INIT_MODULE, ptr(&empty), 0, ptr(&empty)) },
				"finit_module":  func() error { return sys(unix.SYS_FINIT_MODULE, 0, ptr(&empty), 0) },
				"delete_module": func() error { return sys(unix.SYS_DELETE_MODULE, ptr(&empty), unix.O_NONBLOCK) },
				"kexec_load":    func() error { return sys(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) },
				"reboot": func() error {
					return sys(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF, 0)
				},
				"swapoff":       func() error { return sys(unix.SYS_SWAPOFF, ptr(&empty)) },
				"clock_settime": func() error { return sys(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, ptr(&now)) },
				"acct":          func() error { return sys(unix.SYS_ACCT, 0) },
				"syslog":        func() error { return sys(unix.SYS_SYSLOG, 10, 0, 0) },
				"quotactl":      func() error { return sys(unix.SYS_QUOTACTL, 0x800001<<8, 0, 0, 0) },
				"fanotify":      func() error { return sys(unix.SYS_FANOTIFY_INIT, 0, 0) },
				"setdomainname": func() error { return sys(unix.SYS_SETDOMAINNAME, ptr(&empty), 0) },
			}
			for name, nr := range archCalls {
				ways[name] = func() error { return sys(nr, 3, 1, 1) }
			}
			return any1(ways)
		}},
	{Name: "lease", None: "the answer is that of a file system without leases, which programs handle",
		What: "take a lease on a file, so that init, when it starts the program, or a capture, when it reads the file, waits",
		Run: func(f Facts) error {
			fd, err := unix.Open("/tmp/leased", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o755)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return each([]int{unix.F_RDLCK, unix.F_WRLCK}, func(kind int) error {
				_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, kind)
				return err
			})
		}},
	{Name: "unknown-calls", None: Ordinary, What: "calls that are newer than the filter", Run: func(f Facts) error {
		numbers := make([]uintptr, 0, 64)
		for n := uintptr(470); n < 534; n++ {
			numbers = append(numbers, n)
		}
		return each(numbers, func(n uintptr) error {
			if err := sys(n, 0, 0, 0, 0, 0, 0); !errors.Is(err, unix.ENOSYS) {
				return nil
			}
			return unix.ENOSYS
		})
	}},
	{Name: "x32", None: Ordinary, What: "enter by the x32 numbers, past the filter's", Run: func(f Facts) error {
		return each([]uintptr{0x40000000 + 39, 0x40000000 + 165, 0x40000000 + 520}, func(n uintptr) error {
			if err := sys(n, 0, 0, 0); !errors.Is(err, unix.ENOSYS) {
				return nil
			}
			return unix.ENOSYS
		})
	}},
	{Name: "int80", What: "enter by the 32-bit gate, past the filter's numbers", Killed: true, Run: func(f Facts) error {
		if pid, ok := int80(20); ok && pid > 0 { // getpid of i386
			return nil
		}
		return errors.New("not answered")
	}},
	{Name: "kernel-files", Emulated: "files of the sandbox's own kernel", None: Files,
		What: "open what changes the machine in /proc and /sys", Run: func(f Facts) error {
			paths := []string{
				"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug",
				"/proc/sys/kernel/panic",
				"/proc/sys/kernel/hostname", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/ns_last_pid", "/proc/sys/vm/drop_caches",
				"/proc/sys/vm/overcommit_memory",
				"/proc/sys/fs/binfmt_misc/register", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces",
				"/proc/acpi/wakeup", "/proc/mtrr",
				"/proc/irq/default_smp_affinity", "/proc/bus/pci/00/00.0", "/proc/kcore", "/proc/kmsg",
				"/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled",
				"/sys/module/kernel/parameters/panic",
				"/sys/kernel/debug", "/sys/kernel/tracing/trace", "/sys/fs/bpf", "/sys/block/vda/queue/scheduler",
				"/sys/firmware/efi/vars",
			}
			for _, pattern := range []string{"/sys/fs/cgroup/*/release_agent", "/sys/fs/cgroup/cgroup.procs",
				"/sys/fs/cgroup/*/cgroup.procs",
				"/sys/fs/cgroup/*/cgroup.subtree_control", "/sys/class/*/*/uevent", "/sys/bus/*/drivers_probe"} {
				found, _ := filepath.Glob(pattern)
				paths = append(paths, found...)
			}
			return each(paths, func(p string) error {
				err := writable(p)
				if ownFiles[p] {
					return f.own(err)
				}
				return err
			})
		}},
	{Name: "kernel-secrets", None: Files, What: "read what the kernel tells of the whole machine",
		Run: func(f Facts) error {
			return each(
				[]string{"/proc/kcore", "/proc/keys", "/proc/kmsg", "/dev/kmsg", "/proc/timer_list", "/proc/sched_debug",
					"/proc/latency_stats",
					"/proc/acpi/event", "/sys/kernel/notes/x", "/sys/kernel/debug/x"}, func(p string) error {
					fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					b := make([]byte, 64)
					n, err := unix.Read(fd, b)
					if err != nil {
						return err
					}
					if n == 0 {
						return errNothing
					}
					return nil
				})
		}},
	{Name: "seccomp-listener", Refused: []string{"userfaultfd"}, What: "get another listener in place of init's",
		Run: func(f Facts) error {
			filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
			prog := unix.SockFprog{Len: 1, Filter: &filter[0]}
			if err := sys(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, ptr(&prog)); err != nil {
				return err
			}
			// Filters only accumulate: calls that were refused before must still be refused.
			return sys(unix.SYS_USERFAULTFD, 1)
		}},
	{Name: "personality", Refused: []string{"personality"}, What: "make data executable for what is executed next",
		Run: func(f Facts) error { return sys(unix.SYS_PERSONALITY, 0x400000) }},
	{Name: "terminal-input", Refused: []string{"ioctl"},
		What: "type into the terminal (TIOCSTI, TIOCLINUX), with rubbish in the high half of the request",
		Run: func(f Facts) error {
			m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("no terminal: %w", err)
			}
			var zero, n int32
			_ = sys(unix.SYS_IOCTL, uintptr(m), unix.TIOCSPTLCK, ptr(&zero))
			if err := sys(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTN, ptr(&n)); err != nil {
				return err
			}
			_, _ = unix.Setsid()
			s, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR, 0)
			if err != nil {
				return fmt.Errorf("no terminal: %w", err)
			}
			_ = sys(unix.SYS_IOCTL, uintptr(s), unix.TIOCSCTTY, 1)
			return each([]uintptr{0x5412, 0x541c, 0xdead00005412, 0x541d, 0x5423}, func(req uintptr) error {
				return sys(unix.SYS_IOCTL, uintptr(s), req, ptr(&empty))
			})
		}},
	{Name: "deputy", None: Kernel, What: "make init follow its own /proc links for us, by the calls that it answers",
		Run: func(f Facts) error {
			deadline := time.Now().Add(200 * time.Millisecond)
			for time.Now().Before(deadline) {
				for _, file := range f.Files {
					for _, via := range []string{"/proc/1/root", "/proc/1/cwd", "/proc/self/../1/root", "/proc/1/task/1/root"} {
						var st unix.Stat_t
						// Without an answer from init, a call with the only mapped id succeeds and does nothing.
						if err := unix.Chown(via+file, 12345, 12345); err == nil && (!f.Own || unix.Stat(via+file, &st) == nil) {
							return nil
						}
						if err := unix.Setxattr(via+file, "security.capability", empty[:20], 0); err == nil {
							return nil
						}
						planted := via + filepath.Dir(file) + "/planted"
						if err := unix.Mknod(planted, unix.S_IFCHR|0o666, 259); err == nil &&
							(!f.Own || unix.Lstat(planted, &st) == nil) {
							return nil
						}
						if err := unix.Rename(via+filepath.Dir(file), via+filepath.Dir(file)+"-moved"); err == nil {
							return nil
						}
					}
				}
			}
			return errNothing
		}},
}
