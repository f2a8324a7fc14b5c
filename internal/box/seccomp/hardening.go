//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Options relax Hardening. The zero value is the strictest.
type Options struct {
	// Netlink allows NETLINK_ROUTE sockets, which getifaddrs(3), ip(8) and Node's os.networkInterfaces require. In the
	// sandbox's own network namespace they show the sandbox's loopback; with the host's network they show the host's
	// interfaces, addresses and routes. Without CAP_NET_ADMIN they change nothing.
	Netlink bool
	// Report omits the rules that Notifying includes with the same Options: its listener refuses their calls and
	// reports them.
	Report bool
	// Shared is for a sandbox without mounts, processes and network of its own. It refuses Unix datagram sockets, from
	// which sendto(2) reaches every socket of the host that a path names, and the calls of sharedRules.
	Shared bool
	// NoInet refuses Internet sockets, where no network namespace limits what they reach.
	NoInet bool
	// GateInet leaves socket(2) for the Internet to the listener of Notifying, with NotifyOptions.Inet: without one the
	// calls would succeed. Pairs of such sockets are refused.
	GateInet bool
	// NoUnix refuses Unix sockets, where nothing checks connect(2). Pairs that are connected from the start remain.
	NoUnix bool
	// Guard is the number of a thread to which no command can send a signal, where the kernel would permit it; 0 is
	// none. Other limits on signals are not the filter's.
	Guard uint32
}

// lastKnownCall is file_setattr (Linux 6.17), the last call that was reviewed for this table. Later calls do not exist
// for the sandbox.
const lastKnownCall = 469

// namespaces are the CLONE_NEW* flags of clone(2). CLONE_NEWTIME (0x80) is only a flag of unshare(2) and clone3(2):
// clone uses that bit for the signal.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Bits of personality(2), linux/personality.h.
const (
	mmapPageZero    = 0x0100000
	readImpliesExec = 0x0400000
	askPersonality  = 0xffffffff
)

// initPid is the pid of init inside the sandbox.
const initPid = 1

// These terminal ioctls are the same on both architectures (asm-generic/ioctls.h).
const (
	tiocsti   = 0x5412
	tioclinux = 0x541c
	tioccons  = 0x541d
	tiocsetd  = 0x5423
)

// The ioctls of btrfs share a type, BTRFS_IOCTL_MAGIC, in bits 8 to 15 of the request (linux/btrfs.h,
// asm-generic/ioctl.h).
const (
	ioctlTypeMask  = 0xff00
	btrfsIoctlType = 0x9400
)

// btrfsAllowed are the ioctls of btrfs that a sandbox may use. All others, including those that a later kernel adds,
// are refused: they create subvolumes, change their flags, or administer the file system of the host's home.
var btrfsAllowed = []uint32{
	0x40049409, // FICLONE: cp --reflink; only files of the caller, on any file system
	0x4020940d, // FICLONERANGE: as FICLONE
	0xc0189436, // FIDEDUPERANGE: as FICLONE
	0x81009431, // FS_IOC_GETFSLABEL: reads a label, on any file system
	0x8400941f, // BTRFS_IOC_FS_INFO: reads sizes and the id of the file system
	0x80089424, // BTRFS_IOC_SUBVOL_GETFLAGS: reads flags
}

// sockTypeMask is SOCK_TYPE_MASK: the flags SOCK_NONBLOCK and SOCK_CLOEXEC share
// the argument.
const sockTypeMask = 0xf

// Hardening returns the filter of every command of a sandbox. It allows calls without a rule: namespaces, capabilities
// and mounts isolate the sandbox, and the filter removes calls that bypass them or that are mostly sources of bugs.
func Hardening(o Options) []unix.SockFilter {
	return assemble(hardeningRules(o), Kill, Errno(unix.ENOSYS))
}

func hardeningRules(o Options) []Rule {
	rules := allRules(o)
	if o.Report {
		rules = slices.DeleteFunc(rules, func(r Rule) bool { return r.Tell })
	}
	return rules
}

// allRules returns the rules of Hardening without Report.
func allRules(o Options) []Rule {
	socket, pair := socketRule(o, unix.SYS_SOCKET), socketRule(o, unix.SYS_SOCKETPAIR)
	if o.NoUnix {
		local := []Test{{Arg: 0, Is: In, Of: []uint32{unix.AF_UNIX}}}
		socket.Cases = slices.Insert(socket.Cases, 0, Case{When: local, Do: Errno(unix.EACCES)})
	}
	rules := slices.Concat([]Rule{leases, socket, pair}, hardening, hardeningArch)
	if o.Shared {
		rules = append(rules, sharedRules...)
	}
	if o.Guard != 0 {
		rules = guard(rules, o.Guard)
	}
	return rules
}

// leases refuses leases on files. Only a filter can refuse a lease to the owner of a file (generic_setlease of
// fs/locks.c), and every other process that opens a leased file waits for the holder. The rule is first because
// programs call fcntl often.
var leases = Rule{
	Calls: []uint32{unix.SYS_FCNTL},
	Cases: []Case{{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.F_SETLEASE, unix.F_NOTIFY}}}, Do: Errno(unix.EINVAL)}},
	Why: "opening a leased file waits for the holder of the lease, as would init when it starts a program, and a " +
		"capture when it reads the file " +
		"(F_SETLEASE); file servers share leases with other kernels, and work without. inotify(7) replaced F_NOTIFY. " +
		"Both are EINVAL on a file system without them, and are not reported",
}

// ordinaryNetlink are the netlink protocols that ordinary programs request and can do without: addresses (getaddrinfo),
// audit (su, useradd), devices (libudev), sockets (ss), and families by name (libnl).
var ordinaryNetlink = []uint32{unix.NETLINK_ROUTE, unix.NETLINK_AUDIT, unix.NETLINK_KOBJECT_UEVENT,
	unix.NETLINK_SOCK_DIAG, unix.NETLINK_GENERIC}

// ofInternet is about the first argument of socket(2).
var ofInternet = Test{Arg: 0, Is: In, Of: []uint32{unix.AF_INET, unix.AF_INET6}}

// socketRule is the rule for socket(2) or socketpair(2).
func socketRule(o Options, call uint32) Rule {
	inet := ofInternet
	netlink := Test{Arg: 0, Is: In, Of: []uint32{unix.AF_NETLINK}}
	r := Rule{
		Calls: []uint32{call},
		Cases: []Case{
			{When: []Test{{Arg: 0, Is: NotIn, Of: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}}},
				Do: Errno(unix.EAFNOSUPPORT)},
			// SOCK_SEQPACKET of INET is SCTP by another name.
			{When: []Test{inet,
				{Arg: 1, Mask: sockTypeMask, Is: NotIn, Of: []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW}}},
				Do: Errno(unix.ESOCKTNOSUPPORT)},
			// SCTP, DCCP, L2TP, SMC and others load modules with a long record of vulnerabilities.
			{When: []Test{inet, {Arg: 2, Is: NotIn, Of: []uint32{0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP,
				unix.IPPROTO_ICMPV6, unix.IPPROTO_RAW, unix.IPPROTO_MPTCP}}}, Do: Errno(unix.EPROTONOSUPPORT)},
		},
		Tell: true,
		Why: "an allow-list of families: AF_VSOCK reaches the hypervisor past every network namespace; " +
			"AF_NETLINK, AF_PACKET, AF_ALG and the rest are attack surface (and load modules on demand)",
	}
	switch {
	case o.GateInet && call == unix.SYS_SOCKET:
		r.Cases = slices.Insert(r.Cases, 0, Case{When: []Test{inet}, Do: Allow})
	case o.NoInet, o.GateInet:
		r.Cases = slices.Insert(r.Cases, 0, Case{When: []Test{inet}, Do: Errno(unix.EACCES)})
	}
	if o.Shared {
		r.Cases = append(r.Cases, Case{When: []Test{{Arg: 0, Is: In, Of: []uint32{unix.AF_UNIX}},
			{Arg: 1, Mask: sockTypeMask, Is: NotIn, Of: []uint32{unix.SOCK_STREAM, unix.SOCK_SEQPACKET}}},
			Do: Errno(unix.EACCES)})
	}
	no := Errno(unix.EAFNOSUPPORT)
	if o.Netlink {
		no = Errno(unix.EPROTONOSUPPORT)
		r.Cases = append(r.Cases, Case{When: []Test{netlink, {Arg: 2, Is: In, Of: []uint32{unix.NETLINK_ROUTE}}}, Do: Allow})
	}
	r.Cases = append(r.Cases,
		Case{When: []Test{netlink, {Arg: 2, Is: In, Of: ordinaryNetlink}}, Do: no, Quiet: true},
		Case{When: []Test{netlink}, Do: no})
	return r
}

// The first rules are for calls that are frequent and have their arguments read.
var hardening = []Rule{
	{
		Calls: []uint32{unix.SYS_IOCTL},
		Cases: []Case{
			{When: []Test{{Arg: 1, Is: In, Of: []uint32{tiocsti, tioclinux, tioccons, tiocsetd}}}, Do: Errno(unix.EPERM)},
			{When: []Test{{Arg: 1, Is: In, Of: btrfsAllowed}}, Do: Allow},
			// Programs try to create a subvolume, and fall back to a directory.
			{When: []Test{{Arg: 1, Mask: ioctlTypeMask, Is: In, Of: []uint32{btrfsIoctlType}}},
				Do: Errno(unix.ENOTTY), Quiet: true},
		},
		Tell: true,
		Why: "TIOCSTI and TIOCLINUX type into the terminal that the command was started from (ioctl_tty(2)), " +
			"TIOCCONS takes console output, TIOCSETD loads line disciplines; of btrfs, a new subvolume would be outside of " +
			"the " +
			"limit of the root's, and a read-only one could not be removed; the kernel reads 32 bits of the request",
	},
	{
		Calls: []uint32{unix.SYS_CLONE},
		Cases: []Case{{When: []Test{{Arg: 0, Is: AnyBits, Of: []uint32{namespaces}}}, Do: Errno(unix.EPERM)}},
		Tell:  true,
		Why:   "a nested user namespace gives every capability in it, and with it most of the kernel's attack surface",
	},
	{
		Calls: []uint32{unix.SYS_CLONE3},
		Do:    Errno(unix.ENOSYS),
		Why:   "its flags are in memory, which a filter cannot read; C libraries fall back to clone",
	},
	{
		Calls: []uint32{unix.SYS_UNSHARE},
		Cases: []Case{
			{When: []Test{{Arg: 0, Is: AnyBits, Of: []uint32{namespaces | unix.CLONE_NEWTIME}}}, Do: Errno(unix.EPERM)}},
		Tell: true,
		Why:  "as clone; CLONE_FS, CLONE_FILES and CLONE_SYSVSEM stay allowed",
	},
	{
		Calls: []uint32{unix.SYS_SETNS},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "enters namespaces through a descriptor, should one ever be passed in",
	},
	{
		Calls: []uint32{
			unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSCONFIG,
			unix.SYS_FSPICK, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR,
		},
		Do:   Errno(unix.EPERM),
		Tell: true,
		Why:  "the mount table is the wall: masks and read-only binds must stay (the capability is gone as well)",
	},
	{
		Calls: []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER},
		Do:    Errno(unix.ENOSYS),
		Why:   "operations on a ring pass every filter; ENOSYS makes libuv, tokio and others fall back",
	},
	{
		Calls: []uint32{unix.SYS_IO_SETUP},
		Do:    Errno(unix.ENOSYS),
		Why: "contexts of aio(7) are counted for the whole machine (fs.aio-max-nr), so that one sandbox could leave " +
			"none; programs fall back",
	},
	{
		Calls: []uint32{unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_LOOKUP_DCOOKIE},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "attack surface: verifier and profiling bugs; userfaultfd is the favourite tool to win kernel races",
	},
	{
		Calls: []uint32{unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "session keyrings are not namespaced: they would be shared with the user's own processes (keyrings(7))",
	},
	{
		Calls: []uint32{unix.SYS_OPEN_BY_HANDLE_AT},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "opens any inode of a file system by number, past every path (the shocker exploit)",
	},
	{
		Calls: []uint32{unix.SYS_PIDFD_GETFD},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "takes descriptors out of other processes; nothing ordinary needs it",
	},
	{
		Calls: []uint32{unix.SYS_KCMP},
		Do:    Errno(unix.EPERM),
		Why:   "compares kernel pointers; graphics drivers try it on their own descriptors, so it is not reported",
	},
	{
		Calls: []uint32{unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "watches whole file systems, the host's part of them too; inotify stays",
	},
	{
		Calls: []uint32{
			unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
			unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
			unix.SYS_SYSLOG, unix.SYS_NFSSERVCTL, unix.SYS_VHANGUP,
		},
		Do:   Errno(unix.EPERM),
		Tell: true,
		Why:  "administer the whole machine",
	},
	{
		Calls: []uint32{unix.SYS_PRLIMIT64},
		Cases: []Case{{When: []Test{{Arg: 0, Is: NotIn, Of: []uint32{0}}}, Do: Errno(unix.EPERM)}},
		Tell:  true,
		Why: "the kernel lets a process set the limits of any other of its uid, init's too (prlimit(2)): " +
			"RLIMIT_NOFILE or RLIMIT_CPU would end it; setrlimit(3) and ulimit are about the caller, pid 0",
	},
	{
		Calls: []uint32{unix.SYS_PERSONALITY},
		Cases: []Case{{When: []Test{
			{Arg: 0, Is: NotIn, Of: []uint32{askPersonality}},
			{Arg: 0, Is: AnyBits, Of: []uint32{readImpliesExec | mmapPageZero}},
		}, Do: Errno(unix.EPERM)}},
		Tell: true,
		Why:  "makes data executable and page zero mappable; ADDR_NO_RANDOMIZE (gdb, setarch -R) stays",
	},
	{
		Calls: []uint32{unix.SYS_PTRACE},
		Cases: []Case{
			{When: []Test{{Arg: 0, Is: In, Of: []uint32{unix.PTRACE_ATTACH, unix.PTRACE_SEIZE}},
				{Arg: 1, Is: In, Of: []uint32{initPid}}}, Do: Errno(unix.EPERM)}},
		Tell: true,
		Why:  "of init, which the kernel refuses too; debuggers of other processes work",
	},
	{
		Calls: []uint32{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV},
		Cases: []Case{{When: []Test{{Arg: 0, Is: In, Of: []uint32{initPid}}}, Do: Errno(unix.EPERM)}},
		Tell:  true,
		Why:   "the same",
	},
}
