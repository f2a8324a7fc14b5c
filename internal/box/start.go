//go:build linux && (amd64 || arm64)

package box

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
)

// prepare completes c with defaults and takes the lock of its run directory, in which no box runs and no process of
// an earlier one is left. The caller closes the lock.
func prepare(ctx context.Context, c *plan.Config) (lock *os.File, err error) {
	c.Version = plan.Version
	if c.Tier == "" {
		c.Tier = plan.TierProcess
	}
	if c.IdleAfter == 0 {
		c.IdleAfter = plan.DefaultIdle
	}
	if !slices.Contains(plan.Tiers, c.Tier) {
		return nil, fault.New(fault.Unsupported, "unknown tier %q", c.Tier).
			WithHint("use %s", strings.Join(plan.Tiers, ", "))
	}
	switch live, err := Attach(ctx, c.RunDir); {
	case err == nil:
		is := fault.New(fault.Conflict, "the sandbox is already running").
			WithHint("stop it first: coppice stop %s", c.Name)
		return nil, errors.Join(is, live.Close())
	case !fault.Is(err, fault.NotFound):
		return nil, err
	}
	if lock, err = lockDir(ctx, c.RunDir); err != nil {
		return nil, err
	}
	if err := procs.ProveEnd(c.RunDir, provePatience); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// helpers are the programs that a keeper is started from or starts. The program.Set owns their files.
type helpers struct {
	init   *os.File // also the keeper's own program
	gate   *os.File // nil unless the box has a gate
	sentry *os.File // nil except in tier gvisor
	client *os.File // nil unless the box shows it
}

// findHelpers finds the programs that a box needs, and sets the fields of c that depend on them.
func findHelpers(programs *program.Set, c *plan.Config) (h helpers, err error) {
	if h.init, err = programs.File(program.Init); err != nil {
		return h, err
	}
	if c.Gated() {
		if h.gate, err = programs.File(program.Gate); err != nil {
			return h, err
		}
	}
	if c.Tier == plan.TierGvisor {
		if h.sentry, err = programs.File(program.Sentry); err != nil {
			return h, err
		}
		if c.MemoryFacts, err = MemoryFacts(programs); err != nil {
			return h, err
		}
	}
	if c.Client {
		if h.client, err = programs.Client(); err != nil {
			return h, err
		}
	}
	return h, nil
}

// spawned is a keeper that is starting.
type spawned struct {
	runDir  string
	process *os.Process
	pidfd   int      // -1 once it belongs to the Box
	config  *os.File // receives the plan
	ready   *os.File // returns the outcome
}

// spawn starts a keeper, which waits for its plan. The caller closes its pipes.
func spawn(c plan.Config, h helpers, lock *os.File) (_ *spawned, err error) {
	config, configW, err := os.Pipe()
	if err != nil {
		return nil, fault.Wrap(err, "start the monitor")
	}
	defer config.Close()
	ready, readyW, err := os.Pipe()
	if err != nil {
		configW.Close()
		return nil, fault.Wrap(err, "start the monitor")
	}
	defer readyW.Close()
	k := &spawned{runDir: c.RunDir, pidfd: -1, config: configW, ready: ready}
	defer func() {
		if err != nil {
			k.closePipes()
		}
	}()
	name := filepath.Join(c.RunDir, protocol.LogName)
	log, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, "open the monitor's log")
	}
	defer log.Close()
	output, err := program.Guard(h.init, log)
	if err != nil {
		return nil, fault.Wrap(err, "start the monitor")
	}
	defer output.Close()
	cmd := &exec.Cmd{
		Path: program.Path(h.init), Args: []string{protocol.Argv0, c.ID}, Dir: "/",
		Env:    protocol.Env,
		Stdout: output, Stderr: output, ExtraFiles: []*os.File{config, readyW, lock, h.gate, h.sentry, h.client},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, PidFD: &k.pidfd},
	}
	if c.Confined() {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	if err := cmd.Start(); err != nil {
		return nil, fault.Wrap(err, "start the monitor")
	}
	k.process = cmd.Process
	return k, nil
}

// closePipes closes the caller's ends of the pipes to a keeper.
func (k *spawned) closePipes() {
	k.ready.Close()
	k.config.Close()
}

// term ends a starting keeper and waits until it exits. On SIGTERM a keeper undoes its set-up. A keeper that hangs is
// killed.
func (k *spawned) term() error {
	_ = k.process.Signal(unix.SIGTERM)
	late := time.AfterFunc(termKeeper, func() { _ = k.process.Kill() })
	defer late.Stop()
	if k.pidfd >= 0 {
		unix.Close(k.pidfd)
	}
	_, err := k.process.Wait()
	_ = cgroup.RemoveLeft(k.runDir, time.Second) // a group that remains is tried again
	return err
}

// await sends a keeper its plan and waits for the outcome of the start.
func (k *spawned) await(ctx context.Context, c plan.Config) (e plan.Enforced, err error) {
	if err := json.NewEncoder(k.config).Encode(c); err != nil {
		return e, fault.Wrap(err, "send the monitor its plan")
	}
	k.config.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, limit.StartSeconds*time.Second+termKeeper,
		fault.New(fault.Timeout, "the sandbox's monitor was not ready within %d s", limit.StartSeconds))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = k.ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var o protocol.Outcome
	if err := json.NewDecoder(k.ready).Decode(&o); err != nil {
		if ctx.Err() != nil {
			return e, fault.Wrap(context.Cause(ctx), "start the sandbox")
		}
		return e, fault.New(fault.Unavailable, "the monitor exited during its start").Because(err).
			WithHint("see its log: cat %s", filepath.Join(k.runDir, protocol.LogName))
	}
	if o.Err != nil {
		return e, o.Err.Fault()
	}
	if ctx.Err() != nil { // the caller has gone and would not learn of the box
		return e, fault.Wrap(context.Cause(ctx), "start the sandbox")
	}
	return o.Enforced, nil
}

// termKeeper is how long a keeper may take to clean up after its start is cancelled.
const termKeeper = 5 * time.Second
