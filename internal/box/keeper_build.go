//go:build linux && (amd64 || arm64)

package box

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// build mounts the root and starts init.
func (k *keeper) build() error {
	c := k.config
	root := c.Spec.Bind
	var facts plan.Facts
	if c.Tier == plan.TierProcess {
		// The host's unmounts reach us, nothing of ours reaches the host.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fault.Wrap(err, "take the mounts over")
		}
		root = filepath.Join(c.RunDir, rootName)
		if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fault.Wrap(err, "make the mount point of the root")
		}
		if err := mountRoot(c, root); err != nil {
			return err
		}
		var err error
		if facts, err = lookAround(root); err != nil {
			return err
		}
		if k.group = newCgroup(c); k.group != nil {
			facts.Cgroup = k.group.facts
		}
	} else {
		facts.Passwd, _ = os.ReadFile("/etc/passwd")
		facts.Group, _ = os.ReadFile("/etc/group")
	}
	g, enforced, err := plan.Decide(c, facts, root)
	if err != nil {
		return err
	}
	k.enforced = enforced
	_, uids, gids, err := plan.Identity(c, facts)
	if err != nil {
		return err
	}
	if err := k.startInit(g, uids, gids); err != nil {
		return err
	}
	var r guest.Ready
	m, err := k.link.Recv()
	if err == nil {
		err = m.Decode(&r)
	}
	switch {
	case errors.Is(err, io.EOF):
		err = fault.New(fault.Internal, "init ended while it started").WithHint("see its log: %s", filepath.Join(c.RunDir, logName))
	case err == nil && r.Err != nil:
		err = (*failure)(r.Err).fault()
	}
	if err != nil {
		_ = k.init.Kill()
		_, _ = k.init.Wait()
		k.init = nil
		k.group.remove()
		return err
	}
	k.enforced.Items = append(k.enforced.Items, r.Weak...)
	return nil
}

// mountRoot mounts the root. Where its overlay lacks the mount points that init
// needs, a directory that has them becomes its bottom layer, so that nothing
// about them gets into the history.
func mountRoot(c plan.Config, root string) error {
	if err := rootspec.Mount(c.Spec, root, rootspec.Options{}); err != nil {
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
	return rootspec.Mount(c.Spec, root, rootspec.Options{})
}

// lookAround finds out what plan.Decide wants to know.
func lookAround(root string) (plan.Facts, error) {
	var f plan.Facts
	var err error
	if f.Passwd, err = readBeneath(root, "etc/passwd"); err != nil {
		return f, err
	}
	if f.Group, err = readBeneath(root, "etc/group"); err != nil {
		return f, err
	}
	f.Resolv, _ = os.ReadFile("/etc/resolv.conf")
	if v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1); e == 0 {
		f.Landlock = int(v)
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		var major, minor int
		_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
		f.PidMax = major > 6 || major == 6 && minor >= 14
	}
	return f, nil
}

// readBeneath reads a file of the sandbox without leaving root: its links are the
// sandbox's. A missing file is nil.
func readBeneath(root, name string) ([]byte, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(err, "open the root")
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, nil //nolint:nilerr // it has no such file that can be read
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, nil //nolint:nilerr // as above
	}
	b, err := io.ReadAll(io.LimitReader(f, 4<<20))
	return b, fault.Wrap(err, "read the sandbox's /%s", name)
}

// startInit starts init in its namespaces and sends it the plan.
func (k *keeper) startInit(g plan.Guest, uids, gids []plan.IDMap) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "make the stream to init")
	}
	k.link = guest.NewLink(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "init's stream")
	defer theirs.Close()
	exe, err := ownBinary()
	if err != nil {
		return err
	}
	defer exe.Close()
	attr := &syscall.SysProcAttr{Setsid: true}
	if g.Tier == plan.TierProcess {
		attr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
		if k.config.Net != plan.NetHost {
			attr.Cloneflags |= syscall.CLONE_NEWNET
		}
	} else if !k.config.Caller.Root {
		attr.Cloneflags = syscall.CLONE_NEWUSER
	}
	if attr.Cloneflags&syscall.CLONE_NEWUSER != 0 {
		attr.UidMappings, attr.GidMappings = idMap(uids), idMap(gids)
		attr.GidMappingsEnableSetgroups = k.config.Caller.Root
		if g.Tier == plan.TierProcess && uids[0].Inside != 0 {
			// execve takes the capabilities of who is not 0, but for these.
			attr.AmbientCaps = allCaps()
		}
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/fd/" + strconv.Itoa(int(exe.Fd())), Args: []string{guest.Argv0, k.config.ID}, Dir: "/",
		Env: runtimeEnv, Stdout: os.Stdout, Stderr: os.Stderr, ExtraFiles: []*os.File{theirs},
		SysProcAttr: attr,
	}
	if err := cmd.Start(); err != nil {
		return fault.New(fault.Unsupported, "the sandbox's namespaces cannot be made").Because(err).
			WithHint("see what this host allows: coppice probe")
	}
	k.init = cmd.Process
	var fds []int
	if g.Threads {
		fds = []int{k.group.threads}
	}
	if err := k.link.Send(guest.MsgSetup, g, fds...); err != nil {
		return fault.Wrap(err, "tell init its plan")
	}
	return nil
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

// ownBinary opens this binary through a read-only mount that is nowhere attached.
// Init is executed from it: whoever should get hold of /proc/PID/exe of init
// cannot write to the host's file (CVE-2019-5736).
func ownBinary() (*os.File, error) {
	var self, st unix.Stat_t
	name, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, fault.Wrap(err, "find our own binary")
	}
	if err := unix.Stat("/proc/self/exe", &self); err != nil {
		return nil, fault.Wrap(err, "find our own binary")
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		if err = unix.Fstat(fd, &st); err == nil && st.Dev == self.Dev && st.Ino == self.Ino {
			if err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err == nil {
				return os.NewFile(uintptr(fd), name), nil
			}
		}
		unix.Close(fd)
	}
	// It was replaced since we were started, or we may not mount (workspace): a
	// sealed copy in memory.
	return copyBinary()
}

func copyBinary() (*os.File, error) {
	src, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fault.Wrap(err, "open our own binary")
	}
	defer src.Close()
	fd, err := unix.MemfdCreate("coppice", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fault.Wrap(err, "copy our own binary")
	}
	f := os.NewFile(uintptr(fd), "coppice")
	if _, err = io.Copy(f, src); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, fault.Wrap(err, "copy our own binary")
	}
	return f, nil
}
