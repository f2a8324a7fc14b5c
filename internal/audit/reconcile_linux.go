//go:build linux

package audit

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A crash may happen between a record and the operation that it states. A power loss may revert what the database
// had, but not the ledger, which is flushed with every record. So when a daemon starts, a Book compares the two, from
// the position in the log up to which they are known to agree. That position is a setting of the database: if older
// transactions were lost, it would be lost with them.

// settingAgreed is the setting with the number of records up to which all were compared with what happened, and with
// the commands that were open at that position.
const settingAgreed = "ledger_agreed"

// OpenCommand is a command that was started and whose exit is not recorded.
type OpenCommand struct {
	ID      string              `json:"id"`
	Sandbox timeline.SandboxID  `json:"sandbox"`
	Seq     int64               `json:"seq,omitempty"` // of the record of its start; 0: unknown
	At      time.Time           `json:"at"`
	Before  timeline.SnapshotID `json:"before,omitempty"` // HEAD at its start; "": unknown
	Paths   int                 `json:"paths,omitempty"`  // paths captured since its start
}

// Agree stores that all records so far state what happened. It does nothing while a Do is in progress or records are
// late, or if Reconcile has not succeeded; then the next daemon compares them.
func (b *Book) Agree(ctx context.Context) error {
	b.mu.Lock()
	late := len(b.late) > 0 // a late record may say that an operation did not happen
	b.mu.Unlock()
	if late || !b.compared.Load() {
		return nil
	}
	size, err := b.Ledger.Size(ctx)
	if err != nil || b.doing.Load() != 0 || size == b.agreed.Load() {
		return err
	}
	// Read after the size, so that commands that start in between are read again.
	open, err := json.Marshal(b.config.Commands.Open())
	if err != nil {
		return err
	}
	if err := b.config.Store.SetSetting(ctx, settingAgreed, strconv.FormatInt(size, 10)+" "+string(open)); err != nil {
		return err
	}
	b.agreed.Store(size)
	return nil
}

// Reconcile records which operations in the audit log did not happen, and what happened and was not recorded. It is
// called once, before Do and Begin.
func (b *Book) Reconcile(ctx context.Context) error {
	if err := b.recordFreed(ctx); err != nil {
		return err
	}
	text, err := b.config.Store.Setting(ctx, settingAgreed)
	if err != nil {
		return err
	}
	from := b.readAgreed(text)
	size, err := b.Ledger.Size(ctx)
	if err != nil {
		return err
	}
	if from != size {
		if err := b.reconcileFrom(ctx, from); err != nil {
			return err
		}
	}
	if err := b.endGone(ctx); err != nil {
		return err
	}
	b.compared.Store(true)
	return b.Agree(ctx)
}

// readAgreed parses settingAgreed: the position up to which everything is compared, and the commands that were open
// there. A damaged setting counts as none.
func (b *Book) readAgreed(text string) (from int64) {
	size, open, _ := strings.Cut(text, " ")
	from, err := strconv.ParseInt(size, 10, 64)
	var all []OpenCommand
	if err != nil || open != "" && json.Unmarshal([]byte(open), &all) != nil {
		return 0
	}
	for _, c := range all {
		b.config.Commands.Found(c)
	}
	return from
}

func (b *Book) reconcileFrom(ctx context.Context, from int64) error {
	var one *tale
	var out []ledger.Draft
	end := func() error {
		if one == nil {
			return nil
		}
		more, err := b.untrue(ctx, one)
		out = append(out, more...)
		return err
	}
	for r, err := range b.Ledger.After(ctx, from) {
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
		b.config.Commands.Hear(r)
	}
	if err := end(); err != nil {
		return err
	}
	_, err := b.Append(ctx, out...)
	return err
}

// endGone records the exits of the commands of removed sandboxes, if the removal was interrupted before that.
func (b *Book) endGone(ctx context.Context) error {
	for _, c := range b.config.Commands.Open() {
		_, err := b.config.Store.Sandbox(ctx, string(c.Sandbox))
		if !fault.Is(err, fault.NotFound) {
			if err != nil {
				return err
			}
			continue
		}
		for r, err := range b.Ledger.Read(ctx, format.Sandbox(c.Sandbox), ledger.Filter{From: max(1, c.Seq), Limit: 1}) {
			if err != nil {
				return err
			}
			b.noteDrafts(ctx, ledger.Draft{
				Sandbox: r.Sandbox, Name: r.Name, Observer: format.ByDaemon, Policy: r.Policy, Tier: r.Tier,
				Body: &format.Exit{
					Exec: c.ID, Code: 128 + 9, Signal: "KILL", Reason: RemovedMeanwhile, Before: string(c.Before),
					DurationNanos: max(0, b.config.Now().Sub(c.At).Nanoseconds()),
				},
			})
		}
		b.config.Commands.Settle(c)
	}
	return nil
}

// RemovedMeanwhile is the reason of the exit of a command whose sandbox was removed.
const RemovedMeanwhile = "the sandbox was removed while the command ran"

// tale is the state of a sandbox according to its newest records, except those that are recorded as undone.
type tale struct {
	last      *format.Record // of any kind
	created   *format.Record
	deleted   bool
	gone      map[string]bool // snapshots that were removed
	forks     []*format.Record
	snapshots []*format.Record
	moved     *format.Record // the newest that moved HEAD: a snapshot, or a rollback
	rulings   []ruling
	applied   []*format.Record
	labelled  []*format.Record // kinds create and labels
}

func (t *tale) hear(r *format.Record) {
	t.last = r
	switch said := r.Body.(type) {
	case *format.Create:
		t.created, t.moved, t.labelled = r, r, append(t.labelled, r)
	case *format.Delete:
		t.deleted = true
	case *format.Drop:
		if t.gone == nil {
			t.gone = map[string]bool{}
		}
		for _, id := range said.Snapshots {
			t.gone[id] = true
		}
	case *format.Fork:
		t.forks = append(t.forks, r)
	case *format.Snapshot:
		t.snapshots, t.moved = append(t.snapshots, r), r
	case *format.Rollback:
		t.moved = r
	case *format.Policy:
		t.hearRuling(r, said)
	case *format.Approval:
		t.hearAnswer(r)
	case *format.Apply:
		t.applied = append(t.applied, r)
	case *format.Labels:
		t.labelled = append(t.labelled, r)
	case *format.Undone:
		is := func(o *format.Record) bool { return o.Seq == said.Seq }
		t.forks, t.snapshots, t.applied = slices.DeleteFunc(t.forks, is), slices.DeleteFunc(t.snapshots, is),
			slices.DeleteFunc(t.applied, is)
		t.labelled = slices.DeleteFunc(t.labelled, is)
		t.hearUndone(said.Seq)
		for _, one := range []**format.Record{&t.created, &t.moved} {
			if *one != nil && is(*one) {
				*one = nil
			}
		}
	}
}

// untrue returns an undone record for each record of a tale whose operation did not happen.
func (b *Book) untrue(ctx context.Context, t *tale) (out []ledger.Draft, err error) {
	if t.deleted || t.last.Sandbox == format.Host {
		return nil, nil
	}
	no := func(r *format.Record, why string) {
		out = append(out,
			ledger.Draft{Sandbox: t.last.Sandbox, Name: t.last.Name, Observer: format.ByDaemon, Policy: t.last.Policy,
				Tier: t.last.Tier, Body: &format.Undone{Seq: r.Seq, Reason: why}})
	}
	rec, err := b.config.Store.Sandbox(ctx, string(t.last.Sandbox))
	if fault.Is(err, fault.NotFound) {
		if t.created != nil {
			no(t.created, "the sandbox was not found after a crash")
		}
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range t.forks {
		child := r.Body.(*format.Fork).Child
		there, err := b.wasMade(ctx, child)
		if err != nil {
			return nil, err
		}
		if !there {
			no(r, "the fork was not found after a crash")
		}
	}
	for _, r := range t.snapshots {
		id := r.Body.(*format.Snapshot).Snapshot
		if t.gone[id] {
			continue
		}
		there, err := b.config.Store.HasSnapshot(ctx, timeline.SnapshotID(id))
		if err != nil {
			return nil, err
		}
		if !there {
			no(r, "the snapshot was not found after a crash")
		}
	}
	if r := t.moved; r != nil {
		if to, ok := r.Body.(*format.Rollback); ok && to.To != string(rec.Head) {
			no(r, "HEAD was at another snapshot after a crash")
		}
	}
	for _, r := range t.applied {
		if b.config.NeverApplied(ctx, &rec, r.Body.(*format.Apply)) {
			no(r, "the branch was not found after a crash")
		}
	}
	for _, r := range t.unmade(rec.PolicyRecord) {
		no(r.record, "the policy was not in force after a crash")
	}
	for _, r := range unlabelled(t.labelled, b.Cleaners.Formats().Labels(rec.Labels)) {
		no(r, "the labels were not stored after a crash")
	}
	return out, nil
}

// wasMade reports whether a sandbox exists, or existed.
func (b *Book) wasMade(ctx context.Context, id string) (bool, error) {
	_, err := b.config.Store.Sandbox(ctx, id)
	if !fault.Is(err, fault.NotFound) {
		return err == nil, err
	}
	for r, err := range b.Ledger.Read(ctx, format.Sandbox(id),
		ledger.Filter{Kinds: []format.Kind{format.KindDelete}, Limit: 1}) {
		return r != nil, err
	}
	return false, nil
}
