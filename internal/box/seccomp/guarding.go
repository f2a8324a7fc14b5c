//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// guard adds to rules what keeps a command from sending a signal to one thread, Options.Guard, and so to its process.
// It is for a thread that the kernel takes for one of the commands' own: all that is left then is that no call names
// it. A signal to a process group or to all processes is not among these calls. For each member the kernel asks about
// the first thread of the process, which is not a command's.
func guard(rules []Rule, tid uint32) []Rule {
	names := func(arg int) Case {
		return Case{When: []Test{{Arg: arg, Is: In, Of: []uint32{tid}}}, Do: Errno(unix.EPERM)}
	}
	const why = "the number is that of a thread of init, which a command could stop or end by it"
	rules = addCases(rules, unix.SYS_FCNTL,
		Case{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.F_SETOWN}}, {Arg: 2, Is: In, Of: []uint32{tid}}},
			Do: Errno(unix.EPERM)},
		Case{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.F_SETOWN_EX}}}, Do: Errno(unix.EINVAL)})
	rules = addCases(rules, unix.SYS_IOCTL,
		Case{When: []Test{{Arg: 1, Is: In, Of: []uint32{fiosetown, siocspgrp}}}, Do: Errno(unix.EINVAL), Quiet: true})
	return append(rules,
		Rule{Calls: []uint32{unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO}, Cases: []Case{names(0)},
			Tell: true, Why: why},
		Rule{Calls: []uint32{unix.SYS_TGKILL, unix.SYS_RT_TGSIGQUEUEINFO}, Cases: []Case{names(1)}, Tell: true, Why: why},
		Rule{Calls: []uint32{unix.SYS_PIDFD_SEND_SIGNAL}, Do: Errno(unix.ENOSYS),
			Why: "a descriptor can be of any thread, by its directory in /proc as well; programs fall back to kill(2)"})
}

// addCases appends cases to the rule of a call, which rules contain. The rules of other callers are not changed.
func addCases(rules []Rule, call uint32, cases ...Case) []Rule {
	rules = slices.Clone(rules)
	for i := range rules {
		if slices.Contains(rules[i].Calls, call) {
			rules[i].Cases = slices.Concat(rules[i].Cases, cases)
			break // the first rule of a call decides about it
		}
	}
	return rules
}
