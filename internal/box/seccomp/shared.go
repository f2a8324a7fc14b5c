//go:build linux && (amd64 || arm64)

package seccomp

import "golang.org/x/sys/unix"

// ioprioWhoProcess is IOPRIO_WHO_PROCESS (linux/ioprio.h).
const ioprioWhoProcess = 1

// sharedRules are for sandboxes that see the host's processes and files, with Options.Shared. The kernel permits these
// calls to every process of the same user, and Landlock does not restrict them.
var sharedRules = []Rule{
	{
		Calls: []uint32{
			unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETPARAM,
		},
		Cases: []Case{{When: []Test{{Arg: 0, Is: NotIn, Of: []uint32{0}}}, Do: Errno(unix.EPERM)}},
		Tell:  true,
		Why: "a command could take the processor from the user's own processes and from the daemon, for good: no user " +
			"can raise a priority again. 0 is the calling thread; a filter cannot tell which other numbers are its own",
	},
	{
		Calls: []uint32{unix.SYS_SETPRIORITY},
		Cases: []Case{
			{When: []Test{{Arg: 0, Is: NotIn, Of: []uint32{unix.PRIO_PROCESS}}}, Do: Errno(unix.EPERM)},
			{When: []Test{{Arg: 1, Is: NotIn, Of: []uint32{0}}}, Do: Errno(unix.EPERM)},
		},
		Tell: true,
		Why:  "the same; PRIO_USER is every process of the user",
	},
	{
		Calls: []uint32{unix.SYS_IOPRIO_SET},
		Cases: []Case{
			{When: []Test{{Arg: 0, Is: NotIn, Of: []uint32{ioprioWhoProcess}}}, Do: Errno(unix.EPERM)},
			{When: []Test{{Arg: 1, Is: NotIn, Of: []uint32{0}}}, Do: Errno(unix.EPERM)},
		},
		Tell: true,
		Why:  "the same",
	},
	{
		Calls: []uint32{unix.SYS_MQ_UNLINK},
		Do:    Errno(unix.EACCES),
		Tell:  true,
		Why:   "removes a message queue of the host; Landlock already refuses to open one (mq_overview(7))",
	},
	{
		Calls: []uint32{
			unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR,
			unix.SYS_SETXATTRAT, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR,
		},
		Do: Errno(unix.EOPNOTSUPP),
		Why: "Landlock does not restrict extended attributes and inode flags, so that a path leads to files outside of the " +
			"sandbox; attributes of overlayfs even change what a layer contains. fsetxattr(2) needs a file that was opened. " +
			"Programs treat the error like that of a file system without attributes, and it is not reported",
	},
}
