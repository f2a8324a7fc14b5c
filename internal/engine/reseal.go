//go:build linux

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A sandbox whose processes go on from what those of another had in memory is quarantined
// until it is one of its own: its gate is closed. What can be the same in both is drawn anew
// from outside; SSH host keys and the sandbox's own hooks follow, as commands that are
// recorded like any other; then the gate opens. Tokens, sessions and forwarded ports belong
// to a sandbox's id, which is another one, so those of the parent reach nothing here.

const (
	// hooksDir holds the programs that make a copy of a sandbox another one, for what Coppice
	// does not know of. They run in the order of their names.
	hooksDir = "/etc/coppice/on-fork.d"
	maxHooks = 64
	// hookTime is what each of them may take, and keyTime all SSH host keys, in milliseconds.
	hookTime = 30_000
	keyTime  = 120_000
	sshDir   = "/etc/ssh"
	// awakening is how many forks start at once.
	awakening = 4
	underWay  = "it is being made a sandbox of its own"
)

// The steps that are not the box's own.
const (
	stepStart = "start"
	stepSSH   = "ssh-host-keys"
	stepHooks = "hooks"
	stepGate  = "gate"
)

// newHostKeys makes the SSH host keys anew that there are, of the same kinds. Those that the
// sandbox's user may not read, as of the host below it, are not what it is known by.
const newHostKeys = `for k in /etc/ssh/ssh_host_*_key; do
	[ -r "$k" ] || continue
	t=${k##*/ssh_host_}
	rm -f -- "$k" "$k.pub" && ssh-keygen -q -N '' -t "${t%_key}" -f "$k" || exit
done`

// mayForkMemory refuses forks with memory where the policy does.
func (e *Engine) mayForkMemory(ctx context.Context, rec *meta.Sandbox) error {
	p, err := e.Policies.Of(ctx, rec)
	if err != nil {
		return err
	}
	if p.MemoryFork.Value == policy.MemoryDeny {
		return fault.New(fault.Denied, "the policy of sandbox %s denies forks with memory, by %s", rec.Name, p.MemoryFork.At).
			WithHint("fork its files: coppice fork %s", rec.Name)
	}
	return nil
}

// runIn gives the supervised command for a fork whose processes go on, if it is in the image.
func runIn(parent *meta.Sandbox, m *timeline.Memory) *wire.Run {
	if parent.Run == nil || m.Run == "" || parent.Run.Exec != m.Run {
		return nil
	}
	run := *parent.Run
	run.Ended, run.Exit = nil, nil
	return &run
}

// awakenAll lets the processes of forks go on. One for which that fails stays quarantined,
// with the reason.
func (e *Engine) awakenAll(ctx context.Context, recs []meta.Sandbox) {
	var g errgroup.Group
	g.SetLimit(awakening)
	for i := range recs {
		g.Go(func() error {
			if err := e.awaken(ctx, string(recs[i].ID)); err != nil {
				e.Logger.Warn("a fork is quarantined", "sandbox", recs[i].Name, "err", err)
			}
			if now, err := e.DB.Sandbox(ctx, string(recs[i].ID)); err == nil {
				recs[i] = now
			}
			return nil
		})
	}
	_ = g.Wait()
}

// failed is a step that failed.
type failed struct {
	step string
	err  error
}

func (f *failed) Error() string { return f.step + ": " + f.err.Error() }
func (f *failed) Unwrap() error { return f.err }

// awaken makes a quarantined sandbox one of its own: its processes go on, it gets its own
// identity, and its gate opens. What fails is noted with it. One caller at a time does it: a
// second one would open the gate while hooks of the first one's run.
func (e *Engine) awaken(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx) // a client that goes leaves nothing half done
	name, err := e.DB.Name(ctx, timeline.SandboxID(id))
	if err != nil {
		return err
	}
	if !e.awakens.take(id) {
		return fault.New(fault.Conflict, "sandbox %s is being made one of its own already", name).
			WithHint("wait, and see what came of it: coppice status %s", name)
	}
	defer e.awakens.drop(id)
	err = e.seclude(ctx, id)
	if err == nil {
		err = e.resealInside(ctx, id)
	}
	if err == nil {
		err = e.letOut(ctx, id)
	}
	if err == nil {
		return nil
	}
	f := &failed{step: stepStart, err: err}
	errors.As(err, &f)
	return errors.Join(fault.Wrap(err, "make sandbox %s one of its own", name), e.noteQuarantine(ctx, id, f))
}

// noteQuarantine records why a sandbox stays quarantined.
func (e *Engine) noteQuarantine(ctx context.Context, id string, f *failed) error {
	s, rec, err := e.acquire(ctx, id, "noting what failed")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	reason := e.cleaners.For(ctx, &rec).RecordText(f.err.Error())
	err = e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error {
		if r.Quarantine != nil {
			q := *r.Quarantine
			q.Step, q.Reason = f.step, reason
			r.Quarantine = &q
		}
		return nil
	})
	e.Book.Note(ctx, &rec, audit.ByDaemon(&format.Reseal{Step: f.step, Error: reason})...)
	return err
}

// seclude makes sure that the processes of a quarantined sandbox run, and gives their box an
// identity of its own.
func (e *Engine) seclude(ctx context.Context, id string) error {
	s, rec, err := e.acquire(ctx, id, "going on from memory")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	if rec.Quarantine == nil {
		return nil
	}
	b := e.liveBox(s)
	if b == nil {
		if b, err = e.startAt(ctx, s, &rec, rec.Quarantine.At); err != nil {
			return &failed{stepStart, err}
		}
	}
	seed := make([]byte, 32)
	if _, err := io.ReadFull(e.Rand, seed); err != nil {
		return fault.Wrap(err, "draw randomness")
	}
	steps, err := b.Reseal(ctx, rec.Name, seed)
	var tell []audit.Statement
	c := e.cleaners.Formats()
	for _, st := range steps {
		if st.Err == "" {
			tell = append(tell, audit.ByKeeper(&format.Reseal{Step: st.Name, Detail: c.RecordText(st.Detail)}))
		}
	}
	if rerr := e.Book.Record(ctx, &rec, tell...); rerr != nil {
		return rerr
	}
	if fault.Is(err, fault.Conflict) && len(steps) == 0 {
		return nil // its gate is open: a daemon that was killed had come as far
	}
	if err != nil && len(steps) > 0 && steps[len(steps)-1].Err != "" {
		return &failed{steps[len(steps)-1].Name, err}
	}
	return err
}

// startAt lets the processes of a snapshot of the sandbox go on, which has no box, over that
// snapshot's files.
func (e *Engine) startAt(ctx context.Context, s *held, rec *meta.Sandbox, at timeline.SnapshotID) (Box, error) {
	h, err := e.Histories.History(ctx, rec)
	if err != nil {
		return nil, err
	}
	m, err := e.Images.Resumable(rec, h.Snapshots[at])
	if err != nil {
		return nil, err
	}
	img, err := e.Images.Ready(ctx, rec, at, m)
	if err != nil {
		return nil, err
	}
	if _, err = e.capture(ctx, s, rec,
		note{cause: timeline.CauseCheckout, message: "before its processes go on from memory"}); err == nil &&
		(rec.Head != at || e.presented(rec)) {
		err = e.reset(ctx, s, rec, at, nil)
	}
	if err != nil {
		img.Release()
		return nil, err
	}
	b, _, err := e.goOn(ctx, s, rec, img)
	return b, err
}

// goOn starts the box of a sandbox from a memory image, over the files of the same snapshot,
// and takes its commands up; it gives their ids. The image is released by it. The caller holds
// the lock; nothing passes the gate yet.
func (e *Engine) goOn(ctx context.Context, s *held, rec *meta.Sandbox, img *images.Image) (Box, []string, error) {
	b, enforced, err := e.startBox(ctx, s, rec, img)
	if err != nil {
		img.Release()
		return nil, nil, err
	}
	e.Images.ReleaseAfter(img, b.Gone())
	told := e.Book.Begin(ctx, rec, startRecord(enforced))
	e.watchPrograms(ctx, s, rec, b, told)
	ids, err := e.Commands.Adopt(ctx, commandHeld{e, s}, rec, b, img.Run)
	if err = errors.Join(told.Wait(), err); err != nil {
		return nil, nil, errors.Join(err, e.stopBox(ctx, s, 0))
	}
	ev := events.About(rec, wire.EventResumed)
	ev.Snapshot, ev.Detail = string(rec.Head), "from memory"
	e.Feed.Emit(ev)
	return b, ids, nil
}

// resealInside does what takes programs of the sandbox's own: SSH host keys, and its hooks.
func (e *Engine) resealInside(ctx context.Context, id string) error {
	keys, hooks, err := e.toReseal(ctx, id)
	if err != nil {
		return &failed{stepHooks, err}
	}
	if keys > 0 {
		if err := e.resealBy(ctx, id, stepSSH, fmt.Sprintf("%d keys", keys), keyTime, "/bin/sh", "-c",
			newHostKeys); err != nil {
			return err
		}
	}
	for _, h := range hooks {
		if err := e.resealBy(ctx, id, "hook", h, hookTime, h); err != nil {
			return err
		}
	}
	return nil
}

// toReseal counts the SSH host keys of a sandbox, and finds its hooks: files that can be
// executed, in the order of their names. Keys that its user may not read are passed over; that
// hooks may be there which nobody can read is an error.
func (e *Engine) toReseal(ctx context.Context, id string) (keys int, hooks []string, err error) {
	f, err := e.Files.Open(ctx, id)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	each := func(dir string, fn func(wire.FileInfo)) error { //nolint:contextcheck // the files have theirs
		list, err := f.List(f.Context(), dir, 1)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		for _, i := range list.Files {
			fn(i)
		}
		return err
	}
	err = each(sshDir, func(i wire.FileInfo) {
		if name := path.Base(i.Path); strings.HasPrefix(name, "ssh_host_") && strings.HasSuffix(name, "_key") {
			keys++
		}
	})
	if fault.Is(err, fault.Denied) {
		err = nil
	}
	err = errors.Join(err, each(hooksDir, func(i wire.FileInfo) {
		if isHook(i) {
			hooks = append(hooks, path.Join(hooksDir, path.Base(i.Path)))
		}
	}))
	slices.Sort(hooks)
	if err == nil && len(hooks) > maxHooks {
		err = fault.New(fault.Invalid, "%s has %d programs, more than %d", hooksDir, len(hooks), maxHooks)
	}
	return keys, hooks, err
}

// resealBy runs a command of the sandbox as a step, and records what came of it.
func (e *Engine) resealBy(ctx context.Context, id, step, detail string, limit int64, cmd ...string) error {
	out := new(tail.Client)
	exit, err := e.Commands.Exec(ctx, id, wire.ExecRequest{Cmd: cmd, Label: "reseal: " + detail, TimeoutMS: limit}, out)
	switch {
	case err != nil:
	case exit.Limit != "": // of the sandbox, which may be narrower than ours
		err = fault.New(fault.Conflict, "%s was ended: %s", detail, exit.Message)
	case exit.TimedOut:
		err = fault.New(fault.Conflict, "%s did not end in %d s", detail, limit/1000)
	case exit.Code != 0:
		err = fault.New(fault.Conflict, "%s ended with exit code %d: %s", detail, exit.Code,
			cmp.Or(tail.Lines(out.All()), exit.Message, "it has printed nothing"))
	}
	if err != nil {
		return &failed{step, err}
	}
	rec, err := e.DB.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	detail = e.cleaners.For(ctx, &rec).RecordText(detail)
	return e.Book.Record(ctx, &rec, audit.ByDaemon(&format.Reseal{Step: step, Detail: detail})...)
}

// isHook reports whether a file is one that can be executed.
func isHook(i wire.FileInfo) bool { return i.Type == "file" && i.Mode&0o111 != 0 }

// letOut opens the gate of a sandbox that is one of its own now.
func (e *Engine) letOut(ctx context.Context, id string) error {
	s, rec, err := e.acquire(ctx, id, "opening its gate")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	b := e.liveBox(s)
	if b == nil {
		return &failed{stepGate, fault.New(fault.Conflict, "its processes have ended meanwhile")}
	}
	if rec.Quarantine == nil {
		return nil
	}
	begun := false
	drafts := e.Book.Drafts(ctx, &rec, audit.ByDaemon(&format.Reseal{Step: stepGate, Detail: "open"})...)
	err = e.Book.Do(ctx, drafts, func(ctx context.Context) error {
		begun = true
		if err := b.Release(ctx); err != nil {
			return err
		}
		return e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error { r.Quarantine = nil; return nil })
	})
	if err != nil && begun {
		return &failed{stepGate, err}
	}
	return err
}

func wireQuarantine(q *meta.Quarantine) *wire.Quarantine {
	if q == nil {
		return nil
	}
	return &wire.Quarantine{Since: q.Since, Step: q.Step, Reason: q.Reason}
}
