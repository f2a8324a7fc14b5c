//go:build linux

package engine

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/redact"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Texts that are only shown, such as labels, are kept without secrets. What a command alone
// is given in its environment may turn up much later, in an address or the name of a file:
// so it is remembered, sealed, with the record of its sandbox.

// maxLearnt is how many bytes of variables of commands a sandbox remembers; the oldest are
// forgotten first.
const maxLearnt = 16 << 10

// learn remembers the secrets among the variables that a command is given.
func (e *Engine) learn(ctx context.Context, rec *meta.Sandbox, env []string) error {
	if len(unknown(rec, env)) == 0 {
		return nil
	}
	err := e.DB.UpdateSandbox(context.WithoutCancel(ctx), rec.ID, func(r *meta.Sandbox) error {
		r.Learnt = newest(append(slices.Clone(r.Learnt), unknown(r, env)...), maxLearnt)
		rec.Learnt = r.Learnt
		return nil
	})
	return fault.Wrap(err, "remember what is secret in sandbox %s", rec.Name)
}

// unknown gives the secrets among variables that the record of a sandbox has not.
func unknown(rec *meta.Sandbox, env []string) (out []string) {
	for _, kv := range env {
		if len(secretVariables([]string{kv})) > 0 && !slices.Contains(rec.Env, kv) && !slices.Contains(rec.Learnt, kv) && !slices.Contains(out, kv) {
			out = append(out, kv)
		}
	}
	return out
}

// newest gives the last of a list that have so many bytes together.
func newest(list []string, most int) []string {
	for i := len(list) - 1; i >= 0; i-- {
		if most -= len(list[i]); most < 0 {
			return list[i+1:]
		}
	}
	return list
}

// text gives a text of any length without secrets.
func (c cleaner) text(s string) string { return string(c.bytes([]byte(s))) }

// programs gives programs whose arguments have no secrets.
func (c cleaner) programs(list []wire.Program) []wire.Program {
	out := slices.Clone(list)
	for i := range out {
		out[i].Args = c.args(out[i].Args)
	}
	return out
}

// texts is text for each of a list.
func (c cleaner) texts(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = c.text(s)
	}
	return out
}

// labelOf is label.OfCommand without secrets.
func (e *Engine) labelOf(ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest) string {
	c := e.redactor(ctx, rec, req.Env...)
	return label.OfCommand(wire.ExecRequest{Label: c.text(req.Label), Cmd: c.args(req.Cmd)})
}

// noSecret refuses a name that has a secret in it: names are shown wherever something is
// told.
func (e *Engine) noSecret(ctx context.Context, rec *meta.Sandbox, what, name string) error {
	if e.redactor(ctx, rec).text(name) == name {
		return nil
	}
	return fault.New(fault.Invalid, "the %s has a secret in it", what).WithHint("choose another one")
}

// formats is redactor where no sandbox is meant: it knows the known formats.
func (e *Engine) formats() cleaner { return e.cleaners.get(e, redact.Options{}) }

// redactorFor is redactor for the message of a snapshot. What a person said of it is hers,
// but for known formats.
func (e *Engine) redactorFor(ctx context.Context, rec *meta.Sandbox, cause timeline.Cause) cleaner {
	if cause == timeline.CauseManual || cause == timeline.CauseMark {
		return e.formats()
	}
	return e.redactor(ctx, rec)
}

// autoLabelOf is label.Auto without secrets.
func (e *Engine) autoLabelOf(ctx context.Context, rec *meta.Sandbox, mark string, programs []wire.Program, paths []string) string {
	c := e.redactor(ctx, rec)
	if cmds := c.programs(programs); mark != "" || len(label.Commands(cmds)) > 0 {
		return label.Auto(mark, cmds, nil)
	}
	return label.Auto("", nil, c.texts(paths))
}
