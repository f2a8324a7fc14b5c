//go:build linux && (amd64 || arm64)

package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Main runs the conductor of a container and returns the exit code of the process. When the process exits, the kernel
// kills everything that runs in the sandbox.
func Main() int {
	_ = os.WriteFile("/proc/self/comm", []byte(initlink.ContainerArgv0), 0) // for ps
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-container:", err)
		return 1
	}
	return 0
}

func run() error {
	if err := unix.CloseRange(initlink.FD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	link := initlink.NewLink(initlink.FD)
	m, err := link.Recv()
	if err != nil {
		return fmt.Errorf("wait for the plan: %w", err)
	}
	if err := start(m); err != nil {
		return errors.Join(err, link.Send(initlink.MsgReady, initlink.Ready{Err: initlink.WireError(err)}))
	}
	link.Close() // from here on only init has the end
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fault.Wrap(err, "make the conductor non-dumpable")
	}
	return reap()
}

// start makes the sandbox's root and starts its init in a container. The init is connected to the keeper by the link of
// this process.
func start(m initlink.Message) error {
	var g plan.Guest
	if err := m.Decode(&g); err != nil {
		return err
	}
	if g.Version != plan.Version {
		return fault.New(fault.Version, "unsupported plan version %[2]d: must be %[1]d", plan.Version, g.Version).
			WithHint("coppice was replaced while the daemon ran; restart the daemon: coppice serve")
	}
	s, err := take(g, m.FDs)
	if err != nil {
		return err
	}
	weak, root, err := makeWorld(g, s.trees, s.init, s.runtime)
	if err != nil {
		return err
	}
	given := os.NewFile(uintptr(root), "root")
	defer given.Close()                // returns ErrClosed where instruct has closed it
	devices, err := os.ReadDir("/dev") // the sandbox's: see enterWorld
	if err != nil {
		return fault.Wrap(err, "find the message queues of the sandbox")
	}
	queues := slices.ContainsFunc(devices, func(d os.DirEntry) bool { return d.Name() == "mqueue" })
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "create the setup link")
	}
	setup, theirs := initlink.NewLink(pair[0]), os.NewFile(uintptr(pair[1]), "setup")
	defer setup.Close()
	defer theirs.Close() // returns ErrClosed where the start has closed it
	out, err := outside(weak)
	if err != nil {
		return err
	}
	link, err := unix.FcntlInt(initlink.FD, unix.F_DUPFD_CLOEXEC, initlink.FD)
	if err != nil {
		return fault.Wrap(err, "pass the link to init")
	}
	keeper := os.NewFile(uintptr(link), "link")
	defer keeper.Close()
	c := container{name: g.Runtime, program: path.Join(worldRuntime, g.Runtime), state: worldState,
		patience: runtimePatience, log: os.Stderr}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go heed(ctx, cancel)
	return c.start(ctx, specOf(g, queues), keeper, theirs, func() answer {
		if err := alone(); err != nil {
			return answer{Ready: initlink.Ready{Err: initlink.WireError(err)}}
		}
		return instruct(setup, g, s.tally, out, given)
	})
}

// heed cancels ctx when the keeper is gone: otherwise a runtime that hangs would outlive it. It returns when ctx is
// done.
func heed(ctx context.Context, cancel func()) {
	const often = 100 // ms
	for ctx.Err() == nil {
		link := []unix.PollFd{{Fd: initlink.FD, Events: unix.POLLRDHUP}}
		_, err := unix.Poll(link, often)
		if err == nil && link[0].Revents != 0 || err != nil && !errors.Is(err, unix.EINTR) {
			cancel()
		}
	}
}

// outside describes this process to init, with the protections that are weaker than planned.
func outside(weak []plan.Item) (out initlink.Outside, err error) {
	out.Weak = weak
	for _, c := range initCaps {
		out.Caps |= 1 << c.number
	}
	out.Namespaces, err = initlink.NamespacesOf()
	return out, err
}

// answer is what PID 1 of a container has said about the container. With err, no process has said anything.
type answer struct {
	initlink.Ready
	err error
}

// instruct sends init its plan and the sandbox's root, and waits for its answer. It closes tally, the descriptors of
// the plan, and root.
func instruct(setup *initlink.Link, g plan.Guest, tally []int, out initlink.Outside, root *os.File) (a answer) {
	defer root.Close()
	a.err = errors.Join(setup.Send(initlink.MsgSetup, g, tally...), closeAll(tally))
	if a.err == nil {
		a.err = setup.Send(initlink.MsgReady, out, int(root.Fd()))
	}
	if a.err != nil {
		return a
	}
	m, err := setup.Recv()
	if err == nil {
		err = m.Decode(&a.Ready)
	}
	a.err = err
	return a
}

// setup is the plan's descriptors.
type setup struct {
	trees         []int // for guest.MakeRoot
	init, runtime int   // programs
	tally         []int // tally of refused system calls, or none
}

// take assigns the descriptors of a Setup.
func take(g plan.Guest, fds []int) (s setup, err error) {
	trees := 1 + g.Shared
	for _, more := range []bool{g.Client, g.Self} {
		if more {
			trees++
		}
	}
	want := trees + 2
	if g.Tell {
		want++
	}
	if len(fds) != want {
		return s, fault.New(fault.Internal, "the plan came with %d descriptors, expected %d", len(fds), want)
	}
	return setup{trees: fds[:trees], init: fds[trees], runtime: fds[trees+1], tally: fds[trees+2:]}, nil
}
