package daemon

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/engine"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/memory"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/program"
)

// boxes implements the engine's boxes with package box.
type boxes struct {
	programs *program.Set
	caller   plan.Caller
	lines    *lines
}

// liveBox is a box.Box whose Exec and Freeze return the engine's interfaces.
type liveBox struct {
	*box.Box
	programs *program.Set
}

func (b boxes) Start(ctx context.Context, c engine.BoxConfig) (engine.Box, engine.Enforced, error) {
	runtime := ""
	if c.Tier == plan.TierContainer {
		var err error
		if runtime, err = findRuntime(c.Runtime, os.Getenv("PATH"), blind(b.caller)); err != nil {
			return nil, engine.Enforced{}, err
		}
	}
	var self *door
	if c.Tier != plan.TierWorkspace {
		var err error
		if self, err = b.lines.openInside(string(c.ID), c.RunDir, c.Self, c.Tier); err != nil { //nolint:contextcheck // connections outlive the call
			return nil, engine.Enforced{}, err
		}
	}
	started, e, err := box.Start(ctx, b.programs, plan.Config{
		ID: string(c.ID), Name: c.Name, RunDir: c.RunDir, Spec: c.Spec, Tier: c.Tier, Runtime: runtime, User: c.User,
		HostBase: c.Host, Net: c.Net, Env: c.Env, Limits: plan.Limits(c.Limits), DiskBy: c.DiskBy, Trace: c.Trace,
		Hidden: c.Hidden, HiddenAt: c.HiddenAt, Denials: string(c.Evidence.Denials.Value),
		Record: c.Evidence.Output.Value, Access: c.Access, Dirs: c.Dirs, Shared: c.Shared, Strong: c.Strong,
		Require: c.Require, Known: known(c.Known), Caller: b.caller, Self: self != nil,
		Phases: phases(c.Phases), Journal: c.JournalDir, JournalKey: c.JournalKey, Image: c.Image, Init: c.Init, Asks: c.Asks,
		Client: c.Tier != plan.TierWorkspace && (c.Image == "" || c.Client != ""), ImageClient: c.Client,
		Confine: string(c.Confine), Places: plan.Places(c.Places),
		Tokens: tokens(c.Tokens), OnTouch: onTouch(c.Stops), Secrets: c.Secrets,
	})
	if err != nil {
		if self != nil {
			b.lines.shutInside(string(c.ID), self)
		}
		return nil, engine.Enforced{}, err
	}
	if self != nil {
		b.lines.until(string(c.ID), self, started.Gone())
	}
	items := make([]wire.Enforcement, len(e.Items))
	for i, it := range e.Items {
		items[i] = wire.Enforcement(it)
	}
	return liveBox{started, b.programs},
		engine.Enforced{Tier: e.Tier, Items: items, Protections: e.Protections(), Found: found(e.Found)}, nil
}

func known(list []meta.Finding) (out []plan.Finding) {
	for _, f := range list {
		out = append(out, plan.Finding(f))
	}
	return out
}

func found(list []plan.Finding) (out []meta.Finding) {
	for _, f := range list {
		out = append(out, meta.Finding(f))
	}
	return out
}

func (b boxes) Needs(protection string) string {
	return strings.Join(plan.Needs([]string{protection}), "")
}

func (b boxes) Inherited(protections []string, from, to string) []string {
	return plan.Inherited(protections, from, to)
}

func (b boxes) CanLimitCPU() error { return cgroup.CanLimitCPU(b.caller.Root) }

func tokens(list []engine.DecoyToken) (out []plan.Token) {
	for _, t := range list {
		out = append(out, plan.Token(t))
	}
	return out
}

func onTouch(stops bool) string {
	if stops {
		return plan.TouchStop
	}
	return ""
}

// A box can store all the output that a policy can ask for.
const _ uint = plan.MaxRecord - policy.MaxOutput

func phases(list []engine.Phase) []plan.Phase {
	out := make([]plan.Phase, len(list))
	for i, p := range list {
		out[i] = plan.Phase(p)
	}
	return out
}

func (b liveBox) SetPolicy(ctx context.Context, list []engine.Phase) error {
	return b.Box.SetPolicy(ctx, phases(list))
}

func (b boxes) Attach(ctx context.Context, runDir string) (engine.Box, error) {
	live, err := box.Attach(ctx, runDir)
	if err != nil {
		return nil, err
	}
	return liveBox{live, b.programs}, nil
}

func (boxes) Kill(ctx context.Context, runDir string) error { return box.Kill(ctx, runDir) }

// removeLeft removes the leftovers of monitors that were killed while no daemon ran.
func removeLeft(home string, log *slog.Logger) {
	dirs, _ := filepath.Glob(filepath.Join(home, "sandboxes", "*", "run")) // the pattern is right
	for _, dir := range dirs {
		if err := box.RemoveLeft(dir, 0); err != nil {
			log.Warn("could not remove the control groups of a sandbox; its next start will", "dir", dir, "err", err)
		}
	}
}

// probePattern is the pattern of os.MkdirTemp for directories in which a home is examined.
const probePattern = ".coppice-probe-"

// probeAge is the age after which no process uses a directory in which a home was examined.
const probeAge = time.Hour

// removeProbes removes the directories in which the home was examined by processes that were killed, and ends the
// sandboxes that are left of them.
func removeProbes(ctx context.Context, home string, now time.Time, log *slog.Logger) {
	dirs, _ := filepath.Glob(filepath.Join(home, probePattern+"*")) // the pattern is right
	for _, dir := range dirs {
		st, err := os.Lstat(dir)
		if err == nil && now.Sub(st.ModTime()) < probeAge {
			continue
		}
		if err == nil {
			err = box.Kill(ctx, filepath.Join(dir, probeRun))
		}
		if err == nil || fault.Is(err, fault.NotFound) {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			log.Warn("could not remove what an examination of the home left behind", "dir", dir, "err", err)
		}
	}
}

func (boxes) LeftPrograms(runDir string, secret []byte) (wire.ProgramEvents, error) {
	return box.LeftPrograms(runDir, secret)
}

func (boxes) ForgetPrograms(runDir string) error { return box.ForgetPrograms(runDir) }

func (b liveBox) Exec(ctx context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error) {
	s, err := b.Box.Exec(ctx, req)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (b liveBox) Freeze(ctx context.Context) (engine.Frozen, error) {
	f, err := b.Box.Freeze(ctx)
	if err != nil {
		return nil, err
	}
	return frozen{f, b.programs}, nil
}

// frozen is a box.Frozen whose Suspects and Root return the engine's types.
type frozen struct {
	*box.Frozen
	programs *program.Set
}

func (f frozen) Save(ctx context.Context, dir string) (p memory.Programs, err error) {
	facts, err := box.MemoryFacts(f.programs)
	if err != nil {
		return p, err
	}
	p.Init, p.Client, err = f.Frozen.Save(ctx, dir, facts)
	return p, err
}

func (f frozen) Suspects() layer.Suspects { return layer.Suspects(f.Frozen.Suspects()) }

func (f frozen) Root(ctx context.Context) (*engine.LiveRoot, error) {
	r, err := f.Frozen.Root(ctx)
	if err != nil {
		return nil, err
	}
	out := &engine.LiveRoot{Dir: r.Dir, Owners: layer.Owners(r.Owners), Inodes: r.Mapped.Inodes, AnyMapped: r.Mapped.All}
	for _, p := range r.Mapped.Paths {
		out.Paths = append(out.Paths, string(p))
	}
	return out, nil
}

func (b liveBox) Paused(ctx context.Context) (bool, error) {
	st, err := b.Status(ctx)
	return st.Paused, err
}

func (b liveBox) Rekey(ctx context.Context, hostname string, seed []byte) (out []engine.RekeyStep, err error) {
	steps, err := b.Box.Rekey(ctx, box.Rekey{Hostname: hostname, Seed: seed})
	for _, s := range steps {
		out = append(out, engine.RekeyStep(s))
	}
	return out, err
}

// Execs lists the running commands, and kept ones that have exited and were not forgotten.
func (b liveBox) Execs(ctx context.Context) ([]wire.ExecInfo, error) {
	st, err := b.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]wire.ExecInfo, 0, len(st.Execs))
	for _, x := range st.Execs {
		out = append(out, wire.ExecInfo{ID: x.ID, Cmd: x.Cmd, PID: x.PID, Started: x.Started, TTY: x.TTY, Stdin: x.Stdin,
			Kept: x.Kept, Attached: x.Attached, Capture: x.Capture, Exit: x.Exit})
	}
	return out, nil
}

func (b liveBox) Wait(ctx context.Context, exec string) (engine.Ended, error) {
	x, err := b.Box.Wait(ctx, exec)
	return engine.Ended(x), err
}

func (b liveBox) OpenRoot(ctx context.Context) (*engine.InsideRoot, error) {
	in, err := b.Box.OpenRoot(ctx)
	if err != nil {
		return nil, err
	}
	u := in.User
	out := &engine.InsideRoot{Dir: in.Dir, Unseen: in.Unseen, Close: in.Close,
		User: boxfs.User{UID: u.UID, GID: u.GID, Groups: u.Groups}}
	for _, m := range u.UIDs {
		out.User.UIDs = append(out.User.UIDs, boxfs.IDMap(m))
	}
	for _, m := range u.GIDs {
		out.User.GIDs = append(out.User.GIDs, boxfs.IDMap(m))
	}
	return out, nil
}
