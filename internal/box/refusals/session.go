//go:build linux && (amd64 || arm64)

package refusals

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/procs"
)

// maxUp is how many ancestors of a process are searched for its session.
const maxUp = 16

// Session is the session of a command. Every command leads a session, and its descendants are in
// it unless they make their own. No other process gets the leader's pid as long as the session has
// a process.
type Session struct {
	Leader int  // the pid of the leader; 0 if it is not known
	Lives  bool // the leader runs
}

// SessionOf returns the session of the command that thread tid descends from. If a descendant of
// the command has made a session of its own, it is found through the parents of its leader.
func SessionOf(tid int) Session {
	for range maxUp {
		sid, err := unix.Getsid(tid)
		if err != nil || sid <= 1 {
			return Session{}
		}
		up, lives := procs.Parent(sid)
		if !lives || up <= 1 {
			return Session{Leader: sid, Lives: lives}
		}
		tid = up
	}
	return Session{}
}
