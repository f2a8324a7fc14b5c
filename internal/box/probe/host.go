//go:build linux && (amd64 || arm64)

package probe

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mounttable"
	"github.com/coppice-dev/coppice/internal/quota"
)

// host is the state of the host on which remedies depend.
type host struct {
	root       bool
	cloneKnob  bool // kernel.unprivileged_userns_clone is 0 (Debian's patch)
	apparmor   bool // kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu 23.10 and later)
	none       bool // user.max_user_namespaces is 0
	ptrace     bool // kernel.yama.ptrace_scope forbids tracing children (2 or 3)
	kubernetes bool
	container  bool
}

func lookAround(root bool) host {
	h := host{root: root}
	h.cloneKnob = sysctl("kernel/unprivileged_userns_clone") == "0"
	h.apparmor = sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1"
	scope := sysctl("kernel/yama/ptrace_scope")
	h.ptrace = scope == "2" && !root || scope == "3"
	h.none = sysctl("user/max_user_namespaces") == "0"
	exists := func(p string) bool { _, err := os.Lstat(p); return err == nil }
	h.kubernetes = exists("/var/run/secrets/kubernetes.io")
	h.container = h.kubernetes || exists("/.dockerenv") || exists("/run/.containerenv") || filtered()
	return h
}

// filtered reports whether this process runs under a seccomp filter, as in a container.
func filtered() bool {
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return err == nil && mode != 0
}

func sysctl(name string) string {
	b, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b))
}

// remedy returns the remedy for a missing feature, as far as the state of the host shows the cause.
func (h host) remedy(feature, errno string) string {
	switch feature {
	case GateLink:
		if errno == "EPERM" || errno == "EACCES" {
			return h.remedy(UserNamespaces, errno)
		}
		return "sudo modprobe -a veth af_packet"
	case UserNamespaces, Seccomp, SeccompNotify, Devpts:
		switch {
		case h.cloneKnob && !h.root:
			return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
		case h.none:
			return "sudo sysctl -w user.max_user_namespaces=15000"
		case h.apparmor && !h.root:
			return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
		case h.kubernetes:
			return "in the pod: securityContext: {seccompProfile: {type: Unconfined}, procMount: Unmasked}, and hostUsers: false"
		case h.container:
			return "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt " +
				"systempaths=unconfined"
		case errno == "ENOSYS" || errno == "EINVAL":
			return "a kernel with CONFIG_USER_NS and CONFIG_SECCOMP_FILTER, 5.11 or later"
		}
		return "sudo sysctl -w user.max_user_namespaces=15000; see also the security modules of this host"
	case FreshProc:
		if h.kubernetes {
			return "in the pod: securityContext: {procMount: Unmasked}"
		}
		return "docker run --security-opt systempaths=unconfined"
	case Whiteouts:
		return "set COPPICE_HOME to a directory on ext4, xfs, btrfs or tmpfs"
	case Overlay:
		if h.apparmor && !h.root {
			return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
		}
		if h.container {
			return "set COPPICE_HOME to a volume or a tmpfs: the container's own root cannot hold an upper directory"
		}
		return "set COPPICE_HOME to a directory on ext4, xfs, btrfs or tmpfs (Linux 5.11 or later)"
	case Landlock:
		return "boot with lsm=landlock,... or a kernel with CONFIG_SECURITY_LANDLOCK (5.13; scopes since 6.12)"
	case Cgroup:
		if h.container {
			return "docker run --cgroupns=private --privileged, or mount /sys/fs/cgroup writable"
		}
		return "run the daemon as a systemd unit with Delegate=yes: systemd-run --user --scope -p Delegate=yes coppice serve"
	case IDMapped:
		return "Linux 5.19 or later, and a home on ext4, xfs, btrfs or tmpfs"
	case SubordinateIDs:
		return "sudo apt-get install uidmap && sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER"
	case Reflink:
		return "set COPPICE_HOME to a directory on btrfs or xfs"
	}
	return ""
}

// kernelRemedy returns the remedy if tier gvisor does not start. Its kernel controls its processes by
// ptrace(2) and seccomp(2), which Yama and containers can refuse.
func (h host) kernelRemedy(err error) string {
	switch hint := fault.HintOf(err); {
	case hint != "" && !strings.HasSuffix(hint, "coppice system probe"): // that hint leads back here
		return hint
	case h.ptrace:
		return "sudo sysctl -w kernel.yama.ptrace_scope=1"
	case h.container:
		return "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt " +
			"systempaths=unconfined"
	}
	return "see its error: coppice create --tier gvisor NAME, then coppice exec NAME true"
}

// landlock asks for the ABI version (landlock_create_ruleset(2)). ABI 6 has the scopes for signals and abstract
// sockets.
func landlock() Item {
	it := Item{Group: Features, Name: Landlock, State: OK, Tried: "landlock_create_ruleset: version"}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno != 0:
		it.State, it.Errno = answer(errno), unix.ErrnoName(errno)
	case abi < 6:
		it.State, it.Detail = Weak, fmt.Sprintf("ABI %d: no scopes for signals and abstract sockets", abi)
	default:
		it.Detail = fmt.Sprintf("ABI %d", abi)
	}
	if it.State != OK {
		it.Remedy = host{}.remedy(Landlock, "")
	}
	return it
}

// magics are from linux/magic.h. Other file systems are shown as numbers.
var magics = map[uint32]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	unix.FUSE_SUPER_MAGIC: "fuse",
	0x2fc12fc1:            "zfs", unix.SMB2_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs", unix.V9FS_MAGIC: "9p",
	0xca451a4e:                "bcachefs",
	unix.ECRYPTFS_SUPER_MAGIC: "ecryptfs",
}

func fileSystem(dir string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "unknown", err
	}
	magic := uint32(fs.Type) // magics are 32 bits
	if name, ok := magics[magic]; ok {
		return name, nil
	}
	return fmt.Sprintf("type %#x", magic), nil
}

// homeFS reports the file system of the home, and whether it is known to be unsuitable for a store.
func homeFS(home string) Item {
	it := Item{Group: Features, Name: HomeFS, State: OK, Tried: "statfs " + home}
	fs, err := fileSystem(home)
	it.Detail = fs
	switch {
	case err != nil:
		it.State, it.Errno = answer(err), errnoName(err)
	case fs == "nfs" || fs == "cifs" || fs == "smb" || fs == "9p" || fs == "fuse":
		it.State, it.Detail = Weak, fs+": the database needs working locks, and user xattrs are often missing"
	case fs == "overlay":
		it.State, it.Detail = Weak, "overlay: only driver copy works, which copies the files of each sandbox"
	case fs == "tmpfs":
		it.State, it.Detail = Weak, "tmpfs: does not survive a reboot"
	}
	if it.State != OK {
		it.Remedy = "set COPPICE_HOME to a directory on a local disk: ext4, xfs or btrfs"
	}
	return it
}

// diskLimit tries what create --limit disk=SIZE requires.
func diskLimit(root bool, home string) Item {
	it := Item{Group: Features, Name: DiskLimit, State: OK, Tried: "wrote beyond a limit in " + home}
	err := quota.NotRoot()
	if root {
		it.Detail, err = quota.Try(home)
	}
	if err != nil {
		it.State, it.Detail, it.Errno, it.Remedy = answerOf(err), err.Error(), errnoName(err), fault.HintOf(err)
	}
	return it
}

// subordinateIDs looks for newuidmap(1) and for ranges in subuid(5), which allow more than one id to be mapped. Without
// them root is emulated.
func subordinateIDs(root bool) Item {
	it := Item{Group: Features, Name: SubordinateIDs, State: OK,
		Tried: "newuidmap, newgidmap, /etc/subuid and /etc/subgid"}
	if root {
		it.Detail = "root maps any ids"
		return it
	}
	miss := func(why string) Item {
		it.State, it.Detail, it.Remedy = Missing, why+"; root inside is emulated", host{}.remedy(SubordinateIDs, "")
		return it
	}
	for _, tool := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(tool); err != nil {
			return miss(tool + " is not installed")
		}
	}
	id := outerID()
	names := []string{id}
	if u, err := user.LookupId(id); err == nil {
		names = append(names, u.Username)
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		b, _ := os.ReadFile(file)
		found := false
		for line := range strings.Lines(string(b)) {
			who, _, _ := strings.Cut(line, ":")
			found = found || slices.Contains(names, who)
		}
		if !found {
			return miss("no range of ids in " + file)
		}
	}
	it.Detail = "ranges for " + names[len(names)-1]
	return it
}

// outerID returns the user's id outside if this process is uid 0 of a user namespace that maps one id
// (user_namespaces(7): each line of uid_map is inside, outside, size).
func outerID() string {
	b, _ := os.ReadFile("/proc/self/uid_map")
	if f := strings.Fields(string(b)); len(f) == 3 && f[2] == "1" {
		return f[1]
	}
	return strconv.Itoa(os.Getuid())
}

// cgroup finds the control group (version 2) of this process and tries to create a child of it (cgroups(7),
// "Delegation").
func cgroup() Item {
	it := Item{Group: Features, Name: Cgroup, State: Missing, Tried: "created a child of the daemon's control group"}
	dir, err := cgroupDir()
	if err != nil {
		it.Detail, it.Errno, it.Remedy = "no version 2 hierarchy: "+err.Error(), errnoName(err),
			"boot with systemd.unified_cgroup_hierarchy=1"
		return it
	}
	it.Remedy = host{container: filtered()}.remedy(Cgroup, "")
	child := filepath.Join(dir, fmt.Sprintf("coppice-probe-%d", os.Getpid()))
	if err := os.Mkdir(child, 0o700); err != nil {
		it.Errno, it.Detail = errnoName(err), "not delegated; processes are stopped by SIGSTOP, limits are rlimits"
		return it
	}
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	_ = os.Remove(child)
	has := strings.Fields(string(b))
	it.Detail = "freezer"
	it.State = OK
	for _, want := range []string{"memory", "pids"} {
		if strings.Contains(" "+strings.Join(has, " ")+" ", " "+want+" ") {
			it.Detail += ", " + want
		} else {
			it.State = Weak
		}
	}
	if it.State == OK {
		it.Remedy = ""
	} else {
		it.Detail += " (no other controllers: limits are rlimits)"
	}
	return it
}

// cgroupDir returns the directory of this process's control group in its own mount namespace.
func cgroupDir() (string, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	path := ""
	for line := range strings.Lines(string(self)) {
		if p, ok := strings.CutPrefix(line, "0::"); ok {
			path = strings.TrimSuffix(p, "\n")
		}
	}
	groups, err := mounttable.List(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return "", err
	}
	if path == "" || len(groups) == 0 {
		return "", unix.ENOENT
	}
	rel, err := filepath.Rel(groups[0].Root, path)
	if err != nil || strings.HasPrefix(rel, "..") {
		rel = "."
	}
	dir := filepath.Join(groups[0].Mountpoint, rel)
	_, err = os.Stat(filepath.Join(dir, "cgroup.procs"))
	return dir, err
}
