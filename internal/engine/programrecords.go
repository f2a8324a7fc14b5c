//go:build linux

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// programRecords makes records of the programs in sum. The list of the programs that one record
// sums up is stored first. p.mu is held.
func (e *Engine) programRecords(ctx context.Context, rec *meta.Sandbox, p *boxPrograms) (tell []audit.Statement, err error) {
	kept, err := e.Policies.Evidence(ctx, rec)
	if err != nil {
		return nil, err
	}
	left, err := e.budgets.Of(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	c, now := e.cleaners.For(ctx, rec), e.Now()
	var list bytes.Buffer
	lost, over := p.sum.Lost(), int64(0)
	var several []*format.Program
	for _, g := range p.sum.Groups() {
		body, by := groupRecord(c, g), format.ByKernel
		if g.Asked {
			by = format.BySandbox
		}
		if !left.Admit(now, by, body) {
			over += int64(len(g.Programs))
			continue
		}
		tell = append(tell, audit.Statement{By: by, Body: body})
		if len(g.Programs) == 1 {
			continue
		}
		several = append(several, body)
		for _, one := range g.Programs {
			if kept.Programs.Value != policy.ProgramsAll {
				break
			}
			line, err := json.Marshal(programRecord(c, one))
			switch {
			case err != nil || list.Len()+len(line) >= format.MaxBlob:
				lost++
			case !left.Take(now, audit.ClassLists, int64(len(line))):
				over++
			default:
				list.Write(append(line, '\n'))
			}
		}
	}
	if list.Len() > 0 {
		name, err := e.Ledger.WriteBlob(format.Sandbox(rec.ID), list.Bytes())
		if err != nil {
			return nil, err
		}
		for _, b := range several {
			b.List = name
		}
	}
	if lost > 0 {
		tell = append(tell,
			audit.ByKeeper(&format.Lost{Count: lost, Of: string(format.KindProgram),
				Reason: "there were more at a time than are kept"}))
	}
	if p.short = lost+over > 0; over > 0 {
		tell = append(tell, audit.ByKeeper(&format.Lost{Count: over, Of: string(format.KindProgram), Reason: audit.BeyondBudget}))
	}
	if len(tell) == 0 {
		return nil, nil
	}
	switch b := tell[len(tell)-1].Body.(type) {
	case *format.Program:
		b.Through = int64(p.after)
	case *format.Lost:
		b.Through = int64(p.after)
	}
	return tell, nil
}

// groupRecord is the record of a group: of one program, or of several that it sums up.
func groupRecord(c audit.Cleaner, g audit.ProgramGroup) *format.Program {
	first := programRecord(c, g.Programs[0])
	if len(g.Programs) == 1 {
		return first
	}
	body := &format.Program{Exec: g.Exec, Path: c.RecordText(g.Exe), Started: first.Started}
	for _, one := range g.Programs {
		body.Count += counts(one)
		body.DurationNanos += one.Took().Nanoseconds()
		if one.Failed() {
			body.Failed++
		}
	}
	return body
}

// counts is 1 for a program that began in its interval.
func counts(p *audit.Program) int64 {
	if p.Earlier {
		return 0
	}
	return 1
}

// programRecord is the record of one program.
func programRecord(c audit.Cleaner, p *audit.Program) *format.Program {
	args := c.RecordArgs(p.Args)
	if p.Cut != 0 {
		args = append(args, "...")
	}
	b := &format.Program{
		Args: args, Count: counts(p), Dir: c.RecordText(p.Dir), DurationNanos: p.Took().Nanoseconds(), Exec: p.Exec,
		Parent: int64(p.PPID), Path: c.RecordText(p.Exe), PID: int64(p.PID),
		Started: p.Started.UTC().Format(time.RFC3339Nano),
	}
	if p.Failed() {
		b.Code, b.Failed = p.End.Code, 1
	}
	return b
}
