//go:build linux

package engine

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/repo"
)

// maxTold is how many files that are in no commit are told of.
const maxTold = 1000

// GitDiff tells how the files of a sandbox differ from what it began with in its
// repository.
func (e *Engine) GitDiff(ctx context.Context, name string, req wire.GitDiffRequest) (out wire.GitDiff, err error) {
	c, err := e.collectedAs(ctx, name, req.Work)
	if err != nil {
		return out, err
	}
	return c.diff(ctx, req)
}

// diff is GitDiff of what was collected.
func (c *collected) diff(ctx context.Context, req wire.GitDiffRequest) (out wire.GitDiff, err error) {
	opt, err := c.compared(req)
	if err != nil {
		return out, err
	}
	changes, err := c.repo.Diff(ctx, opt)
	if err != nil {
		return out, err
	}
	marks, err := c.repo.Marks(ctx, changes)
	if err != nil {
		return out, err
	}
	return wire.GitDiff{Repo: *wireRepo(c.rec.Repo), Start: string(c.start), Tip: string(c.tip), Work: string(c.work),
		Snapshot: string(c.snapshot), Commits: c.commits,
		Changes: wireChanges(changes), Marks: wireMarks(marks, func(repo.Mark) bool { return false }),
		Skipped: wireSkipped(c.skipped)}, nil
}

// GitPatch writes the same as a patch that git applies. Names in it have no control bytes;
// contents are as they are.
func (e *Engine) GitPatch(ctx context.Context, name string, req wire.GitDiffRequest, w io.Writer) error {
	c, err := e.collectedAs(ctx, name, req.Work)
	if err != nil {
		return err
	}
	return c.patch(ctx, req, w)
}

// patch is GitPatch of what was collected.
func (c *collected) patch(ctx context.Context, req wire.GitDiffRequest, w io.Writer) error {
	opt, err := c.compared(req)
	if err != nil {
		return err
	}
	return c.repo.Patch(ctx, opt, w)
}

// compared says what of a sandbox is compared, and how.
func (c *collected) compared(req wire.GitDiffRequest) (repo.DiffOptions, error) {
	if err := chosen(req.Paths); err != nil {
		return repo.DiffOptions{}, err
	}
	for _, p := range req.Paths {
		if err := repo.CheckPath(p); err != nil {
			return repo.DiffOptions{}, err
		}
	}
	return repo.DiffOptions{From: c.start, To: c.work, Paths: req.Paths, Renames: true, Stat: req.Stat}, nil
}

func wireChanges(changes []repo.Change) []wire.GitChange {
	out := make([]wire.GitChange, len(changes))
	for i, c := range changes {
		w := wire.GitChange{Status: string(c.Status), Mode: modeOrNone(c.Mode), OldMode: modeOrNone(c.OldMode),
			Binary: c.Binary, Added: c.Added, Deleted: c.Deleted}
		w.SetName(c.Path)
		w.SetOld(c.OldPath)
		out[i] = w
	}
	return out
}

func modeOrNone(m repo.Mode) string {
	if m == 0 {
		return ""
	}
	return m.String()
}

func wireMarks(marks []repo.Mark, trusted func(repo.Mark) bool) []wire.GitMark {
	out := make([]wire.GitMark, len(marks))
	for i, m := range marks {
		out[i] = wire.GitMark{Kind: string(m.Kind), Why: m.Why, Trusted: trusted(m)}
		out[i].SetName(m.Path)
	}
	return out
}

// trusts reports which marks the user has reviewed, according to a request.
func trusts(all bool, paths []string) func(repo.Mark) bool {
	looked := make(map[string]bool, len(paths))
	for _, p := range paths {
		looked[p] = true
	}
	return func(m repo.Mark) bool { return all || looked[m.Path] }
}

func wireSkipped(skipped []repo.Skipped) (out []wire.GitSkipped) {
	for i, s := range skipped {
		if i == maxTold || i > 0 && s == skipped[i-1] {
			continue
		}
		w := wire.GitSkipped{Why: s.Why}
		w.SetName(s.Path)
		out = append(out, w)
	}
	return out[:min(len(out), maxTold)]
}
