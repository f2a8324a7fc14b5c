//go:build linux

package engine

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

// unpackLayers makes a sandbox with the history that came along with a proposal, on this
// host and on the repository at the commit that the proposal stands on.
func (e *Engine) unpackLayers(
	ctx context.Context, in *incoming, list *proposal.Layers, from source, as string,
) (made *wire.Sandbox, err error) {
	if as == "" {
		as = in.Name
	}
	sb, err := e.Create(ctx,
		wire.CreateRequest{Name: as, Repo: &wire.RepoRequest{Dir: in.repo.Top, At: in.says.Base, Branch: in.says.Branch}},
		func(wire.Progress) {})
	if err != nil {
		return nil, fault.Wrap(err, "make a sandbox of the layers")
	}
	defer func() {
		if err != nil {
			_, rerr := e.Remove(context.WithoutCancel(ctx), []string{sb.ID}, true)
			err = errors.Join(err, rerr)
		}
	}()
	s, rec, err := e.acquire(ctx, sb.ID, "importing its layers")
	if err != nil {
		return nil, err
	}
	defer s.unlock(e)
	if err := e.graft(ctx, &rec, list, from); err != nil {
		return nil, fault.Wrap(err, "import the layers of %s", in.Name)
	}
	out := e.wire(ctx, &rec)
	return &out, nil
}

// source gives a layer, packed, to use. Layers are asked for each once, in the order of
// proposal.Layers.Digests.
type source func(ctx context.Context, digest string, use func(io.Reader) error) error

// inRepo is the source of layers that were fetched with the proposal.
func (in *incoming) inRepo(e *Engine, commit repo.OID) source {
	return func(ctx context.Context, digest string, use func(io.Reader) error) (err error) {
		f, err := os.CreateTemp(e.Repos.Scratch(), "layer-")
		if err != nil {
			return fault.Wrap(err, "write a layer down")
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

// packed reads what came along, and holds it against the proposal.
func (in *incoming) packed(ctx context.Context, commit repo.OID) (*proposal.Layers, error) {
	if commit == "" {
		return nil, fault.New(fault.NotFound, "no layers were fetched").WithHint("ask for them: coppice push --with-layers")
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
		return nil, fault.New(fault.Invalid, "the layers are of sandbox %.40q, and the proposal of %.40q", list.Sandbox,
			in.says.Sandbox)
	}
	said := map[string]proposal.Snapshot{}
	for _, s := range in.says.Snapshots {
		said[s.ID] = s
	}
	for _, s := range list.Snapshots {
		if _, ok := sizes[proposal.LayerFile(s.Layer)]; s.Layer != "" && list.Artifact == nil && !ok {
			return nil, fault.New(fault.Invalid, "the layer %s of snapshot %s did not come along", s.Layer, s.ID)
		}
		if p, ok := said[s.ID]; ok && p.Parent != s.Parent {
			return nil, fault.New(fault.Invalid, "snapshot %s has another parent in the layers than in the proposal", s.ID)
		}
	}
	return list, nil
}

// graft imports layers and adds the history that they make up. Either all of it is there
// then or nothing. The caller holds the lock of the sandbox, which was just made.
func (e *Engine) graft(ctx context.Context, rec *meta.Sandbox, list *proposal.Layers, from source) error {
	g := &grafting{e: e, rec: rec, from: from, top: list.Top, layers: map[string]timeline.LayerID{},
		ids: map[string]timeline.SnapshotID{list.Base: rec.Head}}
	defer g.release()
	st, _, err := e.masks.Stack(ctx, rec, rec.Head)
	if err != nil {
		return err
	}
	g.below = e.Layers.View(st, append(above(rec.Repo.Top), above(list.Top)...)...)
	var tell []audit.Statement
	for i := range list.Snapshots {
		if err := g.add(ctx, &list.Snapshots[i]); err != nil {
			return errors.Join(err, g.drop(ctx))
		}
		s := &g.snaps[i]
		tell = append(tell, audit.ByDaemon(&format.Snapshot{
			Cause: string(s.Cause), Changes: int64(s.Stats.Paths), Label: e.cleaners.Formats().RecordText(s.Message),
			Parent: string(s.Parent), Snapshot: string(s.ID),
		})...)
	}
	head := g.ids[list.Head]
	err = e.Book.Do(ctx, e.Book.Drafts(ctx, rec, tell...), func(ctx context.Context) error {
		return e.DB.Graft(ctx, rec.ID, g.snaps, g.routes, func(r *meta.Sandbox) { r.Head, r.MountTop = head, head })
	})
	if err != nil {
		return errors.Join(err, g.drop(ctx))
	}
	rec.Head, rec.MountTop = head, head
	e.Upkeep.MayBeDeep(head)
	return nil
}

// above lists a directory and those that it lies in.
func above(dir string) (all []string) {
	for dir = path.Clean(dir); dir != "/" && dir != "."; dir = path.Dir(dir) {
		all = append(all, dir)
	}
	return all
}

// grafting is a history in the making.
type grafting struct {
	e     *Engine
	rec   *meta.Sandbox
	from  source
	top   string // where the work tree lies in the layers
	below *layer.View

	ids    map[string]timeline.SnapshotID // what snapshots are called here
	layers map[string]timeline.LayerID    // by digest
	made   []func()
	snaps  []timeline.Snapshot
	routes []timeline.Route
}

// add takes the next snapshot. It keeps its id where nobody has that here.
func (g *grafting) add(ctx context.Context, p *proposal.PackedSnapshot) error {
	id, err := timeline.ParseSnapshotID(p.ID)
	if err != nil {
		return err
	}
	taken, err := g.e.DB.HasSnapshot(ctx, id)
	if err == nil && taken {
		id, err = timeline.NewSnapshotID(g.e.Rand)
	}
	if err != nil {
		return err
	}
	g.ids[p.ID] = id
	created := p.Time
	if now := g.e.Now(); created.After(now) || created.Before(time.Unix(0, 0)) {
		created = now
	}
	g.snaps = append(g.snaps, timeline.Snapshot{
		ID: id, Sandbox: g.rec.ID, Parent: g.ids[p.Parent], Cause: causeOf(p.Cause),
		Message: g.e.cleaners.Formats().RecordText(p.Message), Created: created.UTC(),
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

// causeOf takes the causes that a snapshot which travels can have. It is never one with which
// a sandbox begins.
func causeOf(said string) timeline.Cause {
	switch c := timeline.Cause(said); c {
	case timeline.CauseExec, timeline.CauseAuto, timeline.CauseManual, timeline.CauseMark, timeline.CauseCheckout:
		return c
	}
	return timeline.CauseManual
}

// layer imports one layer, unless it is there.
func (g *grafting) layer(ctx context.Context, digest string) error {
	if g.layers[digest] != "" {
		return nil
	}
	return g.from(ctx, digest, func(r io.Reader) error {
		id, made, err := g.e.newLayer()
		if err != nil {
			return err
		}
		g.made = append(g.made, made)
		_, err = g.e.Layers.ImportLayer(ctx, id, r,
			layer.LayerOptions{TarOptions: layer.TarOptions{MaxBytes: limit.LayerBytes}, DiffID: digest, Below: g.below.Lookup,
				From: g.top, To: g.rec.Repo.Top})
		if err == nil {
			g.layers[digest] = id
		}
		return err
	})
}

// drop removes what was imported.
func (g *grafting) drop(ctx context.Context) (err error) {
	for _, id := range g.layers {
		err = errors.Join(err, g.e.Layers.Remove(context.WithoutCancel(ctx), id))
	}
	return err
}

// release says that the layers are in the database, or gone.
func (g *grafting) release() {
	for _, made := range g.made {
		made()
	}
}
