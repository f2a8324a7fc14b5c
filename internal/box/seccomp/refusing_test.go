//go:build linux && (amd64 || arm64)

package seccomp

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// strictest returns the action that the kernel takes if two filters disagree (seccomp(2)).
func strictest(a, b Action) Action {
	order := []uint32{unix.SECCOMP_RET_KILL_PROCESS, unix.SECCOMP_RET_ERRNO, unix.SECCOMP_RET_USER_NOTIF,
		unix.SECCOMP_RET_ALLOW}
	if slices.Index(order, uint32(b)&unix.SECCOMP_RET_ACTION_FULL) < slices.Index(order,
		uint32(a)&unix.SECCOMP_RET_ACTION_FULL) {
		return b
	}
	return a
}

// TestRefusals_AnswerLikeHardening checks that the result of each call is the same with a listener as with the filter
// alone. For the calls that are passed to it, the listener computes the result.
func TestRefusals_AnswerLikeHardening(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Netlink: rapid.Bool().Draw(t, "netlink"), Guard: rapid.SampledFrom([]uint32{0, 40}).Draw(t, "guard")}
		with := o
		with.Report = true
		c := drawCall(t, lastKnownCall+5)
		want := answer(t, Hardening(o), c)
		give := NotifyOptions{Emulate: rapid.Bool().Draw(t, "emulate"), Promote: rapid.Bool().Draw(t, "promote"),
			Trace: rapid.Bool().Draw(t, "trace")}
		before := answer(t, append(Notifying(give), ret(Allow)), c)
		give.Refuse = with
		got := strictest(answer(t, Hardening(with), c), answer(t, Notifying(give), c))
		name, errno, told := RefusalsOf(with).Answer(c.nr, c.args)
		switch {
		case got == Notify && before != Notify:
			if !told || Errno(errno) != want || name == "" {
				t.Fatalf("call %d %x: listener answers %q %v, filter %#x", c.nr, c.args, name, errno, want)
			}
		case got != strictest(want, before):
			t.Fatalf("call %d %x: %#x, want %#x", c.nr, c.args, got, strictest(want, before))
		}
	})
}

// drawCall draws a call with a number up to last, and arguments that are often meaningful.
func drawCall(t *rapid.T, last uint32) call {
	told := slices.Sorted(maps.Keys(reportedNames))
	interesting := []uint64{0, 1, 2, 3, 10, 15, 16, 40, 0x4206, 0x5412, 0x541d, 0x5423, 0x50009401, 0x400000, 0xffffffff,
		unix.CLONE_NEWUSER, unix.CLONE_NEWTIME, unix.CLONE_FS, 1 << 63}
	c := call{arch: nativeArch, nr: rapid.OneOf(rapid.SampledFrom(told), rapid.Uint32Range(0, last)).Draw(t, "call")}
	for i := range c.args {
		c.args[i] = rapid.OneOf(rapid.SampledFrom(interesting), rapid.Uint64Range(0, 64), rapid.Uint64()).Draw(t, "argument")
	}
	return c
}

func answer(t *rapid.T, p []unix.SockFilter, c call) Action {
	a, _, ok := interpret(p, c)
	if !ok {
		t.Fatal("the program runs past its end, or has an unknown instruction")
	}
	return a
}

// TestRefusals_DoNotOverlapServedCalls checks that no call is both refused and served: the result would depend on the
// order.
func TestRefusals_DoNotOverlapServedCalls(t *testing.T) {
	t.Parallel()
	refused := RefusalsOf(Options{Report: true, Shared: true, Guard: 1})
	for _, r := range notifyingRules(NotifyOptions{Emulate: true, Promote: true, Trace: true}) {
		for _, nr := range r.Calls {
			if _, ok := refused[nr]; ok {
				t.Errorf("call %d is both served and refused", nr)
			}
		}
	}
	for nr := range refused {
		if reportedNames[nr] == "" {
			t.Errorf("call %d has no name", nr)
		}
	}
	if len(reportedNames) != len(refused) {
		t.Errorf("%d names for %d reported calls", len(reportedNames), len(refused))
	}
	if RefusalsOf(Options{}) != nil {
		t.Error("calls that the filter answers are passed to the listener")
	}
}

// TestRefusals_AreDocumented checks the list of reported calls in docs/LEDGER.md.
func TestRefusals_AreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/LEDGER.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range reportedNames {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/LEDGER.md does not name %s", name)
		}
	}
}

// TestRefusals_OmitOrdinaryCalls checks that calls that ordinary programs try, and can do without, are not reported.
func TestRefusals_OmitOrdinaryCalls(t *testing.T) {
	t.Parallel()
	give := Notifying(NotifyOptions{Refuse: Options{Report: true}})
	for name, c := range map[string]call{
		"io_uring":       {nr: unix.SYS_IO_URING_SETUP},
		"aio":            {nr: unix.SYS_IO_SETUP},
		"clone3":         {nr: unix.SYS_CLONE3},
		"kcmp":           {nr: unix.SYS_KCMP},
		"addresses":      {nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
		"audit":          {nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}},
		"subvolumes":     {nr: unix.SYS_IOCTL, args: [6]uint64{3, 0x50009418}},
		"newer calls":    {nr: lastKnownCall + 1},
		"a thread":       {nr: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD}},
		"own limits":     {nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_NOFILE}},
		"a debugger":     {nr: unix.SYS_PTRACE, args: [6]uint64{unix.PTRACE_ATTACH, 77}},
		"setarch -R":     {nr: unix.SYS_PERSONALITY, args: [6]uint64{0x40000}},
		"being traced":   {nr: unix.SYS_PTRACE, args: [6]uint64{unix.PTRACE_TRACEME, 1}},
		"other's memory": {nr: unix.SYS_PROCESS_VM_READV, args: [6]uint64{77}},
	} {
		c.arch = nativeArch
		if got, _ := run(t, give, c); got == Notify {
			t.Errorf("%s is reported", name)
		}
	}
}
