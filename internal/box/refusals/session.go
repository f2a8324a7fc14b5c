//go:build linux && (amd64 || arm64)

package refusals

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/procs"
)

// maxUp is how many ancestors of a process are searched for its session.
const maxUp = 16

// Session is the session of a command. Every command leads a session, and its descendants are in it unless they create
// their own. No other process gets the leader's pid while the session has a process.
type Session struct {
	Leader int  // the pid of the leader; 0 if unknown
	Lives  bool // the leader is running
}

// SessionOf returns the session of the command from which thread tid descends. If a descendant of the command has
// created its own session, the command's session is found through the parents of that session's leader.
func SessionOf(tid int) Session {
	self := os.Getpid() // init: not PID 1 in tier workspace
	for range maxUp {
		sid, err := unix.Getsid(tid)
		if err != nil || sid <= 1 {
			return Session{}
		}
		up, lives := procs.Parent(sid)
		if !lives || up <= 1 || up == self {
			return Session{Leader: sid, Lives: lives}
		}
		tid = up
	}
	return Session{}
}
