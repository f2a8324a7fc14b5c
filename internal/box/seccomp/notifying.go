//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// NotifyOptions select the calls that Notifying passes to the listener.
type NotifyOptions struct {
	// Emulate emulates root where only one uid is mapped: calls that would fail for lack of ids succeed. Those that
	// need a file are passed to the listener, which stores the request.
	Emulate bool
	// Promote passes renames on, so that directories of lower overlay layers can be renamed.
	Promote bool
	// Trace passes the calls that start a program on, so that the listener sees every start.
	Trace bool
	// Connect passes connect(2) and listen(2) on, so that the listener decides which Unix sockets can be reached, and
	// made reachable.
	Connect bool
	// Terminals passes on the ioctl(2) that opens the slave of a pseudo terminal, which Landlock would refuse.
	Terminals bool
	// Inet passes on the calls of sockets of the Internet, which callers do not have: the listener makes Unix sockets
	// instead, and connects them. Options.GateInet must be set too.
	Inet bool
	// Refuse, if its Report is set, passes on the calls that Hardening omits with the same Options. The listener
	// refuses them as Refusals specifies.
	Refuse Options
}

// Notifying returns the filter whose listener package notify serves, or nil if no option is set.
//
// It allows calls of a foreign architecture: Hardening kills them.
func Notifying(o NotifyOptions) []unix.SockFilter {
	rules := notifyingRules(o)
	if len(rules) == 0 {
		return nil
	}
	return assemble(rules, Allow, Allow)
}

func notifyingRules(o NotifyOptions) []Rule {
	rules := refusing(o.Refuse)
	if o.Terminals {
		rules = passIoctl(rules, unix.TIOCGPTPEER)
	}
	if o.Inet {
		rules = passInet(o, rules)
	}
	if o.Promote {
		rules = append(rules, Rule{
			Calls: renameCalls,
			Do:    Notify,
			Why:   "overlayfs with userxattr answers EXDEV to the rename of a directory that a lower layer has",
		})
	}
	if o.Connect {
		rules = append(rules, connectRules...)
	}
	if o.Trace {
		rules = append(rules, executing...)
	}
	if o.Emulate {
		rules = append(rules, emulation...)
		rules = append(rules, Rule{Calls: chownCalls, Do: Notify,
			Why: "ids that are not mapped are EINVAL for the kernel; the listener remembers them in an xattr"})
		rules = append(rules, mknodRules...)
	}
	return rules
}

var connectRules = []Rule{
	{
		Calls: []uint32{unix.SYS_CONNECT},
		Do:    Notify,
		Why: "the address is in memory, where a filter cannot see it; Landlock does not restrict paths of sockets " +
			"before ABI 9",
	},
	{
		Calls: []uint32{unix.SYS_LISTEN},
		Do:    Notify,
		Why:   "the name of the socket, which may be abstract; Landlock does not restrict which of those are taken",
	},
}

// passIoctl makes rules pass on one ioctl(2).
func passIoctl(rules []Rule, request uint32) []Rule {
	return pass(rules, unix.SYS_IOCTL, Case{When: []Test{{Arg: 1, Is: In, Of: []uint32{request}}}, Do: Notify},
		"the slaves of other terminals are closed, and a path of them would be checked")
}

// pass makes rules decide one case of a call before all others. The first rule of a call decides about it.
func pass(rules []Rule, call uint32, one Case, why string) []Rule {
	for i := range rules {
		if slices.Contains(rules[i].Calls, call) {
			rules[i].Cases = slices.Insert(slices.Clone(rules[i].Cases), 0, one)
			return rules
		}
	}
	return append(rules, Rule{Calls: []uint32{call}, Cases: []Case{one}, Why: why})
}

// goAffinity is the size of the mask that the Go runtime passes (runtime/os_linux.go, getCPUCount). No other library
// uses it.
const goAffinity = 8192

var executing = []Rule{
	{
		Calls: []uint32{unix.SYS_EXECVE, unix.SYS_EXECVEAT},
		Do:    Notify,
		Why: "every program that is started is recorded; there is no other way to start one (io_uring and foreign " +
			"entries are closed)",
	},
	{
		Calls: []uint32{unix.SYS_SET_TID_ADDRESS},
		Do:    Notify,
		Why: "the first call of C libraries in a new program: the exec has happened, and the " +
			"kernel reports its result",
	},
	{
		Calls: []uint32{unix.SYS_SCHED_GETAFFINITY},
		Cases: []Case{
			{When: []Test{{Arg: 0, Is: In, Of: []uint32{0}}, {Arg: 1, Is: In, Of: []uint32{goAffinity}}}, Do: Notify}},
		Why: "the same for Go programs without a C library",
	},
}

var emulation = []Rule{
	{
		Calls: []uint32{
			unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
			unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET,
		},
		Do:  Pretend,
		Why: "there is one id, so there is no other to change to; as Charliecloud does (ch-run --seccomp)",
	},
	{
		Calls: []uint32{
			unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
			unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
		},
		Do: Notify,
		Why: "file capabilities, security labels and ACLs for unmapped ids fail in a user namespace; user.* is passed " +
			"to the kernel",
	},
	{
		Calls: []uint32{unix.SYS_SETXATTRAT, unix.SYS_REMOVEXATTRAT},
		Do:    Errno(unix.ENOSYS),
		Why:   "so that the older calls above are used, which the listener answers",
	},
}

// mknodRule passes the creation of device nodes on, by the mode in argument arg. FIFOs, sockets and regular files are
// left to the kernel.
func mknodRule(call uint32, arg int) Rule {
	return Rule{
		Calls: []uint32{call},
		Cases: []Case{
			{When: []Test{{Arg: arg, Mask: unix.S_IFMT, Is: In, Of: []uint32{unix.S_IFCHR, unix.S_IFBLK}}}, Do: Notify}},
		Why: "a user namespace may not make device nodes; the listener leaves a placeholder that remembers it",
	}
}

// Stubs returns the host's filter for gVisor's processes, or nil if none is needed. It makes CPUID trapping fail, as on
// a processor without such a trap (enableCpuidFault of gVisor's platform systrap works without it). Programs inside see
// the processor as every process of the host does; an image is resumed only on a processor with the same features.
func Stubs() []unix.SockFilter {
	if len(stubRules) == 0 {
		return nil
	}
	return assemble(stubRules, Allow, Allow)
}
