//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// call is the input of a filter (struct seccomp_data).
type call struct {
	nr, arch uint32
	args     [6]uint64
}

func (c call) word(off uint32) uint32 {
	switch off {
	case offNr:
		return c.nr
	case offArch:
		return c.arch
	}
	a := c.args[(off-offArgs)/8]
	if (off-offArgs)%8 != 0 {
		return uint32(a >> 32)
	}
	return uint32(a)
}

// run interprets a program. argRead says whether it read an argument; the kernel's cache of allowed calls cannot
// contain such a call.
func run(t *testing.T, p []unix.SockFilter, c call) (a Action, argRead bool) {
	t.Helper()
	a, argRead, ok := interpret(p, c)
	if !ok {
		t.Fatal("the program runs past its end, or has an unknown instruction")
	}
	return a, argRead
}

func interpret(p []unix.SockFilter, c call) (a Action, argRead, ok bool) {
	var acc uint32
	for pc := 0; pc < len(p); pc++ {
		in := p[pc]
		branch := func(ok bool) {
			if ok {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case opLoad:
			acc = c.word(in.K)
			argRead = argRead || in.K >= offArgs
		case opAnd:
			acc &= in.K
		case opJeq:
			branch(acc == in.K)
		case opJge:
			branch(acc >= in.K)
		case opJset:
			branch(acc&in.K != 0)
		case opRet:
			return Action(in.K), argRead, true
		default:
			return 0, false, false
		}
	}
	return 0, false, false
}

func TestHardening(t *testing.T) {
	t.Parallel()
	eperm, enosys := Errno(unix.EPERM), Errno(unix.ENOSYS)
	high := uint64(0xdead) << 32
	tests := []struct {
		name string
		nr   uint32
		args [6]uint64
		want Action
	}{
		{"read", unix.SYS_READ, [6]uint64{}, Allow},
		{"openat2", unix.SYS_OPENAT2, [6]uint64{}, Allow},
		{"ptrace", unix.SYS_PTRACE, [6]uint64{}, Allow},
		{"chroot", unix.SYS_CHROOT, [6]uint64{}, Allow},
		{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, [6]uint64{}, Allow},
		{"listmount", unix.SYS_LISTMOUNT, [6]uint64{}, Allow},
		{"last known", lastKnownCall, [6]uint64{}, Allow},
		{"first unknown", lastKnownCall + 1, [6]uint64{}, enosys},
		{"no call", 0xffffffff, [6]uint64{}, enosys},
		{"x32 write", 0x40000001, [6]uint64{}, enosys},
		{"bpf", unix.SYS_BPF, [6]uint64{}, eperm},
		{"mount", unix.SYS_MOUNT, [6]uint64{}, eperm},
		{"mount_setattr", unix.SYS_MOUNT_SETATTR, [6]uint64{}, eperm},
		{"open_tree_attr", unix.SYS_OPEN_TREE_ATTR, [6]uint64{}, eperm},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uint64{}, enosys},
		{"io_setup", unix.SYS_IO_SETUP, [6]uint64{128}, enosys},
		{"clone thread", unix.SYS_CLONE, [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_PARENT}, Allow},
		{"clone signal bits", unix.SYS_CLONE, [6]uint64{0xff}, Allow},
		{"clone user", unix.SYS_CLONE, [6]uint64{unix.CLONE_NEWUSER}, eperm},
		{"clone net", unix.SYS_CLONE, [6]uint64{high | unix.CLONE_NEWNET}, eperm},
		{"clone3", unix.SYS_CLONE3, [6]uint64{}, enosys},
		{"unshare fs", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_FS}, Allow},
		{"unshare time", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_NEWTIME}, eperm},
		{"unshare cgroup", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_NEWCGROUP | unix.CLONE_FS}, eperm},
		{"fcntl F_SETLEASE", unix.SYS_FCNTL, [6]uint64{3, unix.F_SETLEASE, unix.F_WRLCK}, Errno(unix.EINVAL)},
		{"fcntl F_SETLEASE with rubbish above", unix.SYS_FCNTL, [6]uint64{3, high | unix.F_SETLEASE, unix.F_RDLCK},
			Errno(unix.EINVAL)},
		{"fcntl F_NOTIFY", unix.SYS_FCNTL, [6]uint64{3, unix.F_NOTIFY, 1}, Errno(unix.EINVAL)},
		{"fcntl F_GETLEASE", unix.SYS_FCNTL, [6]uint64{3, unix.F_GETLEASE}, Allow},
		{"fcntl F_SETLK", unix.SYS_FCNTL, [6]uint64{3, unix.F_SETLK, 0x1000}, Allow},
		{"ioctl TCGETS", unix.SYS_IOCTL, [6]uint64{0, 0x5401}, Allow},
		{"ioctl TIOCSTI", unix.SYS_IOCTL, [6]uint64{0, 0x5412}, eperm},
		{"ioctl TIOCSTI with rubbish above", unix.SYS_IOCTL, [6]uint64{0, high | 0x5412}, eperm},
		{"ioctl FICLONE", unix.SYS_IOCTL, [6]uint64{0, 0x40049409}, Allow},
		{"ioctl FICLONERANGE", unix.SYS_IOCTL, [6]uint64{0, 0x4020940d}, Allow},
		{"ioctl FIDEDUPERANGE", unix.SYS_IOCTL, [6]uint64{0, 0xc0189436}, Allow},
		{"ioctl BTRFS_IOC_SUBVOL_SETFLAGS", unix.SYS_IOCTL, [6]uint64{0, 0x4008941a}, Errno(unix.ENOTTY)},
		{"ioctl BTRFS_IOC_SUBVOL_SETFLAGS with rubbish above", unix.SYS_IOCTL, [6]uint64{0, high | 0x4008941a},
			Errno(unix.ENOTTY)},
		{"ioctl BTRFS_IOC_SET_RECEIVED_SUBVOL", unix.SYS_IOCTL, [6]uint64{0, 0xc0c89425}, Errno(unix.ENOTTY)},
		{"ioctl BTRFS_IOC_SUBVOL_CREATE", unix.SYS_IOCTL, [6]uint64{0, 0x5000940e}, Errno(unix.ENOTTY)},
		{"ioctl of btrfs that no kernel has", unix.SYS_IOCTL, [6]uint64{0, 0x400894ff}, Errno(unix.ENOTTY)},
		{"ioctl TIOCLINUX", unix.SYS_IOCTL, [6]uint64{0, 0x541c}, eperm},
		{"personality query", unix.SYS_PERSONALITY, [6]uint64{0xffffffff}, Allow},
		{"personality no random", unix.SYS_PERSONALITY, [6]uint64{0x40000}, Allow},
		{"personality exec", unix.SYS_PERSONALITY, [6]uint64{0x400000}, eperm},
		{"prlimit self", unix.SYS_PRLIMIT64, [6]uint64{0, 7}, Allow},
		{"prlimit other", unix.SYS_PRLIMIT64, [6]uint64{1, 7}, eperm},
		{"prlimit by a negative pid", unix.SYS_PRLIMIT64, [6]uint64{0xffffffff, 7}, eperm},
		{"socket inet", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 6}, Allow},
		{"socket inet6", unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM, 0}, Allow},
		{"socket unix seqpacket", unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0}, Allow},
		{"socketpair unix", unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, Allow},
		{"socketpair tipc", unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_TIPC, unix.SOCK_STREAM, 0}, Errno(unix.EAFNOSUPPORT)},
		{"socket inet seqpacket", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_SEQPACKET, 0},
			Errno(unix.ESOCKTNOSUPPORT)},
		{"socket sctp", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
			Errno(unix.EPROTONOSUPPORT)},
		{"socket vsock", unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, Errno(unix.EAFNOSUPPORT)},
		{"socket netlink", unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, Errno(unix.EAFNOSUPPORT)},
		{"socket vsock with rubbish above", unix.SYS_SOCKET, [6]uint64{high | unix.AF_VSOCK, 1, 0}, Errno(unix.EAFNOSUPPORT)},
	}
	prog := Hardening(Options{})
	for _, tt := range tests {
		if got, _ := run(t, prog, call{nr: tt.nr, arch: nativeArch, args: tt.args}); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
	for _, arch := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM} {
		if got, _ := run(t, prog, call{nr: 1, arch: arch}); got != Kill {
			t.Errorf("architecture %#x: %#x, want kill", arch, got)
		}
	}
	for family := range uint64(64) {
		got, _ := run(t, prog, call{nr: unix.SYS_SOCKET, arch: nativeArch, args: [6]uint64{family, 1}})
		open := family == unix.AF_UNIX || family == unix.AF_INET || family == unix.AF_INET6
		if open != (got == Allow) {
			t.Errorf("socket family %d: %#x", family, got)
		}
	}
}

// TestInner_AnswersLikeHardening checks that a command gets the same results inside as in other tiers, except for the
// calls that Inner adds, and that the same calls are reported.
func TestInner_AnswersLikeHardening(t *testing.T) {
	t.Parallel()
	besides := Answers{}
	for _, r := range innerRules(true) {
		for _, nr := range r.Calls {
			besides[nr] = r
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Netlink: rapid.Bool().Draw(t, "netlink")}
		c := drawCall(t, lastKnownCall)
		got, told := Inner(rapid.Bool().Draw(t, "emulate"), o).Answer(c.nr, c.args)
		want := answer(t, Hardening(o), c)
		if r, ok := besides[c.nr]; ok && r.answer(c.args) != Allow {
			return
		}
		with := o
		with.Report = true
		if handed := answer(t, Notifying(NotifyOptions{Refuse: with}), c) == Notify; got != want || handed != (told != "") {
			t.Fatalf("call %d %x: %#x, want %#x; reported as %q, elsewhere %t", c.nr, c.args, got, want, told, handed)
		}
	})
}

func TestInner_AdditionalRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		nr   uint32
		args [6]uint64
		want Action
	}{
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_GETFL}, Allow},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETOWN, 20}, Allow},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETOWN, 1}, Errno(unix.EPERM)},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETOWN, 0xffffffffffffffff}, Errno(unix.EPERM)},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETOWN_EX, 0x1000}, Errno(unix.EINVAL)},
		{unix.SYS_IOCTL, [6]uint64{3, fiosetown, 0x1000}, Errno(unix.EINVAL)},
		{unix.SYS_IOCTL, [6]uint64{3, siocspgrp, 0x1000}, Errno(unix.EINVAL)},
		{unix.SYS_IOCTL, [6]uint64{0, tiocsti}, Errno(unix.EPERM)},
	} {
		if got, _ := Inner(false, Options{}).Answer(tt.nr, tt.args); got != tt.want {
			t.Errorf("call %d %#x: %#x, want %#x", tt.nr, tt.args, got, tt.want)
		}
	}
	for emulate, want := range map[bool]Action{false: Allow, true: Pretend} {
		if got, _ := Inner(emulate, Options{}).Answer(unix.SYS_SETRESUID, [6]uint64{}); got != want {
			t.Errorf("setresuid with emulation %t: %#x, want %#x", emulate, got, want)
		}
	}
}

// TestHardening_GuardsOneThread checks the calls that would signal a thread, and that others are as without it.
func TestHardening_GuardsOneThread(t *testing.T) {
	t.Parallel()
	const tid, high = 4711, uint64(0xdead) << 32
	eperm, einval := Errno(unix.EPERM), Errno(unix.EINVAL)
	guarded, open := Hardening(Options{Guard: tid}), Hardening(Options{})
	for _, c := range []struct {
		nr   uint32
		args [6]uint64
		want Action
	}{
		{unix.SYS_KILL, [6]uint64{tid, 9}, eperm},
		{unix.SYS_KILL, [6]uint64{high | tid, 0}, eperm},
		{unix.SYS_KILL, [6]uint64{tid + 1, 9}, Allow},
		{unix.SYS_KILL, [6]uint64{^uint64(0), 9}, Allow}, // to all: the kernel looks at the first thread of each process
		{unix.SYS_TKILL, [6]uint64{tid, 19}, eperm},
		{unix.SYS_TKILL, [6]uint64{9, tid}, Allow},
		{unix.SYS_TGKILL, [6]uint64{1, tid, 9}, eperm},
		{unix.SYS_TGKILL, [6]uint64{tid, 1, 9}, Allow}, // the numbers do not belong together
		{unix.SYS_RT_SIGQUEUEINFO, [6]uint64{tid, 9, 0x1000}, eperm},
		{unix.SYS_RT_TGSIGQUEUEINFO, [6]uint64{1, tid, 9, 0x1000}, eperm},
		{unix.SYS_PIDFD_SEND_SIGNAL, [6]uint64{3, 9}, Errno(unix.ENOSYS)},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETOWN, tid}, eperm},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETOWN, 7}, Allow},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETOWN_EX, 0x1000}, einval},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_GETOWN}, Allow},
		{unix.SYS_FCNTL, [6]uint64{3, unix.F_SETLEASE}, einval},
		{unix.SYS_IOCTL, [6]uint64{3, fiosetown, 0x1000}, einval},
		{unix.SYS_IOCTL, [6]uint64{3, high | siocspgrp, 0x1000}, einval},
		{unix.SYS_IOCTL, [6]uint64{3, 0x5401}, Allow},
	} {
		in := call{nr: c.nr, arch: nativeArch, args: c.args}
		if got, _ := run(t, guarded, in); got != c.want {
			t.Errorf("call %d %#x: %#x, want %#x", c.nr, c.args, got, c.want)
		}
		if got, _ := run(t, open, in); c.nr != unix.SYS_FCNTL && got != Allow {
			t.Errorf("call %d %#x without a guard: %#x", c.nr, c.args, got)
		}
	}
}

func TestHardening_NetlinkRouteOnly(t *testing.T) {
	t.Parallel()
	prog := Hardening(Options{Netlink: true})
	for proto := range uint64(32) {
		got, _ := run(t, prog, call{nr: unix.SYS_SOCKET, arch: nativeArch, args: [6]uint64{unix.AF_NETLINK, 3, proto}})
		if (got == Allow) != (proto == unix.NETLINK_ROUTE) {
			t.Errorf("netlink protocol %d: %#x", proto, got)
		}
	}
}

func TestNotifying(t *testing.T) {
	t.Parallel()
	if p := Notifying(NotifyOptions{}); p != nil {
		t.Errorf("a filter of %d instructions without any option", len(p))
	}
	both := Notifying(NotifyOptions{Emulate: true, Promote: true})
	promote := Notifying(NotifyOptions{Promote: true})
	tests := []struct {
		name          string
		nr            uint32
		args          [6]uint64
		both, promote Action
	}{
		{"renameat2", unix.SYS_RENAMEAT2, [6]uint64{}, Notify, Notify},
		{"fchownat", unix.SYS_FCHOWNAT, [6]uint64{}, Notify, Allow},
		{"setuid", unix.SYS_SETUID, [6]uint64{}, Pretend, Allow},
		{"setgroups", unix.SYS_SETGROUPS, [6]uint64{}, Pretend, Allow},
		{"setxattr", unix.SYS_SETXATTR, [6]uint64{}, Notify, Allow},
		{"mknodat fifo", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFIFO | 0o600}, Allow, Allow},
		{"mknodat char", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFCHR | 0o600}, Notify, Allow},
		{"mknodat block", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFBLK}, Notify, Allow},
		{"execve", unix.SYS_EXECVE, [6]uint64{}, Allow, Allow},
		{"execveat", unix.SYS_EXECVEAT, [6]uint64{}, Allow, Allow},
		{"set_tid_address", unix.SYS_SET_TID_ADDRESS, [6]uint64{}, Allow, Allow},
		{"sched_getaffinity of go", unix.SYS_SCHED_GETAFFINITY, [6]uint64{0, 8192}, Allow, Allow},
		{"write", unix.SYS_WRITE, [6]uint64{}, Allow, Allow},
		{"beyond", 9999, [6]uint64{}, Allow, Allow},
	}
	for _, tt := range tests {
		c := call{nr: tt.nr, arch: nativeArch, args: tt.args}
		if got, _ := run(t, both, c); got != tt.both {
			t.Errorf("%s, both: %#x, want %#x", tt.name, got, tt.both)
		}
		if got, _ := run(t, promote, c); got != tt.promote {
			t.Errorf("%s, promote: %#x, want %#x", tt.name, got, tt.promote)
		}
	}
}

func TestNotifying_Programs(t *testing.T) {
	t.Parallel()
	prog := Notifying(NotifyOptions{Trace: true})
	for _, tt := range []struct {
		name string
		nr   uint32
		args [6]uint64
		want Action
	}{
		{"execve", unix.SYS_EXECVE, [6]uint64{}, Notify},
		{"execveat", unix.SYS_EXECVEAT, [6]uint64{}, Notify},
		{"set_tid_address", unix.SYS_SET_TID_ADDRESS, [6]uint64{0x7000}, Notify},
		{"sched_getaffinity of go", unix.SYS_SCHED_GETAFFINITY, [6]uint64{0, 8192}, Notify},
		{"sched_getaffinity of others", unix.SYS_SCHED_GETAFFINITY, [6]uint64{0, 128}, Allow},
		{"sched_getaffinity of another", unix.SYS_SCHED_GETAFFINITY, [6]uint64{7, 8192}, Allow},
		{"renameat", unix.SYS_RENAMEAT, [6]uint64{}, Allow},
	} {
		if got, _ := run(t, prog, call{nr: tt.nr, arch: nativeArch, args: tt.args}); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}

// fcntlInstructions is the number of instructions at the beginning of Hardening: seven that every call executes, and
// five that load the command of fcntl, compare it with two values, and return.
const fcntlInstructions = 12

// TestFrequentCalls_ReadNoArguments checks that frequent calls are in the kernel's cache of allowed calls. Without it
// each of them costs a run of the filter. The one exception is fcntl, because of leases; the first instructions of
// Hardening decide it.
func TestFrequentCalls_ReadNoArguments(t *testing.T) {
	t.Parallel()
	programs := map[string][]unix.SockFilter{
		"hardening": Hardening(Options{}),
		"notifying": Notifying(NotifyOptions{Emulate: true, Promote: true, Trace: true}),

		"hardening that is told": Hardening(Options{Report: true}),
		"notifying that is told": Notifying(
			NotifyOptions{Emulate: true, Promote: true, Trace: true, Refuse: Options{Report: true}}),
	}
	for name, p := range programs {
		args := 0
		for nr := range uint32(lastKnownCall + 1) {
			if nr == unix.SYS_FCNTL {
				continue
			}
			if _, read := run(t, p, call{nr: nr, arch: nativeArch}); read {
				args++
			}
		}
		if limit := map[string]int{"hardening": 10, "hardening that is told": 0, "notifying": 3,
			"notifying that is told": 13}[name]; args > limit {
			t.Errorf("%s: %d calls have their arguments read, want at most %d", name, args, limit)
		}
		fcntl := call{nr: unix.SYS_FCNTL, arch: nativeArch, args: [6]uint64{3, unix.F_GETFL}}
		_, read := run(t, p, fcntl)
		if strings.HasPrefix(name, "hardening") {
			if a, _, ok := interpret(p[:fcntlInstructions], fcntl); !ok || a != Allow {
				t.Errorf("%s: the first %d instructions do not allow fcntl", name, fcntlInstructions)
			}
		} else if read {
			t.Errorf("%s: fcntl has its arguments read", name)
		}
		t.Logf("%s: %d instructions", name, len(p))
	}
}

func TestSeccompRules_HaveReasons(t *testing.T) {
	t.Parallel()
	seen := map[uint32]bool{}
	for _, r := range innerRules(true) {
		if r.Why == "" || len(r.Calls) == 0 {
			t.Errorf("rule %v: no reason or no calls", r.Calls)
		}
	}
	for _, r := range slices.Concat(hardeningRules(Options{}), stubRules) {
		if r.Why == "" || len(r.Calls) == 0 {
			t.Errorf("rule %v: no reason or no calls", r.Calls)
		}
		for _, c := range r.Calls {
			if seen[c] {
				t.Errorf("call %d is in two rules; only the first counts", c)
			}
			seen[c] = true
		}
	}
	for _, r := range notifyingRules(NotifyOptions{Emulate: true, Promote: true, Trace: true}) {
		if r.Why == "" {
			t.Errorf("rule %v: no reason", r.Calls)
		}
	}
}
