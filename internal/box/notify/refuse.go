//go:build linux && (amd64 || arm64)

package notify

import (
	"os"

	"golang.org/x/sys/unix"
)

// Refusal is a system call that was refused.
type Refusal struct {
	Call    string // its name
	Errno   unix.Errno
	TID     int
	Program string // the file that the caller executes, as a path in its root; "" if not known
}

// refuse answers a call that the filter passes on only to be refused. It never lets one pass, whatever its arguments,
// and never waits: a flood of such calls costs only its callers.
func (s *server) refuse(n *notification) (v verdict, ok bool) {
	name, errno, ok := s.opt.Refusals.Answer(uint32(n.call.nr), n.call.args)
	if !ok {
		return v, false
	}
	if s.opt.Refused != nil {
		s.opt.Refused(Refusal{Call: name, Errno: errno, TID: int(n.tid), Program: s.program(n)})
	}
	return verdict{errno: errno}, true
}

// program returns the program that the caller of n runs.
func (s *server) program(n *notification) string {
	if !s.ownProc {
		return ""
	}
	name, err := os.Readlink(procPath(int(n.tid), "exe"))
	if err != nil || !s.valid(n.id) {
		return "" // the caller has died; its number may belong to another process
	}
	return name
}
