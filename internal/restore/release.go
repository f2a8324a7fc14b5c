//go:build linux

package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// HooksDir holds the programs of a sandbox that re-key what Coppice does not know about in a fork. They run in the
// order of their names.
const HooksDir = "/etc/coppice/on-fork.d"

// SSHDir holds the SSH host keys of a sandbox.
const SSHDir = "/etc/ssh"

const (
	// hookTime is the time limit of each hook, and keyTime that of all SSH host keys, in milliseconds.
	hookTime = 30_000
	keyTime  = 120_000
)

// Steps of a release that the box does not perform, as meta.Quarantine and the audit log name them.
const (
	StepStart = "start"
	StepSSH   = "ssh-host-keys"
	StepHook  = "hook"  // a single hook
	StepHooks = "hooks" // finding the hooks
	StepGate  = "gate"
)

// newHostKeys replaces the existing SSH host keys by new ones of the same types. Keys that the sandbox's user may not
// read, such as those of the host that is its base, do not identify the sandbox.
const newHostKeys = `for k in /etc/ssh/ssh_host_*_key; do
	[ -r "$k" ] || continue
	t=${k##*/ssh_host_}
	rm -f -- "$k" "$k.pub" && ssh-keygen -q -N '' -t "${t%_key}" -f "$k" || exit
done`

// failed is the error of a step.
type failed struct {
	step string
	err  error
}

func (f *failed) Error() string { return f.step + ": " + f.err.Error() }
func (f *failed) Unwrap() error { return f.err }

// claim reserves the release of a sandbox for the caller until unclaim. It returns false if another caller
// has reserved it.
func (r *Restorer) claim(id timeline.SandboxID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.releasing[id] {
		return false
	}
	r.releasing[id] = true
	return true
}

func (r *Restorer) unclaim(id timeline.SandboxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.releasing, id)
}

// Release re-keys a quarantined sandbox and ends its quarantine: its processes resume, it gets its own identity, and
// its gate opens. A failure is recorded, also in the quarantine. A sandbox that is not quarantined is not changed. It
// returns a Conflict if another caller is releasing the sandbox.
func (r *Restorer) Release(ctx context.Context, name string) error {
	ctx = context.WithoutCancel(ctx) // a client that disconnects must not interrupt it
	rec, err := r.config.Records.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	if !r.claim(rec.ID) {
		return fault.New(fault.Conflict, "sandbox %s is already being re-keyed", rec.Name).
			WithHint("wait, then see the result: coppice status %s", rec.Name)
	}
	defer r.unclaim(rec.ID)
	id := string(rec.ID)
	if rec, err = r.config.Records.Sandbox(ctx, id); err != nil || rec.Quarantine == nil {
		return err
	}
	b, err := r.seclude(ctx, id)
	if err == nil && b != nil {
		err = r.rekeyInside(ctx, id)
	}
	if err == nil && b != nil {
		err = r.letOut(ctx, id, b)
	}
	if err == nil {
		return nil
	}
	f := &failed{step: StepStart, err: err}
	errors.As(err, &f)
	return errors.Join(fault.Wrap(err, "re-key sandbox %s", rec.Name), r.noteQuarantine(ctx, id, f))
}

// noteQuarantine records why a sandbox stays quarantined.
func (r *Restorer) noteQuarantine(ctx context.Context, id string, f *failed) error {
	s, rec, err := r.config.Sandboxes.Acquire(ctx, id, "recording a failure")
	if err != nil {
		return err
	}
	defer s.Unlock()
	reason := r.config.Cleaners.For(ctx, &rec).RecordText(f.err.Error())
	err = r.config.Records.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error {
		if r.Quarantine != nil {
			q := *r.Quarantine
			q.Step, q.Reason = f.step, reason
			r.Quarantine = &q
		}
		return nil
	})
	r.config.Recorder.Note(ctx, &rec, audit.ByDaemon(&format.Rekey{Step: f.step, Error: reason})...)
	return err
}

// seclude resumes the processes of a quarantined sandbox unless they run, and gives their box its own
// identity. It returns the box; nil if the sandbox is not quarantined.
func (r *Restorer) seclude(ctx context.Context, id string) (Box, error) {
	s, rec, err := r.config.Sandboxes.Acquire(ctx, id, "resuming from memory")
	if err != nil {
		return nil, err
	}
	defer s.Unlock()
	if rec.Quarantine == nil {
		return nil, nil
	}
	b := s.Box()
	if b == nil {
		if b, err = r.startAt(ctx, s, &rec, rec.Quarantine.At); err != nil {
			return nil, &failed{StepStart, err}
		}
	}
	seed := make([]byte, 32)
	if _, err := io.ReadFull(r.config.Rand, seed); err != nil {
		return nil, fault.Wrap(err, "read random bytes")
	}
	steps, err := b.Rekey(ctx, rec.Name, seed)
	var tell []audit.Statement
	c := r.config.Cleaners.Formats()
	for _, st := range steps {
		if st.Err == "" {
			tell = append(tell, audit.ByKeeper(&format.Rekey{Step: st.Name, Detail: c.RecordText(st.Detail)}))
		}
	}
	if rerr := r.config.Recorder.Record(ctx, &rec, tell...); rerr != nil {
		return nil, rerr
	}
	if fault.Is(err, fault.Conflict) && len(steps) == 0 {
		return b, nil // the gate is open: a killed daemon had opened it
	}
	if err != nil && len(steps) > 0 && steps[len(steps)-1].Err != "" {
		return nil, &failed{steps[len(steps)-1].Name, err}
	}
	return b, err
}

// rekeyInside performs the steps that need programs of the sandbox: SSH host keys, and its hooks.
func (r *Restorer) rekeyInside(ctx context.Context, id string) error {
	keys, hooks, err := r.toRekey(ctx, id)
	if err != nil {
		return &failed{StepHooks, err}
	}
	if keys > 0 {
		err := r.rekeyBy(ctx, id, StepSSH, fmt.Sprintf("%d keys", keys), keyTime, "/bin/sh", "-c", newHostKeys)
		if err != nil {
			return err
		}
	}
	for _, h := range hooks {
		if err := r.rekeyBy(ctx, id, StepHook, h, hookTime, h); err != nil {
			return err
		}
	}
	return nil
}

// toRekey returns the number of SSH host keys of a sandbox, and its hooks: executable files, in the order of their
// names. Keys that its user may not read are skipped. A directory of hooks that cannot be read is an error, since it
// may contain hooks.
func (r *Restorer) toRekey(ctx context.Context, id string) (keys int, hooks []string, err error) {
	f, err := r.config.Sandboxes.Files(ctx, id)
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
	err = each(SSHDir, func(i wire.FileInfo) {
		if name := path.Base(i.Path); strings.HasPrefix(name, "ssh_host_") && strings.HasSuffix(name, "_key") {
			keys++
		}
	})
	if fault.Is(err, fault.Denied) {
		err = nil
	}
	err = errors.Join(err, each(HooksDir, func(i wire.FileInfo) {
		if isHook(i) {
			hooks = append(hooks, path.Join(HooksDir, path.Base(i.Path)))
		}
	}))
	slices.Sort(hooks)
	if err == nil && len(hooks) > limit.RekeyHooks {
		err = fault.New(fault.Invalid, "too many programs in %s: %d; the limit is %d", HooksDir, len(hooks),
			limit.RekeyHooks).WithHint("combine them: coppice exec SANDBOX -- ls %s", HooksDir)
	}
	return keys, hooks, err
}

// rekeyBy runs a command of the sandbox as a step, and records the result. most is its time limit, in
// milliseconds; it has less if the deadline of ctx is earlier. The end of ctx does not interrupt a command that runs.
func (r *Restorer) rekeyBy(ctx context.Context, id, step, detail string, most int64, cmd ...string) error {
	if ctx.Err() != nil {
		return &failed{step, context.Cause(ctx)}
	}
	if end, ok := ctx.Deadline(); ok {
		most = max(1, min(most, time.Until(end).Milliseconds()+1))
	}
	out := new(tail.Client)
	req := wire.ExecRequest{Cmd: cmd, Label: "rekey: " + detail, TimeoutMS: most, Capture: wire.Capture{Off: true}}
	exit, err := r.config.Sandboxes.Exec(context.WithoutCancel(ctx), id, req, out)
	switch {
	case err != nil:
	case exit.Limit != "": // a limit of the sandbox, which may be stricter
		err = fault.New(fault.Conflict, "%s was killed: %s", detail, exit.Message)
	case exit.TimedOut:
		err = fault.New(fault.Conflict, "%s did not exit within %d s", detail, (most+999)/1000)
	case exit.Code != 0:
		err = fault.New(fault.Conflict, "%s failed with exit code %d: %s", detail, exit.Code,
			cmp.Or(tail.Lines(out.All()), exit.Message, "no output"))
	}
	if err != nil {
		return &failed{step, err}
	}
	rec, err := r.config.Records.Sandbox(ctx, id)
	if err != nil {
		return err
	}
	detail = r.config.Cleaners.For(ctx, &rec).RecordText(detail)
	return r.config.Recorder.Record(ctx, &rec, audit.ByDaemon(&format.Rekey{Step: step, Detail: detail})...)
}

// isHook reports whether a file is an executable regular file.
func isHook(i wire.FileInfo) bool { return i.Type == "file" && i.Mode&0o111 != 0 }

// letOut opens the gate of a sandbox whose box rekeyed is re-keyed. While the hooks ran, without the lock, the
// sandbox may have been rewound to other memory, in a box that is not re-keyed.
func (r *Restorer) letOut(ctx context.Context, id string, rekeyed Box) error {
	s, rec, err := r.config.Sandboxes.Acquire(ctx, id, "opening its gate")
	if err != nil {
		return err
	}
	defer s.Unlock()
	b := s.Box()
	if b == nil {
		return &failed{StepGate, fault.New(fault.Conflict, "its processes exited meanwhile")}
	}
	if rec.Quarantine == nil {
		return nil
	}
	if b != rekeyed {
		return &failed{StepGate, fault.New(fault.Conflict, "its processes were replaced meanwhile").
			WithHint("re-key the current ones: coppice process resume %s", rec.Name)}
	}
	begun := false
	book := r.config.Recorder
	drafts := book.Drafts(ctx, &rec, audit.ByDaemon(&format.Rekey{Step: StepGate, Detail: "open"})...)
	err = book.Do(ctx, drafts, func(ctx context.Context) error {
		begun = true
		if err := b.Release(ctx); err != nil {
			return err
		}
		return r.config.Records.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { r.Quarantine = nil; return nil })
	})
	if err != nil && begun {
		return &failed{StepGate, err}
	}
	return err
}
