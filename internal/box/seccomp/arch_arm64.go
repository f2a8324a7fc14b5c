//go:build linux

package seccomp

import "golang.org/x/sys/unix"

const nativeArch = unix.AUDIT_ARCH_AARCH64

// hardeningArch are the rules for calls that only this architecture has.
var hardeningArch []Rule

// The calls of the notifying filter. This architecture has only the *at forms.
var (
	renameCalls = []uint32{unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2}
	chownCalls  = []uint32{unix.SYS_FCHOWN, unix.SYS_FCHOWNAT}
	mknodRules  = []Rule{mknodRule(unix.SYS_MKNODAT, 2)}
)

// reportedArch maps the calls of hardeningArch whose refusals are reported to their names.
var reportedArch map[uint32]string

// stubRules are the rules of Stubs.
var stubRules []Rule

// quietArch maps the other calls of hardeningArch to their names.
var quietArch = map[uint32]string{}
