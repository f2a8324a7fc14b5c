//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/relay"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// linkFD is the descriptor of the conductor's end of the link.
const linkFD = 3

// conduct runs a conductor and returns the exit code of the process. When the process exits, the kernel kills
// everything that runs in the sandbox.
func conduct() int {
	_ = os.WriteFile("/proc/self/comm", []byte(initlink.ConductorArgv0), 0) // for ps
	reserveFirstThread()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gvisor:", err)
		return 1
	}
	return 0
}

// reserveFirstThread keeps the first thread of the process from ever running another goroutine. The keeper opens
// the sandbox's files below the root of the process, and /proc shows the root of the first thread as that
// (proc_pid_root(5)). gVisor moves the thread of one of its goroutines to another mount namespace for good
// (container.OpenMount), which could be any thread.
func reserveFirstThread() {
	reserved := make(chan struct{})
	var try func()
	try = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			close(reserved)
			select {}
		}
		go try() // on another thread, since this one stays locked
		<-reserved
		runtime.UnlockOSThread()
	}
	go try()
	<-reserved
}

func run() error {
	if err := unix.CloseRange(linkFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}}) // errors are returned instead
	link := initlink.NewLink(linkFD)
	m, err := link.Recv()
	if err != nil {
		return fmt.Errorf("wait for the plan: %w", err)
	}
	c := &conductor{link: link}
	if err := fault.OfHost(c.start(m)); err != nil {
		return errors.Join(err, link.Send(initlink.MsgReady, initlink.Ready{Err: initlink.WireError(err)}))
	}
	defer time.AfterFunc(settled, func() { debug.SetGCPercent(50) }).Stop()
	return c.relay.Run()
}

// settled is when a conductor starts to collect garbage at the keeper's rate. Its start needs a larger heap, most of
// which survives, while the processors are busiest.
const settled = 2 * time.Second

// conductor runs one sandbox.
type conductor struct {
	link     *initlink.Link
	guest    plan.Guest
	kernel   *kernel
	relay    *relay.Relay
	programs *programs

	mu     sync.Mutex
	frozen *initlink.Frozen // the state of the sandbox when it was frozen; nil while it runs
	paused bool             // the kernel runs none of the sandbox's processes
}

// setup is the plan's descriptors.
type setup struct {
	trees []int      // the binary, the sandbox's files, the shared directories of the host, and coppice
	nic   *os.File   // the sandbox's end of the gate's link, or nil
	image []*os.File // files of a memory image, or nil
	tally *os.File   // tally of refused system calls, or nil
}

// take assigns the descriptors of a Setup.
func take(g plan.Guest, fds []int) (s setup, err error) {
	trees := 2 + g.Shared
	if g.Client {
		trees++
	}
	want := trees
	if g.Gate {
		want++
	}
	if g.Resume {
		want += len(initlink.ImageFiles)
	}
	if g.Tell {
		want++
	}
	if len(fds) != want {
		return s, fault.New(fault.Internal, "the plan came with %d descriptors, expected %d", len(fds), want)
	}
	s.trees, fds = fds[:trees], fds[trees:]
	if g.Gate {
		s.nic, fds = os.NewFile(uintptr(fds[0]), "gate"), fds[1:]
	}
	if g.Tell {
		last := len(fds) - 1
		s.tally, fds = os.NewFile(uintptr(fds[last]), "tally"), fds[:last]
	}
	for i, fd := range fds {
		s.image = append(s.image, os.NewFile(uintptr(fd), initlink.ImageFiles[i]))
	}
	return s, nil
}

// start creates the sandbox's kernel, and starts or resumes its processes.
func (c *conductor) start(m initlink.Message) error {
	if err := m.Decode(&c.guest); err != nil {
		return err
	}
	g := c.guest
	if g.Version != plan.Version {
		return fault.New(fault.Version, "unsupported plan version %[2]d: must be %[1]d", plan.Version, g.Version).
			WithHint("coppice was replaced while the daemon ran; restart the daemon: coppice serve")
	}
	s, err := take(g, m.FDs)
	if err != nil {
		return err
	}
	if err := makeWorld(g, s.trees); err != nil {
		return err
	}
	if _, err := seccomp.Install(seccomp.Stubs(), seccomp.AllThreads|seccomp.KeepSpeculation); err != nil {
		return fault.Wrap(err, "install the filter of gVisor's processes")
	}
	in, out, err := c.makeKernel(g)
	if err != nil {
		return err
	}
	// Not earlier: the id maps of its children would belong to root, and the conductor may be another user
	// (proc_pid(5)).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fault.Wrap(err, "make the conductor non-dumpable")
	}
	hooks := relay.Hooks{ToSandbox: c.toSandbox, ToKeeper: c.toKeeper, AfterKeeper: c.afterKeeper}
	hooks.Resumed = func() error {
		c.programs.resumed()
		return c.link.Send(initlink.MsgReady, initlink.Ready{})
	}
	c.relay = relay.Outside(c.link, out, in, hooks)
	if g.Resume {
		if c.programs, err = watchPrograms(c.kernel, g, s.tally, c.link); err != nil { // before anything runs
			return err
		}
		if err := c.kernel.resume(s); err != nil {
			return err
		}
		c.relay.Hello()
		return nil
	}
	if err := c.kernel.begin(s); err != nil {
		return err
	}
	c.guest.Java = nil // they may be large
	inside := g
	inside.Trace, inside.Tell = false, false // init records neither program starts nor refusals
	inside.Denials, inside.Hidden = false, nil
	if err := c.relay.Send(initlink.MsgSetup, inside); err != nil {
		return err
	}
	// This runs while init starts up. Init starts no program before it is asked to.
	if c.programs, err = watchPrograms(c.kernel, g, s.tally, c.link); err != nil {
		return err
	}
	go c.programs.follow()
	return nil
}

// makeKernel creates the kernel, with pipes to the future PID 1.
func (c *conductor) makeKernel(g plan.Guest) (in io.Writer, out io.Reader, err error) {
	var pipes [3][2]*os.File // standard input, output and error inside
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, fault.Wrap(err, "create the pipes to the sandbox")
		}
		pipes[i] = [2]*os.File{r, w}
	}
	c.kernel, err = newKernel(g, [3]*os.File{pipes[0][0], pipes[1][1], pipes[2][1]})
	for _, f := range []*os.File{pipes[0][0], pipes[1][1], pipes[2][1]} {
		f.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	go initlink.CopyLog(pipes[2][0], os.Stderr) // until the sandbox ends
	return pipes[0][1], pipes[1][0], nil
}

// toSandbox intercepts the keeper's messages to the sandbox. While the sandbox is frozen, the conductor answers in its
// place.
func (c *conductor) toSandbox(m initlink.Message) (taken bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Kind == initlink.MsgSave {
		return true, c.link.Send(initlink.MsgSaved, initlink.Saved{Err: initlink.WireError(c.save(m))})
	}
	if m.Kind == initlink.MsgSpawn {
		c.programs.asks(m)
	}
	if c.frozen == nil {
		return false, nil
	}
	switch m.Kind {
	case initlink.MsgFreeze:
		err := fault.New(fault.Conflict, "the sandbox is already frozen")
		return true, c.link.Send(initlink.MsgFrozen, initlink.Frozen{Err: initlink.WireError(err)})
	case initlink.MsgThaw:
		if c.paused {
			if err := c.kernel.unpause(); err != nil {
				return false, fmt.Errorf("resume the sandbox: %w", err)
			}
		}
		c.frozen, c.paused = nil, false
		return false, nil
	case initlink.MsgCount:
		return true, c.link.Send(initlink.MsgCounted, initlink.Counted{Procs: c.frozen.Procs})
	case initlink.MsgClock:
		return true, c.link.Send(initlink.MsgClocked, initlink.Clocked{Clock: c.frozen.Clock})
	case initlink.MsgMap:
		return true, c.link.Send(initlink.MsgMapped, initlink.Mapped{All: c.frozen.Procs > 0})
	}
	return false, nil
}

// toKeeper intercepts the sandbox's messages to the keeper.
func (c *conductor) toKeeper(m *initlink.Message) (err error) {
	switch m.Kind {
	case initlink.MsgSaved, initlink.MsgPrograms, initlink.MsgRefused:
		err = fault.New(fault.Denied, "the sandbox sent message %q, which only the conductor may send", m.Kind)
	case initlink.MsgAdopt:
		c.programs.adopted(*m)
	case initlink.MsgExited:
		c.programs.exited(*m)
	case initlink.MsgFrozen:
		err = c.stop(m)
	}
	return err
}

// afterKeeper is called after a message has been sent to the keeper.
func (c *conductor) afterKeeper(m initlink.Message) error {
	if m.Kind == initlink.MsgSpawned {
		return c.programs.spawned(m)
	}
	return nil
}

// stop pauses the kernel. Init has already completed what it began.
func (c *conductor) stop(m *initlink.Message) error {
	var f initlink.Frozen
	if err := m.Decode(&f); err != nil || f.Err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.Procs > 0 {
		if err := c.kernel.pause(); err != nil {
			return fmt.Errorf("stop the sandbox: %w", err)
		}
		c.paused = true
		f.Written = c.kernel.written()
	}
	f.Programs = c.programs.labels()
	c.frozen = &f
	b, err := json.Marshal(f)
	m.Payload = b
	return err
}

// save writes a memory image of the frozen sandbox.
func (c *conductor) save(m initlink.Message) error {
	var files []*os.File
	for i, fd := range m.FDs {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return fault.Wrap(err, "open the image")
		}
		f := os.NewFile(uintptr(dup), "image "+string(rune('0'+i)))
		defer f.Close()
		files = append(files, f)
	}
	if len(files) != len(initlink.ImageFiles) {
		return fault.New(fault.Internal, "malformed memory image: %d files", len(files))
	}
	if c.frozen == nil {
		return fault.New(fault.Conflict, "the sandbox is not paused")
	}
	if !c.paused {
		if err := c.kernel.pause(); err != nil {
			return fault.Wrap(err, "stop the sandbox")
		}
		c.paused = true
	}
	return c.kernel.save(files)
}
