//go:build linux

package engine

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// holdBase has the new base stay in the repository.
func (b *rebasing) holdBase(ctx context.Context) error {
	ref := baseRef(string(b.onto))
	refs, err := b.repo.Refs(ctx, ref)
	if err == nil && len(refs) == 0 {
		err = b.repo.SetRef(ctx, ref, b.onto, "", "coppice: a sandbox goes on here")
	}
	return fault.Wrap(err, "hold commit %s", b.onto)
}

// letGo drops the reference of a base that no sandbox stands on any more.
func (b *rebasing) letGo(ctx context.Context, commit string) error {
	all, err := b.e.DB.Sandboxes(ctx)
	if err != nil || slices.ContainsFunc(all, func(o meta.Sandbox) bool {
		return o.Repo != nil && o.Repo.Common == b.rec.Repo.Common && (o.Repo.Base == commit || o.Repo.Start == commit)
	}) {
		return err
	}
	return b.repo.DropRefs(ctx, baseRef(commit))
}
