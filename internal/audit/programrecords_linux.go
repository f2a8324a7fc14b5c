//go:build linux

package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// records returns the records of the programs in sum. It first stores the list of the programs that a record
// summarizes. b.mu is held.
func (b *BoxPrograms) records(ctx context.Context, rec *meta.Sandbox) (all []Statement, err error) {
	kept, err := b.programs.config.Evidence(ctx, rec)
	if err != nil {
		return nil, err
	}
	left, err := b.programs.config.Budgets.Of(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	c, now := b.programs.config.Book.Cleaners.For(ctx, rec), b.programs.config.Book.config.Now()
	var list bytes.Buffer
	lost, over := b.sum.Lost(), int64(0)
	var several []*format.Program
	for _, g := range b.sum.Groups() {
		body, by := groupRecord(c, g), format.ByKernel
		if g.Asked {
			by = format.BySandbox
		}
		if !left.Admit(now, by, body) {
			over += int64(len(g.Programs))
			continue
		}
		all = append(all, Statement{By: by, Body: body})
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
			case !left.Take(now, ClassLists, int64(len(line))):
				over++
			default:
				list.Write(append(line, '\n'))
			}
		}
	}
	if list.Len() > 0 {
		name, err := b.programs.config.Book.Ledger.WriteBlob(format.Sandbox(rec.ID), list.Bytes())
		if err != nil {
			return nil, err
		}
		for _, of := range several {
			of.List = name
		}
	}
	if lost > 0 {
		all = append(all,
			ByKeeper(&format.Lost{Count: lost, Of: string(format.KindProgram),
				Reason: "too many at a time to keep"}))
	}
	if b.short = lost+over > 0; over > 0 {
		all = append(all, ByKeeper(&format.Lost{Count: over, Of: string(format.KindProgram), Reason: BeyondBudget}))
	}
	if len(all) == 0 {
		return nil, nil
	}
	switch last := all[len(all)-1].Body.(type) {
	case *format.Program:
		last.Through = int64(b.after)
	case *format.Lost:
		last.Through = int64(b.after)
	}
	return all, nil
}

// groupRecord returns the record of a group, which has one program, or several that the record summarizes.
func groupRecord(c Cleaner, g ProgramGroup) *format.Program {
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

// counts returns 1 for a program that started in its interval, otherwise 0.
func counts(p *Program) int64 {
	if p.Earlier {
		return 0
	}
	return 1
}

// programRecord returns the record of one program.
func programRecord(c Cleaner, p *Program) *format.Program {
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
