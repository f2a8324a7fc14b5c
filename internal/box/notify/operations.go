//go:build linux && (amd64 || arm64)

package notify

import "golang.org/x/sys/unix"

// fdCwd is AT_FDCWD as a file descriptor argument.
const fdCwd = unix.AT_FDCWD

// operationsAt are the calls that exist on every architecture; operations_amd64.go adds the older forms. The arguments
// are in the order of the manual pages.
var operationsAt = map[uint32]operation{
	unix.SYS_RENAMEAT: {rename: func(a [6]uint64) renameArgs {
		return renameArgs{from: place{int32(a[0]), a[1]}, to: place{int32(a[2]), a[3]}}
	}},
	unix.SYS_RENAMEAT2: {rename: func(a [6]uint64) renameArgs {
		return renameArgs{from: place{int32(a[0]), a[1]}, to: place{int32(a[2]), a[3]}, flags: uint32(a[4])}
	}},
	unix.SYS_EXECVE:   {execute: true},
	unix.SYS_EXECVEAT: {execute: true},
	unix.SYS_CONNECT:  {connect: true},
	unix.SYS_LISTEN:   {listen: true},
	// The first call that C libraries and the Go runtime make.
	unix.SYS_SET_TID_ADDRESS:   {begin: true},
	unix.SYS_SCHED_GETAFFINITY: {begin: true},
	unix.SYS_FCHOWN: {emulate: func(c caller, a [6]uint64) verdict {
		return chownFD(c, int32(a[0]), uint32(a[1]), uint32(a[2]))
	}},
	unix.SYS_FCHOWNAT: {emulate: func(c caller, a [6]uint64) verdict {
		return chown(c, place{int32(a[0]), a[1]}, uint32(a[2]), uint32(a[3]), int(a[4]))
	}},
	unix.SYS_MKNODAT: {emulate: func(c caller, a [6]uint64) verdict {
		return mknod(c, place{int32(a[0]), a[1]}, uint32(a[2]), uint32(a[3]))
	}},
	unix.SYS_SETXATTR: {emulate: func(c caller, a [6]uint64) verdict {
		return setxattr(c, c.opener(place{fdCwd, a[0]}, true), a[1], a[2], a[3], int(a[4]))
	}},
	unix.SYS_LSETXATTR: {emulate: func(c caller, a [6]uint64) verdict {
		return setxattr(c, c.opener(place{fdCwd, a[0]}, false), a[1], a[2], a[3], int(a[4]))
	}},
	unix.SYS_FSETXATTR: {emulate: func(c caller, a [6]uint64) verdict {
		return setxattr(c, c.openerFD(int32(a[0])), a[1], a[2], a[3], int(a[4]))
	}},
	unix.SYS_REMOVEXATTR: {emulate: func(c caller, a [6]uint64) verdict {
		return removexattr(c, c.opener(place{fdCwd, a[0]}, true), a[1])
	}},
	unix.SYS_LREMOVEXATTR: {emulate: func(c caller, a [6]uint64) verdict {
		return removexattr(c, c.opener(place{fdCwd, a[0]}, false), a[1])
	}},
	unix.SYS_FREMOVEXATTR: {emulate: func(c caller, a [6]uint64) verdict {
		return removexattr(c, c.openerFD(int32(a[0])), a[1])
	}},
}
