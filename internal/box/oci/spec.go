//go:build linux && (amd64 || arm64)

package oci

import (
	"runtime"
	"slices"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/plan"
)

// capability is a capability of PID 1 in the container.
type capability struct {
	number uint
	name   string
}

// initCaps are the capabilities of PID 1: those of root's commands, and four that it drops before it starts commands.
var initCaps = []capability{
	{0, "CAP_CHOWN"}, {1, "CAP_DAC_OVERRIDE"}, {3, "CAP_FOWNER"}, {4, "CAP_FSETID"}, {5, "CAP_KILL"}, {6, "CAP_SETGID"},
	{7, "CAP_SETUID"}, {8, "CAP_SETPCAP"}, {10, "CAP_NET_BIND_SERVICE"}, {18, "CAP_SYS_CHROOT"}, {27, "CAP_MKNOD"},
	{29, "CAP_AUDIT_WRITE"}, {31, "CAP_SETFCAP"},
	{2, "CAP_DAC_READ_SEARCH"}, // finds programs and files of all users for records
	{19, "CAP_SYS_PTRACE"},     // reads the arguments of calls of processes of all users
	{21, "CAP_SYS_ADMIN"},      // moves directories of lower layers (attributes of overlayfs)
	{24, "CAP_SYS_RESOURCE"},   // keeps its own limits
}

// specOf describes the container. Its mounts are those that belong to the new namespaces: init moves them into the
// sandbox's root. The host name is the conductor's, which a new UTS namespace inherits. queues says that the kernel has
// POSIX message queues.
func specOf(g plan.Guest, queues bool) spec {
	var caps []string
	for _, c := range initCaps {
		caps = append(caps, c.name)
	}
	slices.Sort(caps)
	plain := []string{"nosuid", "noexec", "nodev"}
	// A bind mount of /dev keeps the runtime from making devices.
	mounts := []mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: plain},
		{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"rbind"}},
	}
	if queues {
		mounts = append(mounts, mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: plain})
	}
	masked, readOnly := guest.ProcLimits()
	return spec{
		Version: "1.0.2", // of the oldest runtimes in use; nothing newer is needed
		Root:    root{Path: worldRoot},
		Process: process{
			Args: []string{plan.ContainedPath}, Cwd: "/", Env: []string{"HOME=/"}, NoNewPrivileges: true,
			Capabilities: capabilities{Bounding: caps, Effective: caps, Permitted: caps, Inheritable: caps, Ambient: caps},
		},
		Mounts: mounts,
		Linux: linux{
			Namespaces:  []namespace{{"pid"}, {"ipc"}, {"uts"}, {"mount"}},
			MaskedPaths: masked, ReadonlyPaths: readOnly, Seccomp: profileOf(g),
		},
	}
}

// profileOf is seccomp.Profile for the runtime. Calls of other architectures kill.
func profileOf(g plan.Guest) profile {
	// With x32, whose calls libseccomp would otherwise answer by killing one thread. The filter of commands refuses them
	// with an error.
	archs := []string{"SCMP_ARCH_X86_64", "SCMP_ARCH_X32"}
	if runtime.GOARCH == "arm64" {
		archs = []string{"SCMP_ARCH_AARCH64"}
	}
	p := profile{DefaultAction: "SCMP_ACT_ALLOW", Architectures: archs}
	for _, r := range seccomp.Profile(seccomp.Options{Netlink: g.Netlink, Report: g.Tell}) {
		rule := calls{Names: []string{r.Name}, Action: "SCMP_ACT_ERRNO", ErrnoRet: uint(r.Errno)}
		if r.Bits == 0 {
			p.Syscalls = append(p.Syscalls, rule)
			continue
		}
		for bit := uint64(1); bit <= uint64(r.Bits); bit <<= 1 {
			if uint64(r.Bits)&bit != 0 {
				rule.Args = []argument{{Index: uint(r.Arg), Value: bit, ValueTwo: bit, Op: "SCMP_CMP_MASKED_EQ"}}
				p.Syscalls = append(p.Syscalls, rule)
			}
		}
	}
	return p
}
