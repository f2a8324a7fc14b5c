//go:build linux

package engine

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A crash can come between a record and what it tells, and a power loss can take back what
// the database had and not the ledger, which is flushed with every record. So the engine
// compares the two when it begins, from the place of the log on up to which they are known
// to agree. That place is a setting of the database: were transactions of before it lost,
// it would be lost with them.

// settingAgreed is the setting with the number of records up to which every one was
// compared with what came about.
const settingAgreed = "ledger_agreed"

// agree notes that all records so far tell what came about, unless something is being done.
func (e *Engine) agree(ctx context.Context) error {
	size, err := e.Ledger.Size(ctx)
	if err != nil || e.doing.Load() != 0 || size == e.agreed.Load() {
		return err
	}
	open, err := json.Marshal(e.commands.noted()) // after the size: what begins since is read again
	if err != nil {
		return err
	}
	if err := e.DB.SetSetting(ctx, settingAgreed, strconv.FormatInt(size, 10)+" "+string(open)); err != nil {
		return err
	}
	e.agreed.Store(size)
	return nil
}

// reconcile tells in the ledger what of it did not come about, and what did and was not
// told.
func (e *Engine) reconcile(ctx context.Context) error {
	if err := e.payDebts(ctx); err != nil {
		return err
	}
	text, err := e.DB.Setting(ctx, settingAgreed)
	if err != nil {
		return err
	}
	from := e.readAgreed(text)
	size, err := e.Ledger.Size(ctx)
	if err != nil {
		return err
	}
	if from != size {
		if err := e.reconcileFrom(ctx, from); err != nil {
			return err
		}
	}
	if err := e.endGone(ctx); err != nil {
		return err
	}
	return e.agree(ctx)
}

// readAgreed reads the setting: up to where all is compared, and which commands were open
// there. One that is damaged is as good as none.
func (e *Engine) readAgreed(text string) (from int64) {
	size, open, _ := strings.Cut(text, " ")
	from, err := strconv.ParseInt(size, 10, 64)
	var all []notedCommand
	if err != nil || open != "" && json.Unmarshal([]byte(open), &all) != nil {
		return 0
	}
	for _, c := range all {
		e.commands.replace(foundCommand(c))
	}
	return from
}

func (e *Engine) reconcileFrom(ctx context.Context, from int64) error {
	var one *tale
	var out []ledger.Draft
	end := func() error {
		if one == nil {
			return nil
		}
		more, err := e.untrue(ctx, one)
		out = append(out, more...)
		return err
	}
	for r, err := range e.Ledger.After(ctx, from) {
		if err != nil {
			return err
		}
		if one == nil || one.last.Sandbox != r.Sandbox {
			if err := end(); err != nil {
				return err
			}
			one = &tale{}
		}
		one.hear(r)
		e.commands.hear(r)
	}
	if err := end(); err != nil {
		return err
	}
	_, err := e.write(ctx, out)
	return err
}

// tale is what the newest records of a sandbox tell of its state, but for those that are
// told to be undone.
type tale struct {
	last      *format.Record // whatever it is
	created   *format.Record
	deleted   bool
	gone      map[string]bool // snapshots that were dropped
	forks     []*format.Record
	snapshots []*format.Record
	moved     *format.Record // the newest that moved HEAD: of a snapshot, or a rollback
	policy    *format.Record
	applied   []*format.Record
}

func (t *tale) hear(r *format.Record) {
	t.last = r
	switch b := r.Body.(type) {
	case *format.Create:
		t.created, t.moved = r, r
	case *format.Delete:
		t.deleted = true
	case *format.Drop:
		if t.gone == nil {
			t.gone = map[string]bool{}
		}
		for _, id := range b.Snapshots {
			t.gone[id] = true
		}
	case *format.Fork:
		t.forks = append(t.forks, r)
	case *format.Snapshot:
		t.snapshots, t.moved = append(t.snapshots, r), r
	case *format.Rollback:
		t.moved = r
	case *format.Policy:
		t.policy = r
	case *format.Apply:
		t.applied = append(t.applied, r)
	case *format.Undone:
		is := func(o *format.Record) bool { return o.Seq == b.Seq }
		t.forks, t.snapshots, t.applied = slices.DeleteFunc(t.forks, is), slices.DeleteFunc(t.snapshots, is),
			slices.DeleteFunc(t.applied, is)
		for _, one := range []**format.Record{&t.created, &t.moved, &t.policy} {
			if *one != nil && is(*one) {
				*one = nil
			}
		}
	}
}

// untrue gives records of what a tale tells and is not so.
func (e *Engine) untrue(ctx context.Context, t *tale) (out []ledger.Draft, err error) {
	if t.deleted || t.last.Sandbox == format.Host {
		return nil, nil
	}
	tell := func(b format.Body) {
		out = append(out,
			ledger.Draft{Sandbox: t.last.Sandbox, Name: t.last.Name, Observer: format.ByDaemon, Policy: t.last.Policy,
				Tier: t.last.Tier, Body: b})
	}
	no := func(r *format.Record, why string) { tell(&format.Undone{Seq: r.Seq, Reason: why}) }
	rec, err := e.DB.Sandbox(ctx, string(t.last.Sandbox))
	if fault.Is(err, fault.NotFound) {
		if t.created != nil {
			no(t.created, "the sandbox is not there after a crash")
		}
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range t.forks {
		child := r.Body.(*format.Fork).Child
		there, err := e.wasMade(ctx, child)
		if err != nil {
			return nil, err
		}
		if !there {
			no(r, "the fork is not there after a crash")
		}
	}
	for _, r := range t.snapshots {
		id := r.Body.(*format.Snapshot).Snapshot
		if t.gone[id] {
			continue
		}
		there, err := e.DB.HasSnapshot(ctx, timeline.SnapshotID(id))
		if err != nil {
			return nil, err
		}
		if !there {
			no(r, "the snapshot is not there after a crash")
		}
	}
	if r := t.moved; r != nil {
		if b, ok := r.Body.(*format.Rollback); ok && b.To != string(rec.Head) {
			no(r, "HEAD was elsewhere after a crash")
		}
	}
	for _, r := range t.applied {
		if e.neverApplied(ctx, &rec, r.Body.(*format.Apply)) {
			no(r, "the branch was never there, after a crash")
		}
	}
	if r := t.policy; r != nil {
		all, err := e.Policies.Phases(ctx, &rec)
		if err != nil {
			return nil, err
		}
		b := r.Body.(*format.Policy)
		if b.Until == "" && !slices.ContainsFunc(all, func(p Phase) bool { return p.Digest == b.After }) {
			no(r, "the policy is not in force after a crash")
		}
	}
	return out, nil
}

// wasMade reports whether there is, or was, a sandbox.
func (e *Engine) wasMade(ctx context.Context, id string) (bool, error) {
	_, err := e.DB.Sandbox(ctx, id)
	if !fault.Is(err, fault.NotFound) {
		return err == nil, err
	}
	for r, err := range e.Ledger.Read(ctx, format.Sandbox(id),
		ledger.Filter{Kinds: []format.Kind{format.KindDelete}, Limit: 1}) {
		return r != nil, err
	}
	return false, nil
}

// What makes room is not refused because there is none to tell of it. It is done first,
// and told before anybody is answered; that it is to be told is noted before, so that a
// crash in between changes nothing.

// intentTell is written before something is taken away that is told afterwards.
const intentTell = "tell"

// debt is what is to be told.
type debt struct {
	Sandbox   timeline.SandboxID    `json:"sandbox"` // or format.Host
	Name      string                `json:"name"`
	Policy    string                `json:"policy,omitempty"`
	Tier      string                `json:"tier,omitempty"`
	Removed   bool                  `json:"removed,omitempty"` // the sandbox is taken away
	Snapshots []timeline.SnapshotID `json:"snapshots,omitempty"`
	Reason    string                `json:"reason,omitempty"` // of Snapshots
}

func (e *Engine) debtOf(ctx context.Context, rec *meta.Sandbox) debt {
	d := e.drafts(ctx, rec, testimony{})[0]
	return debt{Sandbox: rec.ID, Name: rec.Name, Policy: d.Policy, Tier: d.Tier}
}

func (d debt) drafts() (out []ledger.Draft) {
	tell := dropRecords(d.Reason, d.Snapshots)
	if d.Removed {
		tell = append(tell, byDaemon(&format.Delete{Sandbox: string(d.Sandbox)})...)
	}
	for _, s := range tell {
		out = append(out,
			ledger.Draft{Sandbox: format.Sandbox(d.Sandbox), Name: d.Name, Observer: s.by, Policy: d.Policy,
				Tier: d.Tier, Body: s.body})
	}
	return out
}

// owe notes that something is to be told once it was done. pay tells it, unless it was not
// done because of an error, which it gives back.
func (e *Engine) owe(ctx context.Context, d debt) (pay func(error) error, err error) {
	if !d.Removed && len(d.Snapshots) == 0 {
		return func(cause error) error { return cause }, nil
	}
	intent, err := e.DB.BeginIntent(ctx, intentTell, d)
	if err != nil {
		return nil, err
	}
	return func(cause error) error {
		ctx := context.WithoutCancel(ctx)
		if cause == nil {
			_, cause = e.write(ctx, d.drafts())
			if cause != nil {
				return fault.Wrap(cause, "it is done, and will be in the ledger when there is room again")
			}
		}
		if err := e.DB.EndIntent(ctx, intent); err != nil {
			e.Logger.Warn("what was told may be told again", "sandbox", d.Name, "err", err)
		}
		return cause
	}, nil
}

// payDebts tells what was done before a crash and not told.
func (e *Engine) payDebts(ctx context.Context) error {
	ints, err := e.DB.Intents(ctx)
	if err != nil {
		return err
	}
	for _, in := range ints {
		if in.Kind != intentTell {
			continue
		}
		var d debt
		if err := in.Decode(&d); err != nil {
			return err
		}
		if d, err = e.done(ctx, d); err != nil {
			return err
		}
		if _, err := e.write(ctx, d.drafts()); err != nil {
			return err
		}
		if err := e.DB.EndIntent(ctx, in.ID); err != nil {
			return err
		}
	}
	return nil
}

// done is what of a debt was done.
func (e *Engine) done(ctx context.Context, d debt) (debt, error) {
	if d.Removed {
		_, err := e.DB.Sandbox(ctx, string(d.Sandbox))
		if d.Removed = fault.Is(err, fault.NotFound); err != nil && !d.Removed {
			return d, err
		}
	}
	var gone []timeline.SnapshotID
	for _, id := range d.Snapshots {
		there, err := e.DB.HasSnapshot(ctx, id)
		if err != nil {
			return d, err
		}
		if !there {
			gone = append(gone, id)
		}
	}
	d.Snapshots = gone
	return d, nil
}
