//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Inner returns the rules that the sandbox's own kernel in tier gvisor applies to commands. That kernel sees each call
// with its arguments. They are the rules of Hardening, so that programs get the same results as in other tiers, and
// those that only this tier needs. They do not protect init from signals: the caller, which knows init's threads, must
// do that.
//
// With emulate, the calls that Notifying would pass on with Emulate succeed, and nothing is stored. Extended attributes
// are left to the kernel.
func Inner(emulate bool, o Options) Answers {
	o.Report = false // tier gvisor has no listener
	return answersOf(slices.Concat(innerRules(emulate), allRules(o)))
}

// initGroup is init's process group in the form that F_SETOWN uses for groups (fcntl(2)).
const initGroup = ^uint32(0)

// Ioctls of sockets (asm-generic/sockios.h).
const (
	fiosetown = 0x8901
	siocspgrp = 0x8902
)

// innerRules returns the rules that precede those of Hardening.
func innerRules(emulate bool) []Rule {
	rules := []Rule{
		{
			Calls: []uint32{unix.SYS_IOCTL},
			Cases: []Case{{When: []Test{{Arg: 1, Is: In, Of: []uint32{fiosetown, siocspgrp}}}, Do: Errno(unix.EINVAL)}},
			Why: "the owner of a descriptor gets signals (F_SETSIG) with O_ASYNC; this owner is in memory, where other " +
				"threads can change it meanwhile",
		},
		{
			Calls: []uint32{unix.SYS_FCNTL},
			Cases: []Case{
				{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.F_SETOWN}}, {Arg: 2, Is: In, Of: []uint32{initPid, initGroup}}},
					Do: Errno(unix.EPERM)},
				{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.F_SETOWN_EX}}}, Do: Errno(unix.EINVAL)},
			},
			Why: "the same",
		},
	}
	if !emulate {
		return rules
	}
	rules = append(rules, Rule{Calls: emulation[0].Calls, Do: Pretend, Why: emulation[0].Why},
		Rule{Calls: chownCalls, Do: Pretend, Why: "ids that are not mapped are EINVAL for the kernel"})
	for _, r := range mknodRules {
		for _, c := range r.Cases {
			rules = append(rules,
				Rule{Calls: r.Calls, Cases: []Case{{When: c.When, Do: Pretend}}, Why: "a user namespace may not make device nodes"})
		}
	}
	return rules
}

// Answers are rules by call number, for a kernel that answers calls without a filter.
type Answers map[uint32]Rule

// answersOf indexes rules by call; the cases of a call's first rule precede those of later ones.
func answersOf(rules []Rule) Answers {
	t := Answers{}
	for _, r := range rules {
		for _, nr := range r.Calls {
			one := t[nr]
			one.Cases = slices.Concat(one.Cases, r.Cases)
			if len(r.Cases) == 0 { // the rule applies to any arguments
				one.Cases = append(one.Cases, Case{Do: r.Do})
			}
			one.Tell = one.Tell || r.Tell
			t[nr] = one
		}
	}
	return t
}

// Answer returns the action that a filter of the rules would take. told is the name of the call if it is a refusal that
// must be reported, otherwise "".
func (t Answers) Answer(nr uint32, args [6]uint64) (a Action, told string) {
	r, ok := t[nr]
	if !ok {
		return Allow, ""
	}
	c := r.decide(args)
	if c.Do != Allow && r.Tell && !c.Quiet {
		told = reportedNames[nr]
	}
	return c.Do, told
}
