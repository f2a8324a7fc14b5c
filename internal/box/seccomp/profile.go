//go:build linux && (amd64 || arm64)

package seccomp

import (
	"maps"

	"golang.org/x/sys/unix"
)

// Refusal is a call that Hardening refuses, in the form of the profile of an OCI runtime.
type Refusal struct {
	Call  uint32
	Name  string
	Errno unix.Errno
	// Bits of argument Arg: the call is refused if it has one of them. 0 refuses it whatever its arguments are.
	Arg  int
	Bits uint32
}

// Profile returns what a profile can say of Hardening with the same options: the calls that are refused whatever their
// arguments are, and those that are refused for a bit of an argument. Everything else is allowed by it. It is not
// instead of the filter of commands, which is Hardening itself: an OCI profile is a set of conditions without order,
// which cannot say "one of these values, else" or "all later calls". With o.Report it omits the calls that the listener
// refuses and reports, since the stricter filter decides and the listener would never see them.
func Profile(o Options) (list []Refusal) {
	names := maps.Clone(reportedNames)
	maps.Copy(names, quietNames)
	maps.Copy(names, quietArch)
	decided := map[uint32]bool{}
	for _, r := range hardeningRules(o) {
		for _, nr := range r.Calls {
			if decided[nr] { // by an earlier rule, for some arguments
				continue
			}
			decided[nr] = true
			one := Refusal{Call: nr, Name: names[nr], Errno: unix.Errno(r.Do & unix.SECCOMP_RET_DATA)}
			if len(r.Cases) > 0 {
				c := r.Cases[0]
				if len(r.Cases) > 1 || len(c.When) != 1 || c.When[0].Is != AnyBits {
					continue
				}
				one.Errno = unix.Errno(c.Do & unix.SECCOMP_RET_DATA)
				one.Arg, one.Bits = c.When[0].Arg, c.When[0].Of[0]
			}
			list = append(list, one)
		}
	}
	return list
}

// quietNames are the names of refused calls that are not in reportedNames.
var quietNames = map[uint32]string{
	unix.SYS_CLONE3: "clone3", unix.SYS_IO_URING_SETUP: "io_uring_setup", unix.SYS_IO_URING_ENTER: "io_uring_enter",
	unix.SYS_IO_URING_REGISTER: "io_uring_register", unix.SYS_IO_SETUP: "io_setup", unix.SYS_KCMP: "kcmp",
}
