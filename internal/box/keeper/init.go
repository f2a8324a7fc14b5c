//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
)

// startInit starts init, which waits for its plan, and makes the end of ctx kill it.
func (b *building) startInit(ctx context.Context) (err error) {
	b.undos[undoInit] = b.k.forgetInit
	if b.found, err = b.k.startShifted(ctx, &b.facts); err != nil {
		return err
	}
	b.spare = b.k.killWhenDone(ctx)
	b.undos[undoDeadline] = b.spare
	return nil
}

// conductorEnv is the environment of the conductor and of the processes that it starts: without garbage collection
// during their start. Later each sets its own limits.
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
		return fault.Wrap(err, "create the stream to init")
	}
	k.link = initlink.NewLink(pair[0])
	defer unix.Close(pair[1])
	if k.exe, err = readOnly(string(program.Init), k.helpers.init(c.Tier)); err != nil {
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
		sys.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
		if c.Net != plan.NetHost {
			sys.Cloneflags |= syscall.CLONE_NEWNET
		}
		switch c.Tier {
		case plan.TierGvisor:
			argv0, env = initlink.ConductorArgv0, conductorEnv
		case plan.TierContainer:
			argv0 = initlink.ContainerArgv0
		}
	} else if !c.Caller.Root && !c.Caller.Unmapped {
		// Commands have the user's own ids, and none of the keeper's capabilities over the user's files.
		sys.Cloneflags = syscall.CLONE_NEWUSER
	}
	if sys.Cloneflags&syscall.CLONE_NEWUSER != 0 {
		sys.UidMappings, sys.GidMappings = idMap(uids), idMap(gids)
		sys.GidMappingsEnableSetgroups = c.Caller.Root
		if facts.Shift != 0 {
			// The keeper's own ids are not mapped.
			sys.Credential = &syscall.Credential{NoSetGroups: true}
		}
		if c.Confined() && uids[0].Inside != 0 {
			// execve(2) drops the capabilities of a user other than 0, except for these.
			sys.AmbientCaps = allCaps()
		}
	}
	// Not os.StartProcess, whose first use in a process costs an additional fork.
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
		return fault.New(fault.Unsupported, "cannot create the sandbox's namespaces").Because(err).
			WithHint("see what this host allows: coppice system probe")
	}
	k.init = &child{Pid: pid}
	if !within {
		if err := k.group.Take(pid); err != nil {
			return err
		}
	}
	return k.shares.Take(pid)
}

// startWithin starts a process in group g. If clone3(2) is missing or a filter refuses it, as in some containers, it
// reports that the caller has to move the process into g. The process waits and starts nothing until then.
func startWithin(
	g *cgroup.Group, sys *syscall.SysProcAttr, start func() (int, error),
) (pid int, within bool, err error) {
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

// child is a process that the keeper started.
type child struct {
	Pid  int
	once sync.Once
}

// Kill sends SIGKILL. It may be called until Wait has returned.
func (c *child) Kill() error { return unix.Kill(c.Pid, unix.SIGKILL) }

// Wait waits until the process exits and reaps it. It may be called again.
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

// forgetInit undoes startInit.
func (k *keeper) forgetInit() {
	if k.init != nil {
		_ = k.init.Kill()
		k.init.Wait()
		k.init = nil
	}
	if k.link != nil {
		k.link.Close()
		if len(k.execs) == 0 { // otherwise adopted commands may still send, in vain
			k.link = nil
		}
	}
	if k.exe != nil {
		k.exe.Close()
		k.exe = nil
	}
}

// killWhenDone kills init when ctx ends, so that nothing waits for init any longer. The caller calls stop before it
// reaps init. stop may be called twice.
func (k *keeper) killWhenDone(ctx context.Context) (stop func()) {
	init, killed := k.init, make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(killed)
		_ = init.Kill()
	})
	stopped := false
	return func() {
		if !stopped && !unhook() {
			<-killed
		}
		stopped = true
	}
}
