//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/box/initlink"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// build mounts the root and starts init.
func (k *keeper) build(ctx context.Context) (err error) {
	c := k.config
	if !c.Confined() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fault.Wrap(err, "become the parent of orphans")
		}
		var facts plan.Facts
		facts.Passwd, _ = os.ReadFile("/etc/passwd")
		facts.Group, _ = os.ReadFile("/etc/group")
		return k.attempt(ctx, facts, "")
	}
	// The host's unmounts reach us, nothing of ours reaches the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fault.Wrap(err, "take the mounts over")
	}
	root := filepath.Join(c.RunDir, protocol.RootName)
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fault.Wrap(err, "make the mount point of the root")
	}
	facts, err := hostFacts()
	if err != nil {
		return err
	}
	if c.Gated() {
		facts.Resolv = link.Resolvers(c.Asks)
	}
	if k.group, err = cgroup.New(c); err != nil {
		return err
	}
	if k.group != nil {
		facts.Cgroup = k.group.Facts
	}
	if k.shares, err = cgroup.NewShares(c, facts.Cgroup); err != nil {
		return err
	}
	if facts.Cgroup = k.shares.Facts(facts.Cgroup); c.Limits.MilliCPUs > 0 && !facts.Cgroup.CPU {
		return plan.CPULack()
	}
	if c.Caller.Root && !c.NoIDMap {
		facts.Shift = plan.ShiftFor(c.ID)
	}
	return k.attempt(ctx, facts, root)
}

// attempt starts init, mounts the root at root (not in tier workspace) and gives
// both to each other. When it fails, init is gone and nothing is mounted.
func (k *keeper) attempt(ctx context.Context, facts plan.Facts, root string) (err error) {
	c := k.config
	late := func() {}
	var found []plan.Finding
	defer func() {
		if err == nil {
			return
		}
		late() // before init is reaped, and its number is free
		if k.gate != nil {
			k.gate.Close()
			k.gate = nil
		}
		for i, f := range k.wire {
			f.Close() // nil is ErrInvalid
			k.wire[i] = nil
		}
		k.apart.close()
		k.apart = nil
		k.forgetInit()
		k.decoys.close()
		k.decoys = nil
		if k.hold != nil {
			k.hold.Close()
			k.hold = nil
		}
		if k.proc != nil {
			k.proc.Close()
			k.proc = nil
		}
		if root != "" {
			_ = unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}()
	// Gate and init come up while the root is mounted, but not init when its ids depend
	// on what is found there.
	early := root == "" || plan.MapsKnown(c)
	if c.Gated() {
		if k.gate, err = control.Start(k.helpers.gate, c.ID, c.Journal, c.JournalKey, os.Stderr); err != nil {
			return err
		}
	}
	if early {
		if found, err = k.startShifted(ctx, &facts); err != nil {
			return err
		}
		late = k.killWhenDone(ctx)
	}
	var fds []int
	var files rootspec.Files // of the root, as init mounts it
	var mounts rootspec.Descriptors
	defer mounts.Close()
	own := c.Tier == plan.TierGvisor // it has a kernel of its own
	if root != "" {
		opts := rootspec.Options{Keep: &mounts}
		if facts.Shift != 0 {
			ns, err := os.Open("/proc/" + strconv.Itoa(k.init.Pid) + "/ns/user")
			if err != nil {
				return fault.Wrap(err, "open init's user namespace")
			}
			defer ns.Close()
			opts.IDMapFD = int(ns.Fd())
		}
		sources, err := c.Access.Sources()
		if err != nil {
			return err
		}
		defer sources.Close()
		c.Spec.Points = append(sources.Points(c.Access), c.Spec.Bare(c.Access)...)
		if err := mountRoot(c, root, opts); err != nil {
			return err
		}
		// overlayfs flushes the whole file system below it when its last mount
		// goes (ovl_sync_fs, fs/overlayfs/super.c). With a mount of our own that
		// happens in our exit, and whoever stops the box need not wait for it.
		// What is read-only inside is not here: history is the owner's.
		hold, err := unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fault.Wrap(err, "hold the root")
		}
		k.hold = os.NewFile(uintptr(hold), root)
		if facts.Shift != 0 {
			opts.Zero = int(facts.Shift)
		}
		if err := rootspec.Restrict(root, c.Access, sources, opts); err != nil {
			return err
		}
		if err := k.watchDecoys(sources.Decoys()); err != nil {
			return err
		}
		tree, err := unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fault.Wrap(err, "take the root along")
		}
		defer unix.Close(tree)
		fds = append(fds, tree)
		proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fault.Wrap(err, "open /proc")
		}
		defer unix.Close(proc)
		decoys, err := sources.DecoyDevice()
		if err != nil {
			return err
		}
		files = rootspec.Files{Root: tree, Proc: proc, Regions: c.Access.Regions(), Decoys: decoys}
		if facts.Passwd, err = readFile(ctx, files, "/etc/passwd"); err != nil {
			return err
		}
		if facts.Group, err = readFile(ctx, files, "/etc/group"); err != nil {
			return err
		}
		k.owners = protocol.Owners{}
		if facts.Shift != 0 {
			k.owners = protocol.Owners{Shift: facts.Shift, Size: plan.ShiftSize}
		}
	}
	if !early {
		if found, err = k.startShifted(ctx, &facts); err != nil {
			return err
		}
		late = k.killWhenDone(ctx)
	}
	if own {
		program, err := k.showInner()
		if err != nil {
			return err
		}
		defer unix.Close(program)
		fds = slices.Insert(fds, 0, program)
	}
	g, enforced, err := plan.Decide(c, facts)
	if err != nil {
		return err
	}
	if !own {
		g.Decoys = files.Decoys
	}
	if k.user, err = insideUser(c, g.User, facts); err != nil {
		return err
	}
	if err := k.rememberInit("/proc/" + strconv.Itoa(k.init.Pid)); err != nil {
		return err
	}
	if c.Gated() {
		packets, err := k.openLink()
		if err != nil {
			return err
		}
		if c.Image != "" { // nothing passes before release
			k.apart = &quarantine{guest: g, packets: packets}
			if k.apart.java, err = findJava(ctx, files); err != nil {
				return err
			}
		} else {
			ca, err := k.beginGate(packets)
			packets.Close()
			if err != nil {
				return err
			}
			if err := trust(&g, &enforced, ca, func() (javaStores, error) { return findJava(ctx, files) }); err != nil {
				return err
			}
		}
	}
	shared, err := openShared(c.Shared, facts, k.init)
	if err != nil {
		return err
	}
	defer shared.Close()
	fds = append(fds, shared...)
	if own {
		more, err := k.forConductor(&g)
		if err != nil {
			return err
		}
		defer more.Close()
		fds = append(fds, more...)
	} else if g.Self {
		fd, err := openSelf(c.RunDir)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if g.Tell {
		fd, err := k.watchRefused()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if err := k.link.Send(initlink.MsgSetup, g, fds...); err != nil {
		return fault.Wrap(err, "tell init its plan")
	}
	// While init works: letting go of mounts is slow (it waits for RCU).
	k.exe.Close()
	k.exe = nil
	if root != "" {
		// Init's copy alone lives on, and ends with it.
		if err := unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fault.Wrap(err, "let go of the root")
		}
		mounts.Close()
	}
	var r initlink.Ready
	m, err := k.link.Recv()
	for ; err == nil && m.Kind == initlink.MsgAdopt; m, err = k.link.Recv() {
		if err := k.adopt(m); err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Unavailable, "init ended while it started").WithHint("see its log: cat %s", filepath.Join(c.RunDir, protocol.LogName))
	}
	if err == nil {
		err = m.Decode(&r)
	}
	if err != nil {
		return fault.Wrap(err, "wait for init")
	}
	if r.Err != nil {
		return (*protocol.Failure)(r.Err).Fault()
	}
	late()
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.Tier == plan.TierGvisor {
		k.decoys.settle()
	}
	k.enforced = enforced
	for _, w := range r.Weak {
		k.enforced.Items = slices.DeleteFunc(k.enforced.Items, func(i plan.Item) bool { return i.Name == w.Name })
	}
	k.enforced.Items = append(k.enforced.Items, r.Weak...)
	k.enforced = k.enforced.Bounded()
	k.enforced.Found = append(found, k.enforced.Findings(facts)...)
	return nil
}

// weaker refuses a strong box some of whose walls and limits are less than they should
// be. Nothing of the sandbox has run in it yet.
func weaker(c plan.Config, e plan.Enforced) error {
	lacks := e.Lacks()
	if !c.Strong || len(lacks) == 0 {
		return nil
	}
	var told []string
	for _, i := range lacks {
		told = append(told, i.Name+" is "+i.State+" ("+i.Detail+")")
	}
	return fault.New(fault.Unsupported, "the policy is strong, and this host enforces less than all of it: %s", strings.Join(told, "; ")).
		WithHint("see what mends it: coppice probe; or make a sandbox without what is weak, or without strong")
}

// without refuses a box that lacks a protection with which the sandbox has run before, or
// which the host has given to the home before. Nothing of the sandbox has run in it yet.
func without(c plan.Config, e plan.Enforced) error {
	lost := e.Lost(c.Require)
	if len(lost) == 0 {
		return gaveBefore(plan.Missed(c.Known, e.Found))
	}
	return fault.New(fault.Unsupported, "this host lacks protections with which the sandbox has run before: %s", strings.Join(lost, ", ")).
		WithHint("give the daemon %s again; or copy its files to a sandbox in another home: coppice cp, COPPICE_HOME=DIR coppice create", strings.Join(plan.Needs(lost), ", and "))
}

// openSelf takes along the directory that is shown to the inside. Init could not
// come to it: it is nobody there.
func openSelf(runDir string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, filepath.Join(runDir, plan.SelfDir), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fault.Wrap(err, "take the sandbox's own socket along")
	}
	const bare = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: bare}); err != nil {
		unix.Close(fd)
		return -1, fault.Wrap(err, "restrict the sandbox's own socket")
	}
	return fd, nil
}

// mountRoot mounts the root. Where its overlay lacks the mount points that init
// needs, a directory that has them becomes its bottom layer, so that nothing
// about them gets into the history.
func mountRoot(c plan.Config, root string, opts rootspec.Options) error {
	if err := rootspec.Mount(c.Spec, root, opts); err != nil {
		return err
	}
	var missing []string
	for _, p := range rootspec.Reserved {
		if p == "/tmp" && c.KeepTmp {
			continue
		}
		if _, err := os.Lstat(root + p); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 || len(c.Spec.Overlays) == 0 || c.Spec.Overlays[0].Target != "/" || c.Spec.Overlays[0].Wrap {
		return nil
	}
	if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
		return fault.Wrap(err, "mount the root again")
	}
	points := filepath.Join(c.RunDir, "points")
	for _, p := range missing {
		if err := os.MkdirAll(points+p, 0o755); err != nil {
			return fault.Wrap(err, "make mount point %s", p)
		}
	}
	if err := os.Chmod(points, 0o755); err != nil {
		return fault.Wrap(err, "make the mount points")
	}
	c.Spec.Overlays = append([]rootspec.Overlay(nil), c.Spec.Overlays...)
	o := &c.Spec.Overlays[0]
	o.Lowers = append(append([]string(nil), o.Lowers...), points)
	return rootspec.Mount(c.Spec, root, opts)
}

// hostFacts finds out what plan.Decide wants to know of the host.
func hostFacts() (f plan.Facts, err error) {
	if f.Resolv, err = os.ReadFile("/etc/resolv.conf"); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return f, fault.Wrap(err, "read the host's resolvers")
	}
	version, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
	switch {
	case e == 0:
		f.Landlock = int(version)
	case !noLandlock(e):
		return f, fault.Wrap(e, "ask for the version of Landlock")
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return f, fault.Wrap(err, "ask for the limit of open files")
	}
	f.OpenFiles = files.Max
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return f, fault.Wrap(err, "ask for the version of the kernel")
	}
	f.Kernel = unix.ByteSliceToString(u.Release[:])
	var major, minor int
	_, _ = fmt.Sscanf(f.Kernel, "%d.%d", &major, &minor)
	f.PidMax = major > 6 || major == 6 && minor >= 14
	return f, nil
}

// mostIDs is the size up to which the sandbox's /etc/passwd and /etc/group are read.
const mostIDs = 4 << 20

// readFile reads a regular file of the sandbox; nil if there is none that may be read.
func readFile(ctx context.Context, files rootspec.Files, name string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := files.Find(name, mostIDs)
	if f == nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadAll()
}

// conductorEnv is that of a conductor, and of what it starts: nothing is collected while
// they start. Later each sets its own.
var conductorEnv = []string{"GOMAXPROCS=2", "GOGC=1000", "GOMEMLIMIT=64MiB"}

// startInit starts init in its namespaces and control groups, where it waits for its plan.
func (k *keeper) startInit(facts plan.Facts) error {
	c := k.config
	uids, gids, err := plan.Maps(c, facts)
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "make the stream to init")
	}
	k.link = initlink.NewLink(pair[0])
	defer unix.Close(pair[1])
	if k.exe, err = readOnly(k.helpers.init(c.Tier)); err != nil {
		return err
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return fault.Wrap(err, "start init")
	}
	defer null.Close()
	input, err := program.Guard(k.exe, null)
	if err != nil {
		return fault.Wrap(err, "start init")
	}
	defer input.Close()
	sys := &syscall.SysProcAttr{Setsid: true}
	argv0, env := initlink.Argv0, protocol.Env
	if c.Confined() {
		sys.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
		if c.Net != plan.NetHost {
			sys.Cloneflags |= syscall.CLONE_NEWNET
		}
		if c.Tier == plan.TierGvisor {
			argv0, env = initlink.ConductorArgv0, conductorEnv
		}
	} else if !c.Caller.Root {
		sys.Cloneflags = syscall.CLONE_NEWUSER
	}
	if sys.Cloneflags&syscall.CLONE_NEWUSER != 0 {
		sys.UidMappings, sys.GidMappings = idMap(uids), idMap(gids)
		sys.GidMappingsEnableSetgroups = c.Caller.Root
		if facts.Shift != 0 {
			// Our own ids are not mapped.
			sys.Credential = &syscall.Credential{NoSetGroups: true}
		}
		if c.Confined() && uids[0].Inside != 0 {
			// execve takes the capabilities of who is not 0, but for these.
			sys.AmbientCaps = allCaps()
		}
	}
	// Not os.StartProcess: its first use in a process costs a fork more.
	fork := func() (int, error) {
		return syscall.ForkExec(program.Path(k.exe), []string{argv0, c.ID}, &syscall.ProcAttr{
			Dir: "/", Env: env, Files: []uintptr{input.Fd(), 1, 2, uintptr(pair[1])}, Sys: sys,
		})
	}
	start := fork
	if facts.Shift != 0 {
		start = func() (int, error) { return forkAs(facts.Shift, fork) }
	}
	pid, within, err := startWithin(k.group, sys, start)
	if err != nil {
		return fault.New(fault.Unsupported, "the sandbox's namespaces cannot be made").Because(err).
			WithHint("see what this host allows: coppice probe")
	}
	k.init = &child{Pid: pid}
	if !within {
		if err := k.group.Take(pid); err != nil {
			return err
		}
	}
	return k.shares.Take(pid)
}

// startWithin starts a process in group g, or reports that the caller has to move it there,
// because clone3(2) is missing or a filter refuses it, as in some containers. The process
// waits and starts nothing until then.
func startWithin(g *cgroup.Group, sys *syscall.SysProcAttr, start func() (int, error)) (pid int, within bool, err error) {
	if g == nil {
		pid, err = start()
		return pid, true, err
	}
	sys.UseCgroupFD, sys.CgroupFD = true, g.FD
	if pid, err = start(); err == nil || !noCloneIntoCgroup(err) {
		return pid, true, err
	}
	sys.UseCgroupFD = false
	pid, err = start()
	return pid, false, err
}

// child is a process of ours.
type child struct {
	Pid  int
	once sync.Once
}

// Kill may be called until Wait has returned.
func (c *child) Kill() error { return unix.Kill(c.Pid, unix.SIGKILL) }

// Wait waits for its end and reaps it; it may be called again.
func (c *child) Wait() {
	c.once.Do(func() {
		for {
			if _, err := unix.Wait4(c.Pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
}

func idMap(m []plan.IDMap) []syscall.SysProcIDMap {
	var r []syscall.SysProcIDMap
	for _, l := range m {
		r = append(r, syscall.SysProcIDMap{ContainerID: int(l.Inside), HostID: int(l.Outside), Size: int(l.Size)})
	}
	return r
}

func allCaps() []uintptr {
	last := 40
	if b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			last = n
		}
	}
	caps := make([]uintptr, 0, last+1)
	for c := 0; c <= last; c++ {
		caps = append(caps, uintptr(c))
	}
	return caps
}
