package plan

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Facts are what the keeper has determined about the host and the sandbox's root.
type Facts struct {
	Passwd   []byte // of the mounted root; nil if it has none
	Group    []byte
	Resolv   []byte // the /etc/resolv.conf of a sandbox with a network: the host's, or the gate's
	Landlock int    // ABI of the host's Landlock; 0 if it has none
	Kernel   string // release of the host's kernel
	// PidMax says whether each pid namespace has its own pid_max (Linux 6.14).
	PidMax bool
	Cgroup CgroupFacts
	// OpenFiles is the hard RLIMIT_NOFILE of the keeper, and so of init, which raises its soft limit to it.
	OpenFiles uint64
	// Shift is the host id of the sandbox's id 0, if real root mounts the root with shifted ids, else 0.
	Shift uint32
}

// CgroupFacts say what the box's own control group (version 2), or the groups of version 1 that replace it, support.
type CgroupFacts struct {
	Freeze bool // it is of version 2, so its freezer works
	Memory bool // memory.max works
	Pids   bool // pids.max works
	CPU    bool // cpu.max works
}

// RootCaps are the capabilities that root's commands keep in the sandbox's user namespace: Docker's default
// set without NET_RAW.
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

// InnerCaps returns the capabilities of PID 1 inside the kernel of a tier gvisor sandbox: RootCaps, and
// SYS_ADMIN to mount and to set the host name.
func InnerCaps() []uint { return append(slices.Clone(RootCaps), 21) } // SYS_ADMIN

// consistent returns an error if c and f contradict themselves.
func consistent(c Config, f Facts) error {
	gated := c.Gated()
	switch {
	case c.Limits.Disk > 0 && c.DiskBy == "":
		return fault.New(fault.Unsupported, "cannot enforce the disk limit").WithHint("drop disk= from --limit")
	case c.Limits.MilliCPUs > 0 && c.Tier != TierWorkspace && !f.Cgroup.CPU:
		return CPULack()
	case c.Limits.Memory > 0 && c.Tier == TierGvisor && !f.Cgroup.Memory:
		return memoryLack(c.Strong)
	case c.Net == NetRules && !gated:
		return fault.New(fault.Unsupported, "cannot apply network rules in tier %s: it has no gate", c.Tier).
			WithHint("use --tier supervised")
	case c.Entered() && f.Landlock == 0:
		return fault.New(fault.Unsupported, "cannot apply network rules in tier workspace: %s, so that commands could "+
			"use the network by other processes of their user", landlockLack(0)).
			WithHint("use --net off, or another host: coppice system probe")
	case gated && c.Net == NetHost:
		return fault.New(fault.Invalid, "cannot use the host's network in tier %s: it requires a gate", c.Tier).
			WithHint("use --tier process, or rules")
	case !slices.Contains([]string{"", NetOff, NetHost, NetRules}, c.Net):
		return fault.New(fault.Invalid, "unknown network %q", c.Net).WithHint("use off, host or rules")
	case c.Strong && !c.Confined():
		return fault.New(fault.Unsupported, "tier workspace is never strong, as the policy requires").
			WithHint("use --tier process, or remove strong")
	case !c.Confined() && !c.Access.IsZero():
		return fault.New(fault.Unsupported,
			"cannot apply files.readonly, files.writable or files.mounts in tier workspace: it has no mounts").
			WithHint("use --tier process")
	case len(c.Shared) > rootspec.MaxShared, !c.Confined() && len(c.Shared) > 0:
		return fault.New(fault.Invalid, "cannot mount %d directories of the host in tier %s", len(c.Shared), c.Tier)
	case c.Tier == TierContainer && !path.IsAbs(c.Runtime):
		return fault.New(fault.Internal, "missing OCI runtime for tier container").
			WithHint("this is a bug: please report it")
	case gated && (len(c.Phases) == 0 || c.Journal == ""):
		return fault.New(fault.Internal, "missing policy or journal for tier %s", c.Tier).
			WithHint("this is a bug: please report it")
	}
	return nil
}

// Decide returns the plan for c on a host with facts f: what init carries out, and what is enforced. The error is a
// fault: Invalid or Unsupported settings.
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
	home := u.Home
	if c.Locked() {
		u.Home = c.lockHome()
	}
	d := &deciding{
		config: c, facts: f, single: SingleID(uids), own: c.Tier == TierGvisor,
		guest: Guest{
			Version: Version, Tier: c.Tier, Dirs: slices.Clone(c.Dirs), User: u, Env: environment(c, u),
		},
		enforced: Enforced{Tier: c.Tier, User: fmt.Sprintf("%s (%d:%d)", u.Name, u.UID, u.GID)},
	}
	if c.Tier == TierWorkspace {
		err := d.workspace(home)
		return d.guest, d.enforced, err
	}
	d.basics()
	// The order is that in which users see the items.
	d.container()
	d.identity()
	d.network()
	d.landlock()
	d.freeze()
	d.programs()
	d.denials()
	d.hide()
	d.access()
	d.limits()
	return d.guest, d.enforced, nil
}

// deciding is a plan while Decide makes it.
type deciding struct {
	config Config
	facts  Facts
	single bool // only one uid is mapped
	own    bool // the sandbox has its own kernel, to which the host's filters do not apply

	guest    Guest
	enforced Enforced
}

// add appends a protection to what is enforced.
func (d *deciding) add(name, state, detail string) {
	d.enforced.Items = append(d.enforced.Items, Item{name, state, detail})
}

// workspace fills in the plan of tier workspace, for a user whose home directory on the host is home.
func (d *deciding) workspace(home string) error {
	d.guest.Dirs = append(d.guest.Dirs, d.config.Spec.Bind)
	if d.config.Limits != (Limits{}) {
		return fault.New(fault.Unsupported, "tier workspace has no limits").
			WithHint("use --tier process, or drop --limit")
	}
	if d.config.Locked() {
		if err := d.lock(home); err != nil {
			return err
		}
	} else {
		d.add(Confinement, Off, "commands run on the host, with the rights of its user; "+
			"only the working directory has a history")
		d.add("net", Off, "the host's network")
	}
	d.add("freeze", Weak, "SIGSTOP to every descendant")
	if d.config.Trace {
		d.add("programs", Off, "snapshots are labelled by the paths that changed; "+
			"the programs that were started are seen in tier process alone")
	}
	return nil
}

// basics sets the fields of the plan that have no item.
func (d *deciding) basics() {
	c, g := d.config, &d.guest
	if c.Hostname != "" {
		g.Hostname = c.Hostname
	} else {
		g.Hostname = c.Name
	}
	g.Promote = len(c.Spec.Overlays) > 0 && !d.own
	g.Trace = c.Trace || c.Tier == TierSupervised || c.Tier == TierContainer
	g.Tell = c.Journal != ""
	g.Tmp = !c.KeepTmp
	g.Regions = c.Access.Regions()
	g.Memory = c.Limits.Memory
	g.Self, g.Shared, g.Client = c.Self, len(c.Shared), c.Client
	if !d.own {
		d.enforced.Quiet = append(d.enforced.Quiet, ownProc)
		if g.Tell {
			d.enforced.Quiet = append(d.enforced.Quiet, toldCalls)
		}
	}
}

// container adds the OCI runtime that makes the namespaces. The kernel is the host's, as in tier supervised.
func (d *deciding) container() {
	if d.config.Tier != TierContainer {
		return
	}
	d.guest.Runtime = path.Base(d.config.Runtime)
	d.add("container", On, d.config.Runtime+" makes the namespaces, with the host's kernel; "+
		"the other protections are Coppice's own")
	c := d.config
	if !c.Caller.Root && c.Caller.UID != 0 && (c.User == UserMe || c.User == "" && c.HostBase) { // see containerRoot
		d.add("own user", Weak, "commands are root (0) inside, not your user: OCI runtimes need that id")
	}
}

// identity adds the sandbox's ids on the host, and what root may do inside.
func (d *deciding) identity() {
	g, shifted := &d.guest, d.facts.Shift != 0
	g.Emulate = d.single && g.User.UID == 0
	if g.Emulate {
		g.Env = MergeEnv([]string{"APT_CONFIG=" + AptConfig}, g.Env)
	}
	if g.User.UID == 0 {
		g.Caps = RootCaps
	}
	switch {
	case d.single:
		d.add(ShiftedIDs, On, fmt.Sprintf("a user namespace in which %d is the one id", g.User.UID))
	case shifted:
		d.add(ShiftedIDs, On, "a user namespace with ids that own nothing on the host")
	default:
		d.add(ShiftedIDs, Weak,
			"a user namespace without capabilities on the host, but its ids are the host's own")
	}
	switch {
	case g.Emulate && d.own:
		d.add("root emulation", On, "chown, mknod and the like succeed, and are not done")
	case g.Emulate:
		d.add("root emulation", On, "chown, mknod and the like are remembered, not done")
	}
	switch {
	case d.own: // the host's kernel counts nothing for it
	case d.single:
		d.add(Counts, On, "inotify and namespaces: an eighth of the host's limits for one user")
	case shifted:
		d.add(Counts, On, "inotify and namespaces: counted for a user of this sandbox alone")
	default:
		d.add(Counts, Weak,
			"inotify instances are root's: each user of the sandbox can take an eighth of them")
	}
	d.add("capabilities", On,
		strconv.Itoa(len(g.Caps))+" kept, within the sandbox's namespaces; no new privileges")
}

// network adds what the sandbox can connect to.
func (d *deciding) network() {
	c, f, g := d.config, d.facts, &d.guest
	switch {
	case c.Net == NetHost:
		d.add("net", Off, "the host's network")
		// An empty file makes resolvers ask 127.0.0.1, which is the host's.
		g.Resolv = append([]byte{}, f.Resolv...)
	case c.Gated():
		d.add("net", On, "the gate: what the policy allows, by name; nothing else exists")
		d.gate()
		g.Resolv = f.Resolv
		g.Loopback, g.Netlink = true, true
	default:
		d.add("net", On, "no network but loopback")
		g.Loopback, g.Netlink = true, true
	}
}

// gate adds the process that is the network of the sandbox.
func (d *deciding) gate() {
	began := ""
	if d.config.GateWaits() {
		began = ", which the first packet starts"
	}
	if d.facts.Landlock > 0 {
		d.add("gate", On, "a process without capabilities that can write its journal and nothing else"+began)
	} else {
		d.add("gate", Weak, "a process without capabilities"+began+"; "+
			"without Landlock (Linux 5.13) it could read and write what its user can")
	}
	if d.config.Asks {
		d.add("ask", On, "what no rule names is a pending request, and is denied if no user approves it in time")
	}
}

// landlock adds the Landlock scopes of the host's kernel, or their equivalent in the sandbox's own kernel.
func (d *deciding) landlock() {
	switch {
	case d.own:
		d.guest.Fixed = d.config.Access.Kept()
		d.kernel()
	case d.facts.Landlock >= 6:
		d.guest.Landlock = true
		d.add("landlock", On, "scopes: signals and abstract sockets")
	case d.config.Net == NetHost:
		d.add("landlock", Weak, "needs Linux 6.12; abstract sockets of the host can be reached")
	default:
		d.add("landlock", Off, "needs Linux 6.12; process ids of the host are hidden all the same")
	}
}

// kernel adds the effects of the sandbox's own kernel.
func (d *deciding) kernel() {
	d.add("kernel", On, "gVisor's, in user space: no system call of the sandbox reaches the host's kernel")
	d.add("renames", Weak, "directories of lower layers are not moved (EXDEV: programs copy them)")
	d.add("attributes", Weak,
		"changes of modes, owners and times that are not permitted have no effect, but are reported as successful")
	d.add("pipes", Weak, "named pipes and sockets that are made are in memory, "+
		"and no snapshot of files has them; those on the disk cannot be opened")
}

// freeze adds the mechanism that freezes all processes.
func (d *deciding) freeze() {
	switch {
	case d.own:
		d.guest.Outside = true
		d.add("freeze", On, "the sandbox's own kernel stops")
	case d.facts.Cgroup.Freeze:
		d.guest.Outside = true
		d.add("freeze", On, "control group")
	default:
		d.add("freeze", Weak,
			"SIGSTOP and SIGCONT, which programs can notice; no control group could be made")
	}
}

// programs adds whether started programs are recorded.
func (d *deciding) programs() {
	trace, files := d.guest.Trace, d.facts.OpenFiles
	if trace && !d.own && files < limit.InitFiles {
		d.add(Descriptors, Weak, fmt.Sprintf("RLIMIT_NOFILE is %d: with more than about %d processes at a time, "+
			"init cannot verify who started a program; "+
			"start the daemon with at least %d, by ulimit -Hn %d or LimitNOFILE=%d",
			files, files/2, limit.InitFiles, limit.InitFiles, limit.InitFiles))
	}
	switch {
	case trace && d.own:
		d.add("programs", On, "each that is started is recorded, as the sandbox's own kernel tells it")
	case trace:
		d.add("programs", On, "each that is started is recorded, before its first instruction")
	case d.own:
		d.add("programs", Off,
			"programs are not recorded; snapshots are labelled by the paths that changed")
	}
}

// denials adds whether refused accesses to files are recorded. Without a journal nothing is.
func (d *deciding) denials() {
	g := &d.guest
	switch {
	case !g.Tell:
	case d.config.Denials != DenialsAuto:
		d.add(FileDenials, Off, "refused accesses to files are not recorded")
	case d.own:
		g.Denials, g.Hidden = true, d.config.HiddenAt
		d.add(FileDenials, On, "refused accesses to files outside the sandbox's own are recorded, "+
			"as the sandbox's own kernel reports them")
	default:
		d.add(FileDenials, Off, "refused accesses to files are not recorded: the host's kernel reports them to no process; "+
			"tier gvisor records them")
	}
}

// hide adds which of the host's files are hidden from the sandbox.
func (d *deciding) hide() {
	switch {
	case d.config.Hidden > 0:
		d.add("hide", On, strconv.Itoa(d.config.Hidden)+
			" places that the policy hides do not exist inside, nor does what is created at them outside")
	case d.config.HostBase:
		d.add("hide", Off, "the policy hides nothing: what you may read on the host can be read inside")
	}
}

// access adds what the sandbox can change, and which other files of the host it sees.
func (d *deciding) access() {
	c, a := d.config, d.config.Access
	if n := len(a.ReadOnly); n > 0 {
		d.add("readonly", On,
			strconv.Itoa(n)+" places that the policy has read-only cannot be changed, renamed or removed")
	}
	if a.Only {
		d.add("writable", On, strconv.Itoa(len(a.Writable))+
			" places alone can be changed, besides /tmp, /run and /dev, which end with the processes")
	}
	if n := len(a.Decoys); n > 0 {
		then := "is recorded"
		if c.OnTouch == TouchStop {
			then = "is recorded, and stops all processes"
		}
		if d.own {
			then += "; the sandbox's own kernel may open it once for all who do later"
		}
		d.add("decoys", On, fmt.Sprintf("%d files with tokens that open nothing: that one is opened %s", n, then))
	}
	for i, dir := range c.Shared {
		d.add("mount", On, fmt.Sprintf("%s of the host at %s, read-only and without history",
			dir, rootspec.SharedPath(i)))
	}
	for _, m := range a.Mounts {
		at := fmt.Sprintf("%s of the host at %s", m.From, m.To)
		const changes = ": what is written there is changed on the host, without history"
		switch {
		case !m.Write:
			d.add("mount", On, at+", read-only and without history")
		case c.Caller.Root && d.facts.Shift != 0:
			d.add("mount", On, at+changes+", and by its root")
		default:
			d.add("mount", On, at+changes)
		}
	}
}

// AptConfig is the path at which init writes a configuration for apt if root is emulated.
const AptConfig = "/run/coppice-apt.conf"
