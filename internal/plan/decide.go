package plan

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Facts are what the keeper found out.
type Facts struct {
	Passwd   []byte // of the mounted root; nil when it has none
	Group    []byte
	Resolv   []byte // what a sandbox with a network finds in /etc/resolv.conf: the host's, or the gate's
	Landlock int    // ABI of the host; 0 is none
	Kernel   string // release of the host's kernel
	// PidMax says that pid_max is a setting of each pid namespace (Linux 6.14).
	PidMax bool
	Cgroup CgroupFacts
	// OpenFiles is the hard RLIMIT_NOFILE of the keeper, and so of init, which raises its
	// soft one to it.
	OpenFiles uint64
	// Shift is the host's id that stands for the sandbox's 0, where real root
	// mounts the root with shifted ids; 0 where it does not.
	Shift uint32
}

// CgroupFacts say what the box's own control group (version 2) offers, or groups of
// version 1 in its place.
type CgroupFacts struct {
	Freeze bool // there is one of version 2: its freezer works
	Memory bool // memory.max works
	Pids   bool // pids.max works
	CPU    bool // cpu.max works
}

// OwnTasks are the tasks of init itself that every limit of tasks counts.
const OwnTasks = 24

// TermGrace is what a command whose time is up has between SIGTERM and SIGKILL.
const TermGrace = 2 * time.Second

// leastData keeps init itself alive below RLIMIT_DATA.
const leastData = 256 << 20

// leastPidMax is the lowest pid_max that the kernel takes (RESERVED_PIDS + 1).
const leastPidMax = 301

// RootCaps are what commands of root keep within the sandbox's own user
// namespace: what Docker leaves, without NET_RAW.
var RootCaps = []uint{
	0,  // CHOWN
	1,  // DAC_OVERRIDE
	3,  // FOWNER
	4,  // FSETID
	5,  // KILL
	6,  // SETGID
	7,  // SETUID
	8,  // SETPCAP
	10, // NET_BIND_SERVICE
	18, // SYS_CHROOT
	27, // MKNOD
	29, // AUDIT_WRITE
	31, // SETFCAP
}

// InnerCaps are what PID 1 has inside the sandbox's own kernel, of tier gvisor: what
// commands of root keep, and that it mounts and gives the box its name.
func InnerCaps() []uint { return append(slices.Clone(RootCaps), 21) } // SYS_ADMIN

// ShiftSize is how many ids a sandbox with shifted ids has.
const ShiftSize = 1 << 16

// ShiftFor gives the host's id that stands for 0 in the sandbox with the given
// id. It lies where neither distributions, systemd nor subordinate ids have
// theirs (systemd, UIDS-GIDS.md: 1879048192 and up are unused). Two sandboxes may
// share a range: their walls are the namespaces, not the ids.
func ShiftFor(id string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return 0x70000000 + h.Sum32()%0xffe<<16
}

// MapsKnown reports whether Maps do not depend on Facts.Passwd.
func MapsKnown(c Config) bool {
	return c.Caller.Root || c.User == "" || c.User == UserRoot || c.User == UserMe
}

// Maps gives the uid and gid map of the sandbox's user namespace.
func Maps(c Config, f Facts) (uids, gids []IDMap, err error) {
	switch {
	case c.Caller.Root && f.Shift != 0:
		all := []IDMap{{0, f.Shift, ShiftSize}}
		return all, all, nil
	case c.Caller.Root:
		all := []IDMap{{0, 0, math.MaxUint32}}
		return all, all, nil
	}
	u, err := Identity(c, f)
	return []IDMap{{u.UID, 0, 1}}, []IDMap{{u.GID, 0, 1}}, err
}

// Identity decides who commands run as. The user NAME
// is looked up in the sandbox's own passwd alone.
func Identity(c Config, f Facts) (u User, err error) {
	want := c.User
	if want == "" {
		want = UserRoot
		if c.HostBase || c.Tier == TierWorkspace {
			want = UserMe
		}
	}
	users := ParsePasswd(f.Passwd)
	byID := func(id uint32) (User, bool) {
		i := slices.IndexFunc(users, func(u User) bool { return u.UID == id })
		if i < 0 {
			return User{}, false
		}
		return users[i], true
	}
	switch want {
	case UserRoot:
		u, _ = byID(0)
		u.Name, u.UID, u.GID = "root", 0, 0
	case UserMe:
		var known bool
		if u, known = byID(c.Caller.UID); !known {
			u = User{Name: c.Caller.Name, Home: c.Caller.Home, Shell: c.Caller.Shell}
			if !c.HostBase && c.Tier != TierWorkspace {
				u.Home, u.Shell = "", "" // the host's need not exist here
			}
		}
		u.UID, u.GID = c.Caller.UID, c.Caller.GID
	default:
		i := slices.IndexFunc(users, func(u User) bool { return u.Name == want })
		if i < 0 {
			return u, fault.New(fault.NotFound, "the sandbox has no user %q in its /etc/passwd", want).
				WithHint("use root or me, or make the user first: coppice create --user root, then useradd %s", want)
		}
		u = users[i]
	}
	u = u.complete()
	if c.Caller.Root {
		u.Groups = ParseGroups(f.Group, u.Name)
	}
	return u, nil
}

// memoryLack is the error of a limit of memory in tier gvisor, whose kernel cannot be
// limited by resource limits. Another tier has weaker ones, which strong refuses as well.
func memoryLack(strong bool) error {
	mend := "run coppice in a session that has one: systemd-run --user --scope -p Delegate=yes; or leave memory out of the limits"
	if !strong {
		mend += ", or use --tier supervised"
	}
	return fault.New(fault.Unsupported, "nothing here can enforce the limit memory in tier gvisor: no memory controller is delegated to us").WithHint("%s", mend)
}

// consistent refuses what contradicts itself.
func consistent(c Config, f Facts) error {
	gated := c.Gated()
	switch {
	case c.Limits.Disk > 0 && c.DiskBy == "":
		return fault.New(fault.Unsupported, "nothing enforces the disk limit").WithHint("leave disk= out of --limit")
	case c.Limits.MilliCPUs > 0 && c.Tier != TierWorkspace && !f.Cgroup.CPU:
		return CPULack()
	case c.Limits.Memory > 0 && c.Tier == TierGvisor && !f.Cgroup.Memory:
		return memoryLack(c.Strong)
	case c.Net == NetRules && !gated:
		return fault.New(fault.Unsupported, "tier %s has no gate, which rules of the network need", c.Tier).WithHint("use --tier supervised")
	case gated && c.Net == NetHost:
		return fault.New(fault.Invalid, "tier %s does not go with the host's network, which has no gate", c.Tier).WithHint("use --tier process, or rules")
	case !slices.Contains([]string{"", NetOff, NetHost, NetRules}, c.Net):
		return fault.New(fault.Invalid, "there is no network %q", c.Net).WithHint("use off, host or rules")
	case !c.Confined() && !c.Access.IsZero():
		return fault.New(fault.Unsupported, "tier workspace has no mounts, which files.readonly, files.writable and files.mounts need").WithHint("use --tier process")
	case len(c.Shared) > rootspec.MaxShared, !c.Confined() && len(c.Shared) > 0:
		return fault.New(fault.Invalid, "%d directories of the host cannot be shown in tier %s", len(c.Shared), c.Tier)
	case gated && (len(c.Phases) == 0 || c.Journal == ""):
		return fault.New(fault.Internal, "tier %s without a policy or a journal", c.Tier).WithHint("this is a bug: tell us")
	}
	return nil
}

// Decide makes the plan.
func Decide(c Config, f Facts) (Guest, Enforced, error) {
	if err := consistent(c, f); err != nil {
		return Guest{}, Enforced{}, err
	}
	u, err := Identity(c, f)
	if err != nil {
		return Guest{}, Enforced{}, err
	}
	uids, _, err := Maps(c, f)
	if err != nil {
		return Guest{}, Enforced{}, err
	}
	g := Guest{Version: Version, Tier: c.Tier, Dirs: slices.Clone(c.Dirs), User: u}
	e := Enforced{Tier: c.Tier, User: fmt.Sprintf("%s (%d:%d)", u.Name, u.UID, u.GID)}
	add := func(name, state, detail string) { e.Items = append(e.Items, Item{name, state, detail}) }
	g.Env = environment(c, u)
	if c.Tier == TierWorkspace {
		g.Dirs = append(g.Dirs, c.Spec.Bind)
		if c.Limits != (Limits{}) {
			return g, e, fault.New(fault.Unsupported, "tier workspace has no limits").
				WithHint("use --tier process, or leave --limit out")
		}
		add("confinement", Off, "commands run on the host; only the working directory has a history")
		add("freeze", Weak, "SIGSTOP to every descendant")
		if c.Trace {
			add("programs", Off, "snapshots are labelled by the paths that changed; the programs that were started are seen in tier process alone")
		}
		return g, e, nil
	}
	if c.Hostname != "" {
		g.Hostname = c.Hostname
	} else {
		g.Hostname = c.Name
	}
	single := SingleID(uids)
	g.Emulate = single && u.UID == 0
	if g.Emulate {
		g.Env = MergeEnv([]string{"APT_CONFIG=" + AptConfig}, g.Env)
	}
	own := c.Tier == TierGvisor // it has a kernel of its own, which the host's filters are not for
	g.Promote = len(c.Spec.Overlays) > 0 && !own
	g.Trace = c.Trace || c.Tier == TierSupervised
	g.Tell = c.Journal != ""
	g.Tmp = !c.KeepTmp
	g.Regions = c.Access.Regions()
	g.Memory = c.Limits.Memory
	g.Self, g.Shared = c.Self, len(c.Shared)
	if u.UID == 0 {
		g.Caps = RootCaps
	}
	switch {
	case single:
		add(ShiftedIDs, On, fmt.Sprintf("a user namespace in which %d is the one id", u.UID))
	case f.Shift != 0:
		add(ShiftedIDs, On, "a user namespace with ids that own nothing on the host")
	default:
		add(ShiftedIDs, Weak, "a user namespace without capabilities on the host, but its ids are the host's own")
	}
	if g.Emulate {
		if own {
			add("root emulation", On, "chown, mknod and the like succeed, and are not done")
		} else {
			add("root emulation", On, "chown, mknod and the like are remembered, not done")
		}
	}
	switch {
	case own: // and the host's kernel counts nothing for it
	case single:
		add(Counts, On, "inotify and namespaces: an eighth of the host's limits for one user")
	case f.Shift != 0:
		add(Counts, On, "inotify and namespaces: counted for a user of this sandbox alone")
	default:
		add(Counts, Weak, "inotify instances are root's: each user of the sandbox can take an eighth of them")
	}
	add("capabilities", On, strconv.Itoa(len(g.Caps))+" kept, within the sandbox's namespaces; no new privileges")
	switch {
	case c.Net == NetHost:
		add("net", Off, "the host's network")
		// An empty file makes resolvers ask 127.0.0.1, which is the host's.
		g.Resolv = append([]byte{}, f.Resolv...)
	case c.Gated():
		add("net", On, "the gate: what the policy allows, by name; nothing else exists")
		if f.Landlock > 0 {
			add("gate", On, "a process without capabilities that can write its journal and nothing else")
		} else {
			add("gate", Weak, "a process without capabilities; without Landlock (Linux 5.13) it could read and write what its user can")
		}
		if c.Asks {
			add("ask", On, "what no rule names waits for a person, and is denied when nobody decides")
		}
		g.Resolv = f.Resolv
		g.Loopback, g.Netlink = true, true
	default:
		add("net", On, "no network but loopback")
		g.Loopback, g.Netlink = true, true
	}
	if own {
		g.Fixed = c.Access.Kept()
		gvisor(add)
	} else if f.Landlock >= 6 {
		g.Landlock = true
		add("landlock", On, "scopes: signals and abstract sockets")
	} else {
		state, detail := Off, "needs Linux 6.12; process ids of the host are hidden all the same"
		if c.Net == NetHost {
			state, detail = Weak, "needs Linux 6.12; abstract sockets of the host can be reached"
		}
		add("landlock", state, detail)
	}
	switch {
	case own:
		g.Outside = true
		add("freeze", On, "the sandbox's own kernel stops")
	case f.Cgroup.Freeze:
		g.Outside = true
		add("freeze", On, "control group")
	default:
		add("freeze", Weak, "SIGSTOP and SIGCONT, which programs can notice; no control group could be made")
	}
	if g.Trace && !own && f.OpenFiles < limit.InitFiles {
		add(Descriptors, Weak, fmt.Sprintf("RLIMIT_NOFILE is %d: with more than about %d processes at a time, init cannot verify who started a program; "+
			"start the daemon with at least %d, by ulimit -Hn %d or LimitNOFILE=%d", f.OpenFiles, f.OpenFiles/2, limit.InitFiles, limit.InitFiles, limit.InitFiles))
	}
	switch {
	case g.Trace && own:
		add("programs", On, "each that is started is recorded, as the sandbox's own kernel tells it")
	case g.Trace:
		add("programs", On, "each that is started is recorded, before its first instruction")
	case own:
		add("programs", Off, "programs are not recorded; snapshots are labelled by the paths that changed")
	}
	switch {
	case c.Hidden > 0:
		add("hide", On, strconv.Itoa(c.Hidden)+" places that the policy hides are not there, nor is what comes to be at them outside")
	case c.HostBase:
		add("hide", Off, "the policy hides nothing: what you may read on the host can be read inside")
	}
	if !own {
		e.Quiet = append(e.Quiet, ownProc)
		if g.Tell {
			e.Quiet = append(e.Quiet, toldCalls)
		}
	}
	access(c, f, add)
	limits(c, f, &g, add)
	return g, e, nil
}

// gvisor tells what a kernel of the sandbox's own means.
func gvisor(add func(name, state, detail string)) {
	add("kernel", On, "gVisor's, in user space: no system call of the sandbox reaches the host's kernel")
	add("renames", Weak, "directories of lower layers are not moved (EXDEV: programs copy them)")
	add("attributes", Weak, "modes, owners and times that may not be changed are not, and programs are told that they were")
	add("pipes", Weak, "named pipes and sockets that are made are in memory, and no snapshot of files has them; those on the disk cannot be opened")
}

// access tells what can be changed, and what of the host is shown besides.
func access(c Config, f Facts, add func(name, state, detail string)) {
	a := c.Access
	if n := len(a.ReadOnly); n > 0 {
		add("readonly", On, strconv.Itoa(n)+" places that the policy has read-only cannot be changed, renamed or removed")
	}
	if a.Only {
		add("writable", On, strconv.Itoa(len(a.Writable))+" places alone can be changed, besides /tmp, /run and /dev, which end with the processes")
	}
	if n := len(a.Decoys); n > 0 {
		then := "is told"
		if c.OnTouch == TouchStop {
			then = "is told, and ends all processes"
		}
		if c.Tier == TierGvisor {
			then += "; the sandbox's own kernel may open it once for all who do later"
		}
		add("decoys", On, fmt.Sprintf("%d files with tokens that open nothing: that one is opened %s", n, then))
	}
	for i, dir := range c.Shared {
		add("mount", On, fmt.Sprintf("%s of the host at %s, read-only and without history", dir, rootspec.SharedPath(i)))
	}
	for _, m := range a.Mounts {
		switch {
		case !m.Write:
			add("mount", On, fmt.Sprintf("%s of the host at %s, read-only and without history", m.From, m.To))
		case c.Caller.Root && f.Shift != 0:
			add("mount", On, fmt.Sprintf("%s of the host at %s: what is written there is changed on the host, without history, and by its root", m.From, m.To))
		default:
			add("mount", On, fmt.Sprintf("%s of the host at %s: what is written there is changed on the host, without history", m.From, m.To))
		}
	}
}

// limitNames are the items that limits has.
var limitNames = []string{"memory", "cpus", "pids", "disk", "time", "output", "files"}

// CPULack is the error for a limit of processors that nothing enforces. To keep a
// sandbox to some of the processors is not the same, and it could take others.
func CPULack() error {
	return fault.New(fault.Unsupported, "nothing here can enforce the limit cpus: no cpu controller is delegated to us").
		WithHint("run the daemon as root, on a host that has the controller: grep cpu /proc/cgroups; or leave cpus out of the limits")
}

func limits(c Config, f Facts, g *Guest, add func(name, state, detail string)) {
	if n := c.Limits.MilliCPUs; n > 0 {
		add("cpus", On, fmt.Sprintf("%g processors' worth of time in all, control group", float64(n)/1000))
	}
	if n := c.Limits.TimeMS; n > 0 {
		add("time", On, fmt.Sprintf("%s for each command: then SIGTERM, and SIGKILL after %s", time.Duration(n)*time.Millisecond, TermGrace))
	}
	if n := c.Limits.Output; n > 0 {
		add("output", On, strconv.FormatInt(n, 10)+" bytes of each command, which is ended when it prints more")
	}
	if n := c.Limits.Files; n > 0 {
		g.Files = uint64(n)
		if most := limit.OpenFilesOfHost(f.OpenFiles); c.Tier != TierGvisor && f.OpenFiles > 0 {
			g.Files = min(g.Files, most)
		}
		add("files", On, strconv.FormatUint(g.Files, 10)+" for each process, RLIMIT_NOFILE")
	}
	if n := c.Limits.Disk; n > 0 {
		add("disk", On, strconv.FormatInt(n, 10)+" bytes, "+c.DiskBy)
	}
	if n := c.Limits.Memory; n > 0 {
		if f.Cgroup.Memory && c.Tier == TierGvisor {
			add("memory", On, strconv.FormatInt(n, 10)+" bytes in all, the sandbox's own kernel among them, which ends with all of it when there are more; control group")
		} else if f.Cgroup.Memory {
			add("memory", On, strconv.FormatInt(n, 10)+" bytes in all, control group")
		} else {
			g.Data = uint64(max(n, leastData))
			add("memory", Weak, fmt.Sprintf("RLIMIT_DATA: %d bytes for each process, not in all; no memory controller is delegated to us", g.Data))
		}
	}
	if n := c.Limits.Pids; n > 0 {
		g.Tasks = true
		switch {
		case c.Tier == TierGvisor:
			g.NProc = uint64(n + OwnTasks)
			if uids, _, err := Maps(c, f); err == nil && SingleID(uids) {
				add("pids", On, strconv.FormatInt(n, 10)+" tasks, RLIMIT_NPROC of the sandbox's own kernel, which has one user")
			} else {
				add("pids", Weak, strconv.FormatInt(n, 10)+" tasks of each user, RLIMIT_NPROC of the sandbox's own kernel")
			}
		case f.Cgroup.Pids:
			add("pids", On, strconv.FormatInt(n, 10)+" tasks, control group")
		case f.PidMax && n+OwnTasks >= leastPidMax:
			g.PidMax = int(n + OwnTasks)
			add("pids", On, strconv.FormatInt(n, 10)+" tasks, pid_max of the pid namespace")
		case f.PidMax && c.Caller.Root && f.Shift == 0:
			g.PidMax = leastPidMax
			add("pids", Weak, "about 280 tasks: no lower pid_max is possible, and no pids controller is delegated to us")
		case !c.Caller.Root || f.Shift != 0:
			g.NProc = uint64(n + OwnTasks)
			if f.PidMax {
				g.PidMax = leastPidMax
			}
			add("pids", Weak, "RLIMIT_NPROC: counted for each user; no pids controller is delegated to us")
		default:
			add("pids", Off, "no pids controller is delegated to us, and the kernel has no pid_max for each namespace (Linux 6.14)")
		}
	}
}

// AptConfig is where init puts a configuration for apt when root is emulated.
const AptConfig = "/run/coppice-apt.conf"

// environment is complete: nothing of the daemon's own gets in.
func environment(c Config, u User) []string {
	search := "/usr/local/bin:/usr/bin:/bin"
	if u.UID == 0 {
		search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	env := []string{"PATH=" + search, "HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name, "SHELL=" + u.Shell, "LANG=C.UTF-8"}
	if c.Name != "" {
		env = append(env, "COPPICE_SANDBOX="+c.Name)
	}
	return MergeEnv(env, c.Env)
}

// MergeEnv lays KEY=VALUE words over others; a word without "=" is left out. The
// later word wins.
func MergeEnv(env []string, over ...[]string) []string {
	env = slices.Clone(env)
	for _, words := range over {
		for _, w := range words {
			key, _, ok := strings.Cut(w, "=")
			if !ok || key == "" || strings.ContainsRune(w, 0) {
				continue
			}
			if i := slices.IndexFunc(env, func(s string) bool { return strings.HasPrefix(s, key+"=") }); i >= 0 {
				env[i] = w
			} else {
				env = append(env, w)
			}
		}
	}
	return env
}
