//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// specOf describes the sandbox to gVisor. It must not depend on anything that differs between the sandbox of a memory
// image and the one that is resumed from it, above all the sandbox's name: gVisor compares the descriptions
// (runsc/boot/restore.go, validateSpecs).
func specOf(g plan.Guest) (*specs.Spec, error) {
	uids, err := ownMap("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	gids, err := ownMap("/proc/self/gid_map")
	if err != nil {
		return nil, err
	}
	caps := capabilities()
	tmpfs := func(at, mode string) specs.Mount {
		o := []string{"nosuid", "nodev", "mode=" + mode}
		if g.Memory > 0 {
			o = append(o, "size="+strconv.FormatInt(g.Memory/4, 10))
		}
		return specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: o}
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		tmpfs("/dev/shm", "1777"),
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "nodev", "noexec"}},
		tmpfs("/run", "755"),
		{Destination: plan.InnerPath, Type: "bind", Source: worldBinary, Options: []string{"bind", "ro", "nosuid", "nodev"}},
	}
	if g.Client {
		mounts = append(mounts, specs.Mount{Destination: plan.ClientAt, Type: "bind", Source: worldClient,
			Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	if g.Tmp {
		mounts = append(mounts, tmpfs("/tmp", "1777"))
	}
	for i := range g.Shared {
		mounts = append(mounts,
			specs.Mount{Destination: rootspec.SharedPath(i), Type: "bind", Source: worldShared + "/" + strconv.Itoa(i),
				Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}})
	}
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: worldBox},
		Process: &specs.Process{
			Args: []string{plan.InnerPath}, Cwd: "/", Env: []string{"GOMAXPROCS=2", "GOGC=50", "GOMEMLIMIT=24MiB"},
			User: specs.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps, Inheritable: caps,
				Ambient: caps},
		},
		Mounts: mounts,
		Linux: &specs.Linux{
			UIDMappings: uids, GIDMappings: gids,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.UserNamespace},
			},
		},
	}
	return s, nil
}

// capabilities returns the names of the capabilities of PID 1.
func capabilities() (names []string) {
	for _, c := range plan.InnerCaps() {
		names = append(names, "CAP_"+strings.ToUpper(capability.Cap(c).String()))
	}
	return names
}

// ownMap maps each id of this process to itself, so that the kernel's processes have the same ids.
func ownMap(name string) ([]specs.LinuxIDMapping, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fault.Wrap(err, "read %s", name)
	}
	var all []specs.LinuxIDMapping
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return nil, fault.New(fault.Internal, "malformed line in %s: %[2]q", name, line)
		}
		first, err1 := strconv.ParseUint(f[0], 10, 32)
		size, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 != nil || err2 != nil {
			return nil, fault.New(fault.Internal, "malformed line in %s: %[2]q", name, line)
		}
		all = append(all, specs.LinuxIDMapping{ContainerID: uint32(first), HostID: uint32(first), Size: uint32(size)})
	}
	return all, nil
}
