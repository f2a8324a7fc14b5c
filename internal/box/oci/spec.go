//go:build linux && (amd64 || arm64)

package oci

import (
	"runtime"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/plan"
)

// initCaps are the capabilities of PID 1 in addition to those of root's commands. Commands get none of them.
var initCaps = []uint{
	2,  // DAC_READ_SEARCH: finds programs and files of all users for records
	19, // SYS_PTRACE: reads the arguments of calls of processes of all users
	21, // SYS_ADMIN: renames directories of lower layers (attributes of overlayfs)
	24, // SYS_RESOURCE: keeps its own limits
}

// specOf describes the container. The root at initlink.WorldView has all mounts already, except for those that belong
// to the new namespaces; queues says that the kernel has POSIX message queues.
func specOf(g plan.Guest, queues bool) *specs.Spec {
	caps := capabilities()
	plain := []string{"nosuid", "noexec", "nodev"}
	// A bind mount of /dev on itself keeps the runtime from making devices in it.
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: plain},
		{Destination: "/dev", Type: "bind", Source: initlink.WorldView + "/dev", Options: []string{"rbind"}},
	}
	if queues {
		mounts = append(mounts, specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: plain})
	}
	masked, readOnly := guest.ProcLimits()
	linux := &specs.Linux{
		Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		},
		MaskedPaths: masked, ReadonlyPaths: readOnly, Seccomp: profile(g),
	}
	return &specs.Spec{
		Version: "1.0.2", // of the oldest runtimes in use; nothing newer is needed
		Root:    &specs.Root{Path: initlink.WorldView},
		Process: &specs.Process{
			Args: []string{plan.ContainedPath}, Cwd: "/", Env: []string{}, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps, Inheritable: caps,
				Ambient: caps},
		},
		Hostname: g.Hostname,
		Mounts:   mounts,
		Linux:    linux,
	}
}

// capabilities returns the names of the capabilities of PID 1.
func capabilities() (names []string) {
	all := slices.Concat(plan.RootCaps, initCaps)
	slices.Sort(all)
	for _, c := range all {
		names = append(names, "CAP_"+strings.ToUpper(capability.Cap(c).String()))
	}
	return names
}

// profile is seccomp.Profile for the runtime. Calls of other architectures kill the process.
func profile(g plan.Guest) *specs.LinuxSeccomp {
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow,
		Architectures: []specs.Arch{map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}[runtime.GOARCH]}}
	for _, r := range seccomp.Profile(seccomp.Options{Netlink: g.Netlink, Report: g.Tell}) {
		errno := uint(r.Errno)
		rule := specs.LinuxSyscall{Names: []string{r.Name}, Action: specs.ActErrno, ErrnoRet: &errno}
		if r.Bits == 0 {
			p.Syscalls = append(p.Syscalls, rule)
			continue
		}
		for bit := uint64(1); bit <= uint64(r.Bits); bit <<= 1 {
			if uint64(r.Bits)&bit == 0 {
				continue
			}
			one := rule
			one.Args = []specs.LinuxSeccompArg{{Index: uint(r.Arg), Value: bit, ValueTwo: bit, Op: specs.OpMaskedEqual}}
			p.Syscalls = append(p.Syscalls, one)
		}
	}
	return p
}
