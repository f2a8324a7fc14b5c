//go:build linux

package engine

import (
	"context"
	"slices"
)

// holdBase has the new base stay in the repository.
func (b *rebasing) holdBase(ctx context.Context) error {
	b.e.refs.Lock()
	defer b.e.refs.Unlock()
	return b.e.holdCommit(ctx, b.repo, b.onto)
}

// letGo drops the reference of a base that no sandbox stands on any more.
func (b *rebasing) letGo(ctx context.Context, commit string) error {
	b.e.refs.Lock()
	defer b.e.refs.Unlock()
	all, err := b.e.holders(ctx, holding{Common: b.rec.Repo.Common})
	if err != nil || slices.ContainsFunc(all, func(o holding) bool { return slices.Contains(o.Commits, commit) }) {
		return err
	}
	ref, err := b.e.baseRef(ctx, commit)
	if err != nil {
		return err
	}
	return b.repo.DropRefs(ctx, ref)
}
