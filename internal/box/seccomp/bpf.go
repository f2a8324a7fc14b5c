//go:build linux && (amd64 || arm64)

package seccomp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Action is the result of a filter: a SECCOMP_RET_* value, with the errno in its low half if it has one.
type Action uint32

// The actions of the filters.
const (
	Allow  Action = unix.SECCOMP_RET_ALLOW
	Kill   Action = unix.SECCOMP_RET_KILL_PROCESS
	Notify Action = unix.SECCOMP_RET_USER_NOTIF
	// Pretend returns 0 without carrying out the call.
	Pretend Action = unix.SECCOMP_RET_ERRNO
)

// Errno returns the action that fails the call with e.
func Errno(e unix.Errno) Action { return unix.SECCOMP_RET_ERRNO | Action(e)&unix.SECCOMP_RET_DATA }

// Rule defines the action for some system calls. Rules are tried in order; a call without a rule is allowed.
type Rule struct {
	Calls []uint32 // numbers of the native architecture
	// Cases are tried in order, and the first whose tests all hold decides. If none holds, the call is allowed. Without
	// cases, Do decides.
	Cases []Case
	Do    Action
	// Tell reports refusals by this rule, if Options.Report provides a listener: the attempt is significant, and
	// ordinary programs rarely make one.
	Tell bool
	Why  string // the reason, for auditors of the table
}

// Case is an action that depends on arguments.
type Case struct {
	When  []Test // all must hold
	Do    Action
	Quiet bool // not reported, even if Rule.Tell is set
}

// Test compares the low 32 bits of one argument. All arguments that the tables test are 32 bits wide in the kernel,
// which ignores the rest of the register, so testing the high half would only create a bypass.
type Test struct {
	Arg  int    // 0 to 5
	Mask uint32 // applied first; 0 means all bits
	Is   Relation
	Of   []uint32
}

// Relation is the comparison of a Test.
type Relation int

// The relations of a Test.
const (
	In      Relation = iota // equal to one of the values
	NotIn                   // equal to none of the values
	AnyBits                 // has a bit of the only value
)

// Offsets in struct seccomp_data (linux/seccomp.h). Both architectures are little endian, so an argument's
// low word is first.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

const (
	opLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opJge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opJset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	opJa   = unix.BPF_JMP | unix.BPF_JA
	opRet  = unix.BPF_RET | unix.BPF_K
)

// maxProgram is BPF_MAXINSNS.
const maxProgram = 4096

func stmt(op uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: op, K: k} }

func jump(op uint16, k uint32, yes, no int) unix.SockFilter {
	if yes > 255 || no > 255 {
		panic("seccomp: a rule is too long for a BPF jump") //nolint:forbidigo // a mistake in the tables, which the tests assemble
	}
	return unix.SockFilter{Code: op, K: k, Jt: uint8(yes), Jf: uint8(no)}
}

func ret(a Action) unix.SockFilter { return stmt(opRet, uint32(a)) }

// assemble compiles rules to a program: first the checks of the architecture and the number (foreign is the action for
// calls of another architecture, beyond that for numbers above the maximum), then one block for each rule.
func assemble(rules []Rule, foreign, beyond Action) []unix.SockFilter {
	p := []unix.SockFilter{
		stmt(opLoad, offArch),
		jump(opJeq, nativeArch, 1, 0),
		ret(foreign),
		stmt(opLoad, offNr),
	}
	if beyond != Allow {
		// The x32 entry of amd64 sets bit 30 of the number, so it is above the maximum too.
		p = append(p, jump(opJge, lastKnownCall+1, 0, 1), ret(beyond))
	}
	for i := range rules {
		p = append(p, block(&rules[i])...)
	}
	p = append(p, ret(Allow))
	if len(p) > maxProgram {
		panic(fmt.Sprintf("seccomp: a filter of %d instructions: the limit is %d", len(p), maxProgram)) //nolint:forbidigo // a mistake in the tables, which the tests assemble
	}
	return p
}

// block is entered with the call's number in the accumulator, and leaves it there at its end if the rule is about other
// calls.
func block(r *Rule) []unix.SockFilter {
	body := []unix.SockFilter{ret(r.Do)}
	if len(r.Cases) > 0 {
		body = nil
		for _, c := range r.Cases {
			body = append(body, c.code()...)
		}
		body = append(body, ret(Allow))
	}
	var p []unix.SockFilter
	n := len(r.Calls)
	for i, nr := range r.Calls {
		if i == n-1 {
			p = append(p, jump(opJeq, nr, 0, len(body)))
		} else {
			p = append(p, jump(opJeq, nr, n-1-i, 0))
		}
	}
	if n == 0 {
		return nil
	}
	return append(p, body...)
}

// code returns the action if all tests hold, and falls through otherwise.
func (c Case) code() []unix.SockFilter {
	p := []unix.SockFilter{ret(c.Do)}
	for i := len(c.When) - 1; i >= 0; i-- {
		p = append(c.When[i].code(len(p)), p...)
	}
	return p
}

// code falls through if the test holds, and otherwise skips rest instructions.
func (t Test) code(rest int) []unix.SockFilter {
	p := []unix.SockFilter{stmt(opLoad, uint32(offArgs+8*t.Arg))}
	if t.Mask != 0 {
		p = append(p, stmt(opAnd, t.Mask))
	}
	switch t.Is {
	case AnyBits:
		p = append(p, jump(opJset, t.Of[0], 0, rest))
	case In:
		for i, v := range t.Of {
			left := len(t.Of) - 1 - i
			if left == 0 {
				p = append(p, jump(opJeq, v, 0, rest))
			} else {
				p = append(p, jump(opJeq, v, left, 0))
			}
		}
	case NotIn:
		for i, v := range t.Of {
			p = append(p, jump(opJeq, v, len(t.Of)-1-i+rest, 0))
		}
	}
	return p
}
