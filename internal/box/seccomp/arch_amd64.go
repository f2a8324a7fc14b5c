//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_X86_64

// hardeningArch are the rules for calls that only this architecture has.
var hardeningArch = []Rule{
	{
		Calls: []uint32{unix.SYS_IOPL, unix.SYS_IOPERM},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "access to the machine's ports",
	},
	{
		Calls: []uint32{unix.SYS_MODIFY_LDT},
		Do:    Errno(unix.EPERM),
		Tell:  true,
		Why:   "segment tables are for 16-bit programs, with a history of vulnerabilities",
	},
	{
		Calls: []uint32{
			unix.SYS_USELIB, unix.SYS__SYSCTL, unix.SYS_SYSFS, unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS,
			unix.SYS_QUERY_MODULE, unix.SYS_URETPROBE, unix.SYS_UPROBE,
		},
		Do:  Errno(unix.ENOSYS),
		Why: "obsolete, or called only by the kernel's own trampolines",
	},
}

// The calls of the notifying filter, including those that newer architectures omit.
var (
	renameCalls = []uint32{unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2}
	chownCalls  = []uint32{unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT}
	mknodRules  = []Rule{mknodRule(unix.SYS_MKNOD, 1), mknodRule(unix.SYS_MKNODAT, 2)}
)

// archSetCPUID is ARCH_SET_CPUID (arch_prctl(2)).
const archSetCPUID = 0x1012

// stubRules are the rules of Stubs.
var stubRules = []Rule{{
	Calls: []uint32{unix.SYS_ARCH_PRCTL},
	Cases: []Case{{When: []Test{{Arg: 0, Is: In, Of: []uint32{archSetCPUID}}}, Do: Errno(unix.ENODEV)}},
	Why: "with it each CPUID instruction is a signal that gVisor answers; a C library has dozens of them at each " +
		"start of a program, which are a third of what it takes",
}}

// reportedArch maps the calls of hardeningArch whose refusals are reported to their names.
var reportedArch = map[uint32]string{
	unix.SYS_IOPL: "iopl", unix.SYS_IOPERM: "ioperm", unix.SYS_MODIFY_LDT: "modify_ldt",
}

// quietArch maps the other calls of hardeningArch to their names.
var quietArch = map[uint32]string{
	unix.SYS_USELIB: "uselib", unix.SYS__SYSCTL: "_sysctl", unix.SYS_SYSFS: "sysfs",
	unix.SYS_CREATE_MODULE: "create_module", unix.SYS_GET_KERNEL_SYMS: "get_kernel_syms",
	unix.SYS_QUERY_MODULE: "query_module", unix.SYS_URETPROBE: "uretprobe", unix.SYS_UPROBE: "uprobe",
}
