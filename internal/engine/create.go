//go:build linux

package engine

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/lifetime"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/worktree"
)

// Create creates a sandbox. It starts no process; the first command does.
func (e *Engine) Create(
	ctx context.Context, req wire.CreateRequest, progress func(wire.Progress),
) (wire.Sandbox, error) {
	return createGranted(ctx, e, &req, func() (wire.Sandbox, error) {
		if req.From.Kind == wire.SourceSandbox {
			return createFork(ctx, e, req)
		}
		return e.create(ctx, req, progress)
	})
}

// create is Create for a source other than a sandbox, without grants.
func (e *Engine) create(
	ctx context.Context, req wire.CreateRequest, progress func(wire.Progress),
) (wire.Sandbox, error) {
	work, without, err := e.trees.Find(ctx, &req)
	if err != nil {
		return wire.Sandbox{}, err
	}
	rec, notes, warnings, err := e.plan(ctx, &req)
	if err != nil {
		return wire.Sandbox{}, err
	}
	if without != "" {
		warnings = append(warnings, without)
	}
	if work != nil {
		if err := work.Shown(rec.Tier); err != nil && req.Repo.Maybe {
			work, req.Repo, warnings = nil, nil, append(warnings, worktree.Without(err))
		} else if err != nil {
			return wire.Sandbox{}, err
		}
	}
	if err := e.nameFree(ctx, rec.Name); err != nil {
		return wire.Sandbox{}, err
	}
	base, err := e.Bases.For(ctx, req, rec.Tier, progress)
	if err != nil {
		fault.HintNoSpace(err, "make room on the file system of %s, for example with: coppice system gc", e.Home)
		return wire.Sandbox{}, err
	}
	rec.Base, rec.Host, rec.From, rec.Root = base.ID, base.Host, base.Label, policies.RootOf(req.From)
	covered, err := e.Policies.Hides(ctx, &rec)
	if err != nil {
		return wire.Sandbox{}, err
	}
	if err := e.userKnown(ctx, &rec, base); err != nil {
		return wire.Sandbox{}, err
	}
	err = ignorable(ctx, e, &rec, base.Top)
	e.masks.Forget(rec.ID)
	if err != nil {
		return wire.Sandbox{}, err
	}
	if rec.Host {
		rec.HostPrint = e.HostPrint()
	}
	notes = append(notes, base.Notes...)
	if work != nil {
		if err := work.Visible(covered.Hide); err != nil && req.Repo.Maybe && rec.Host {
			work, warnings = nil, append(warnings, worktree.Without(err))
		} else if err != nil {
			return wire.Sandbox{}, err
		}
	}
	if work == nil {
		again := func() error {
			base, err = e.Bases.For(ctx, req, rec.Tier, progress)
			return err
		}
		if req.From.Kind == wire.SourceTar {
			again = nil // an archive is read once
		}
		err = e.createBare(ctx, &rec, &base, !req.SameIdentity, again)
	} else {
		if !req.SameIdentity {
			if err := identifyAbove(ctx, e, &rec, base.Top); err != nil {
				return wire.Sandbox{}, err
			}
		}
		var more, moreWarnings []string
		more, moreWarnings, err = e.trees.Create(ctx, work, &rec, base, progress)
		notes, warnings = append(notes, more...), append(warnings, moreWarnings...)
	}
	if err != nil {
		fault.HintNoSpace(err, "make room on the file system of %s, for example with: coppice system gc", e.Home)
		return wire.Sandbox{}, err
	}
	if rec.Host && work == nil && req.Dir != "" {
		warnings = append(warnings, unchangeable(ctx, e, &rec, req.Dir)...)
	}
	e.Feed.Emit(events.Created(&rec))
	e.Lifetimes.WakeExpiry()
	out := e.wire(ctx, &rec)
	out.TierReason = rec.TierReason
	out.Warnings, out.Notes = slices.Concat(base.Warnings, warnings), notes
	return out, nil
}

// createBare records a sandbox whose first snapshot equals its base, with its own machine ID if fresh. again finds or
// imports the base again if garbage collection removed it in the meantime; it is nil if that is impossible.
func (e *Engine) createBare(ctx context.Context, rec *meta.Sandbox, on *base, fresh bool, again func() error) error {
	for range createTries {
		rec.Base = on.ID
		if gone, err := recordOn(ctx, e, rec, on, fresh); err != nil || !gone {
			return err
		}
		if again == nil {
			break
		}
		if err := again(); err != nil {
			return err
		}
	}
	return fault.New(fault.Unavailable, "gc removed the files of %s before sandbox %s was made", on.Label, rec.Name).
		WithHint("run create again")
}

// createTries is how often createBare tries when garbage collection removes the base each time.
const createTries = 3

// recordOn is one attempt of createBare. gone reports that the base was removed before shape was held. No base is
// removed while shape is held.
func recordOn(ctx context.Context, e *Engine, rec *meta.Sandbox, on *base, fresh bool) (gone bool, err error) {
	e.shape.RLock()
	defer e.shape.RUnlock()
	if on.Top != "" {
		if there, err := e.DB.HasSnapshot(ctx, on.Top); err != nil || !there {
			return !there, err
		}
	}
	if fresh {
		if err := identify(ctx, e, rec, on.Top); err != nil {
			return false, err
		}
	}
	first, err := e.first(ctx, rec, on.Top, timeline.CauseImport, "from "+on.Label)
	if err != nil {
		return false, err
	}
	rec.Head, rec.MountTop, rec.Gen = first.ID, first.ID, 1
	return false, e.Book.Do(ctx, e.Book.Drafts(ctx, rec, e.createRecord(rec, "")), func(ctx context.Context) error {
		return e.DB.CreateSandbox(ctx, *rec, first)
	})
}

// plan checks a request and converts it into a record in which every "auto" is decided; in tier workspace it completes
// the source of the request. It creates nothing. notes say what was decided, and warnings name settings that may not be
// intended.
func (e *Engine) plan(
	ctx context.Context, req *wire.CreateRequest,
) (rec meta.Sandbox, notes, warnings []string, err error) {
	if rec.ID, err = timeline.NewSandboxID(e.Rand); err != nil {
		return rec, nil, nil, err
	}
	if rec.Name = req.Name; rec.Name == "" {
		if rec.Name, err = e.freshName(ctx, rec.ID, nil); err != nil {
			return rec, nil, nil, err
		}
	}
	if err := timeline.ValidName(rec.Name); err != nil {
		return rec, nil, nil, err
	}
	p, warnings, err := policies.Ask(*req)
	if err != nil {
		return rec, nil, nil, err
	}
	policies.Configure(&rec, p, req.Env)
	if req.Dir != "" && (!filepath.IsAbs(req.Dir) || len(req.Dir) >= unix.PathMax) {
		return rec, nil, nil, fault.New(fault.Invalid, "invalid dir %.100q: must be an absolute path", req.Dir)
	}
	if req.KeepRecent < 0 || !limit.InLife(req.KeepForMS) {
		return rec, nil, nil, fault.New(fault.Invalid, "invalid --keep-recent or --keep-for: must be from 0 to 100 years").
			WithHint("see: coppice create --help")
	}
	rec.GrantsLater = req.GrantsLater
	rec.KeepRecent, rec.KeepForMS = req.KeepRecent, req.KeepForMS
	life := wire.LifeRequest{TTLMS: &req.TTLMS, IdleStopMS: &req.IdleStopMS, Labels: req.Labels}
	if err := lifetime.Configure(&rec.Config, life, e.Now()); err != nil {
		return rec, nil, nil, err
	}
	if rec.User = req.User; rec.User == "" {
		rec.User = userRoot
		if req.From.Kind == "" || req.From.Kind == wire.SourceHost {
			rec.User = userMe
		}
	}
	if rec.Self = req.Self; rec.Self == "" {
		rec.Self = wire.SelfRead
	}
	host, lack, err := e.chooser.choose(ctx, *req, p, &rec)
	if err == nil {
		err = settle(e, req, &p, &rec)
	}
	if err != nil {
		return rec, nil, nil, requires(lack, err)
	}
	switch {
	case lack != nil:
		warnings = append(warnings, told(host, p)+"; because "+rec.TierReason)
	case rec.Tier == tierWorkspace:
		notes = append(notes, told(host, p))
	}
	return rec, notes, warnings, policies.Pin(&rec, p)
}

// settle checks the rest of a request against its tier and driver, and adapts the policy and the record to them.
func settle(e *Engine, req *wire.CreateRequest, p *policy.Policy, rec *meta.Sandbox) (err error) {
	p.Tier.Value = policy.Tier(rec.Tier)
	if rec.Tier == tierWorkspace {
		if err := settleWorkspace(e, req, p, rec); err != nil {
			return err
		}
	}
	of := *rec
	of.Root = policies.RootOf(req.From)
	if of.Ignored, err = e.Policies.Ignored(*p, &of); err != nil {
		return err
	}
	if err := e.Policies.Check(*p, &of); err != nil {
		return err
	}
	rec.Ignored = of.Ignored
	return selfPossible(req.Self, rec.Tier)
}

// selfPossible refuses a value of --self that the tier cannot provide.
func selfPossible(asked, tier string) error {
	switch asked {
	case "", wire.SelfOff:
		return nil
	case wire.SelfRead, wire.SelfRewind:
		if tier == tierWorkspace {
			return fault.New(fault.Unsupported, "tier workspace does not support %s inside the sandbox", wire.SelfSocket).
				WithHint("omit --self, which --agent implies; or use --tier process")
		}
		return nil
	}
	return fault.New(fault.Invalid, "invalid --self %q: must be off, read or rewind", asked).WithHint("see: coppice " +
		"create --help")
}

// self returns what the inside of a sandbox may do with its history. Old records do not say it.
func self(rec *meta.Sandbox) string {
	switch {
	case rec.Tier == tierWorkspace:
		return wire.SelfOff
	case rec.Self == "":
		return wire.SelfRead
	}
	return rec.Self
}

// Names of tiers. workspace has a history without confinement; supervised and gvisor enforce network rules; gvisor
// has its own kernel.
const (
	tierWorkspace  = string(policy.Workspace)
	tierProcess    = string(policy.Process)
	tierSupervised = string(policy.Supervised)
	tierContainer  = string(policy.Container)
	tierGVisor     = string(policy.GVisor)
)

// Users that need not be in the base's /etc/passwd.
const (
	userRoot = "root"
	userMe   = "me"
)

// maxPasswd is how many bytes of an /etc/passwd are read at most.
const maxPasswd = 1 << 20

// userKnown refuses a user that the base does not have. If its /etc/passwd cannot be read by the daemon, and in tier
// workspace, which uses the host's, the first command fails instead.
func (e *Engine) userKnown(ctx context.Context, rec *meta.Sandbox, b base) error {
	if rec.User == userRoot || rec.User == userMe || rec.Tier == tierWorkspace {
		return nil
	}
	e.shape.RLock()
	defer e.shape.RUnlock()
	defer e.masks.Forget(rec.ID)
	st, _, err := e.masks.Stack(ctx, rec, b.Top)
	if err != nil {
		return err
	}
	f, err := e.Layers.View(st).Open("/etc/passwd")
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
		return nil // missing, or a symbolic link, which is followed only inside
	}
	if err != nil {
		return fault.Wrap(err, "read the /etc/passwd of %s", b.Label)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPasswd))
	if err != nil {
		return fault.Wrap(err, "read the /etc/passwd of %s", b.Label)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(line, ":"); ok && name != "" {
			names = append(names, name)
		}
	}
	if slices.Contains(names, rec.User) {
		return nil
	}
	if len(names) > limit.Listed {
		names = append(names[:limit.Listed], "...")
	}
	return fault.New(fault.Invalid, "user %[2]q not found in the /etc/passwd of %[1]s", b.Label, rec.User).
		WithHint("use root, me or an existing user (%s), or add the user first: coppice create --user root, then useradd %s",
			strings.Join(names, ", "), rec.User)
}

// first makes the first snapshot of a sandbox, which changes nothing, and marks the policy of its record as its first
// one. Sandbox and snapshot get the current time, so that neither is older than a base whose import took a while.
func (e *Engine) first(
	ctx context.Context, rec *meta.Sandbox, parent timeline.SnapshotID, cause timeline.Cause, msg string,
) (timeline.Snapshot, error) {
	rec.PolicyRecord = meta.Unchanged
	rec.Created = e.Now().UTC().Truncate(time.Microsecond)
	msg = e.cleaners.For(ctx, rec).Redact(msg)
	id, err := timeline.NewSnapshotID(e.Rand)
	return timeline.Snapshot{
		ID: id, Sandbox: rec.ID, Parent: parent, Cause: cause, Message: msg, Created: rec.Created, Finalized: true,
	}, err
}

func (e *Engine) nameFree(ctx context.Context, name string) error {
	taken, err := e.DB.Taken(ctx, name)
	if taken {
		return fault.New(fault.Exists, "sandbox %s already exists", name).
			WithHint("choose another name, or remove it: coppice rm %s", name)
	}
	return err
}

// freshName returns an unused, pronounceable name made from an id: a short one or, if that is taken, one that is as
// unique as the id. taken, which may be nil, holds names that have no record yet.
func (e *Engine) freshName(ctx context.Context, id timeline.SandboxID, taken map[string]bool) (string, error) {
	name := sayable(id, 5)
	used, err := e.DB.Taken(ctx, name)
	if used || taken[name] {
		name = sayable(id, len(id))
	}
	return name, err
}

// sayable returns the name of a tree followed by digits of an id.
func sayable(id timeline.SandboxID, digits int) string {
	trees := [...]string{
		"alder", "apple", "ash", "aspen", "beech", "birch", "cedar", "cherry", "chestnut", "cypress", "elder", "elm",
		"fir", "hazel", "holly", "juniper", "larch", "lime", "linden", "maple", "medlar", "oak", "pear", "pine", "plum",
		"poplar", "rowan", "spruce", "sycamore", "walnut", "willow", "yew",
	}
	n := 0
	for _, c := range id[:4] {
		n = n*16 + strings.IndexRune("0123456789abcdef", c)
	}
	return fmt.Sprintf("%s-%s", trees[n%len(trees)], id[len(id)-digits:])
}

// createFork implements create --from SANDBOX[@REF]: a fork under the name of the request.
func createFork(ctx context.Context, e *Engine, req wire.CreateRequest) (wire.Sandbox, error) {
	for flag, v := range map[string]string{"--driver": req.Driver, "--user": req.User, "--net": req.Net,
		"--limit": req.Limits, "--self": req.Self} {
		if v != "" && v != "auto" {
			return wire.Sandbox{},
				fault.New(fault.Invalid, "cannot use %s with --from SANDBOX: a fork inherits the settings of its parent", flag)
		}
	}
	if req.Repo != nil && !req.Repo.Maybe {
		return wire.Sandbox{},
			fault.New(fault.Invalid,
				"cannot use --repo, --at or --dirty with --from SANDBOX: a fork inherits the repository of its parent")
	}
	if req.KeepRecent != 0 || req.KeepForMS != 0 {
		return wire.Sandbox{},
			fault.New(fault.Invalid,
				"cannot use --keep-recent or --keep-for with --from SANDBOX: a fork inherits the retention of its parent")
	}
	given := wire.LifeRequest{TTLMS: &req.TTLMS, IdleStopMS: &req.IdleStopMS}
	if err := lifetime.Configure(new(meta.Config), given, e.Now()); err != nil {
		return wire.Sandbox{}, err
	}
	f := wire.ForkRequest{At: req.From.Ref, N: 1, Policy: req.Policy, Labels: req.Labels, SameIdentity: req.SameIdentity}
	if req.Tier != "auto" {
		f.Tier = req.Tier
	}
	if req.Name != "" {
		f.Names = []string{req.Name}
	}
	res, err := e.Fork(ctx, req.From.Sandbox, f)
	if err != nil {
		return wire.Sandbox{}, err
	}
	if req.TTLMS == 0 && req.IdleStopMS == 0 {
		return res.Sandboxes[0], nil
	}
	life := wire.LifeRequest{TTLMS: &req.TTLMS}
	if req.IdleStopMS != 0 { // otherwise the parent's
		life.IdleStopMS = &req.IdleStopMS
	}
	return e.Lifetimes.SetLife(ctx, res.Sandboxes[0].ID, life)
}
