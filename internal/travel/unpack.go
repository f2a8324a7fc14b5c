//go:build linux

package travel

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// unpackLayers creates a sandbox with the history of a proposal, on this host and on the repository at the commit
// that the proposal is based on. After an error there is no such sandbox.
func (t *Travel) unpackLayers(
	ctx context.Context, in *incoming, list *proposal.Layers, from source, as string,
) (made *wire.Sandbox, err error) {
	if as == "" {
		as = in.Name
	}
	sb, err := t.c.API.Create(ctx,
		wire.CreateRequest{Name: as, Repo: &wire.RepoRequest{Dir: in.repo.Top, At: in.says.Base, Branch: in.says.Branch}},
		func(wire.Progress) {})
	if err != nil {
		return nil, fault.Wrap(err, "create a sandbox from the layers")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.c.API.Remove(context.WithoutCancel(ctx), sb.ID, true))
		}
	}()
	release, rec, err := t.c.Sandboxes.Acquire(ctx, sb.ID, "importing its layers")
	if err != nil {
		return nil, err
	}
	defer release()
	if err := t.graft(ctx, &rec, list, from); err != nil {
		return nil, fault.Wrap(err, "import the layers of %s", in.Name)
	}
	out := t.c.Sandboxes.Describe(ctx, &rec)
	return &out, nil
}

// source calls use with a packed layer. It is called once for each layer, in the order of
// proposal.Layers.Digests.
type source func(ctx context.Context, digest string, use func(io.Reader) error) error

// inRepo is the source of layers in a fetched commit.
func (t *Travel) inRepo(in *incoming, commit repo.OID) source {
	return func(ctx context.Context, digest string, use func(io.Reader) error) (err error) {
		f, err := os.CreateTemp(t.c.Repos.Scratch(), "layer-")
		if err != nil {
			return fault.Wrap(err, "store a layer")
		}
		defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
		if err := in.repo.ReadFile(ctx, commit, proposal.LayerFile(digest), proposal.MaxPacked, f); err != nil {
			return err
		}
		if _, err := f.Seek(0, 0); err != nil {
			return err
		}
		return use(f)
	}
}

// packed reads the list of layers of the proposal, and checks that both agree.
func (in *incoming) packed(ctx context.Context, commit repo.OID) (*proposal.Layers, error) {
	if commit == "" {
		return nil, fault.New(fault.NotFound, "no layers were pulled").
			WithHint("ask the author to push them: coppice git push --with-layers")
	}
	sizes, err := in.repo.ReadRecord(ctx, commit)
	if err != nil {
		return nil, err
	}
	list, err := readLayers(ctx, in.repo, commit)
	if err != nil {
		return nil, err
	}
	if list.Sandbox != in.says.Sandbox {
		return nil, fault.New(fault.Invalid, "the layers belong to sandbox %.40q, but the proposal to %.40q", list.Sandbox,
			in.says.Sandbox)
	}
	said := map[string]proposal.Snapshot{}
	for _, s := range in.says.Snapshots {
		said[s.ID] = s
	}
	for _, s := range list.Snapshots {
		if _, ok := sizes[proposal.LayerFile(s.Layer)]; s.Layer != "" && list.Artifact == nil && !ok {
			return nil, fault.New(fault.Invalid, "layer %s of snapshot %s is missing", s.Layer, s.ID)
		}
		if p, ok := said[s.ID]; ok && p.Parent != s.Parent {
			return nil, fault.New(fault.Invalid, "the parent of snapshot %s differs between the layers and the proposal", s.ID)
		}
	}
	return list, nil
}

// graft imports layers and adds the snapshots made of them to the history of a sandbox: all of them or, after an
// error, none. The caller holds the lock of the new sandbox.
func (t *Travel) graft(ctx context.Context, rec *meta.Sandbox, list *proposal.Layers, from source) error {
	g := &grafting{c: &t.c, rec: rec, from: from, top: list.Top, layers: map[string]timeline.LayerID{},
		ids: map[string]timeline.SnapshotID{list.Base: rec.Head}}
	defer g.release()
	st, err := t.c.Sandboxes.Stack(ctx, rec, rec.Head)
	if err != nil {
		return err
	}
	g.below = t.c.Layers.View(st, append(above(rec.Repo.Top), above(list.Top)...)...)
	var tell []audit.Statement
	for i := range list.Snapshots {
		if err := g.add(ctx, &list.Snapshots[i]); err != nil {
			return errors.Join(err, g.drop(ctx))
		}
		s := &g.snaps[i]
		tell = append(tell, audit.ByDaemon(&format.Snapshot{
			Cause: string(s.Cause), Changes: int64(s.Stats.Paths), Label: t.c.RecordText(s.Message),
			Parent: string(s.Parent), Snapshot: string(s.ID),
		})...)
	}
	head := g.ids[list.Head]
	err = t.c.Book.Do(ctx, t.c.Book.Drafts(ctx, rec, tell...), func(ctx context.Context) error {
		return t.c.DB.Graft(ctx, rec.ID, g.snaps, g.routes, func(r *meta.Sandbox) { r.Head, r.MountTop = head, head })
	})
	if err != nil {
		return errors.Join(err, g.drop(ctx))
	}
	rec.Head, rec.MountTop = head, head
	t.c.Stacks.MayBeDeep(head)
	return nil
}

// above lists a directory and its parents, without the root.
func above(dir string) (all []string) {
	for dir = path.Clean(dir); dir != "/" && dir != "."; dir = path.Dir(dir) {
		all = append(all, dir)
	}
	return all
}

// grafting is a history that graft adds to a sandbox.
type grafting struct {
	c     *Config
	rec   *meta.Sandbox
	from  source
	top   string      // path of the work tree in the layers
	below *layer.View // the view of the initial snapshot

	ids    map[string]timeline.SnapshotID // the new snapshots, by their IDs in the proposal
	layers map[string]timeline.LayerID    // by digest
	made   []func()                       // releases the layers: see Stacks.NewLayer
	snaps  []timeline.Snapshot
	routes []timeline.Route
}

// add adds the next snapshot and imports its layer. The snapshot keeps its ID unless a snapshot of this home has
// it.
func (g *grafting) add(ctx context.Context, p *proposal.PackedSnapshot) error {
	id, err := timeline.ParseSnapshotID(p.ID)
	if err != nil {
		return err
	}
	taken, err := g.c.DB.HasSnapshot(ctx, id)
	if err == nil && taken {
		id, err = timeline.NewSnapshotID(g.c.Rand)
	}
	if err != nil {
		return err
	}
	g.ids[p.ID] = id
	created := p.Time
	if now := g.c.Now(); created.After(now) || created.Before(time.Unix(0, 0)) {
		created = now
	}
	g.snaps = append(g.snaps, timeline.Snapshot{
		ID: id, Sandbox: g.rec.ID, Parent: g.ids[p.Parent], Cause: causeOf(p.Cause),
		Message: g.c.RecordText(p.Message), Created: created.UTC(),
		Exit: p.Exit, Stats: timeline.Stats{Paths: p.Paths, Bytes: p.Bytes},
	})
	if p.Layer == "" {
		return nil
	}
	if err := g.layer(ctx, p.Layer); err != nil {
		return err
	}
	g.routes = append(g.routes, timeline.Route{Top: id, Below: g.ids[p.Below], Layer: g.layers[p.Layer]})
	return nil
}

// causeOf returns the cause of an imported snapshot. It is never the cause of an initial snapshot.
func causeOf(said string) timeline.Cause {
	switch c := timeline.Cause(said); c {
	case timeline.CauseExec, timeline.CauseAuto, timeline.CauseManual, timeline.CauseMark, timeline.CauseCheckout:
		return c
	}
	return timeline.CauseManual
}

// layer imports a layer, unless it was imported for an earlier snapshot.
func (g *grafting) layer(ctx context.Context, digest string) error {
	if g.layers[digest] != "" {
		return nil
	}
	return g.from(ctx, digest, func(r io.Reader) error {
		id, made, err := g.c.Stacks.NewLayer()
		if err != nil {
			return err
		}
		g.made = append(g.made, made)
		_, err = g.c.Layers.ImportLayer(ctx, id, r,
			layer.LayerOptions{TarOptions: layer.TarOptions{MaxBytes: limit.LayerBytes}, DiffID: digest, Below: g.below.Lookup,
				From: g.top, To: g.rec.Repo.Top})
		if err == nil {
			g.layers[digest] = id
		}
		return err
	})
}

// drop removes the imported layers.
func (g *grafting) drop(ctx context.Context) (err error) {
	for _, id := range g.layers {
		err = errors.Join(err, g.c.Layers.Remove(context.WithoutCancel(ctx), id))
	}
	return err
}

// release ends the protection of the layers, which now have records or were removed.
func (g *grafting) release() {
	for _, made := range g.made {
		made()
	}
}
