//go:build linux

package travel

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// packLayers packs the layers of a sandbox's history, above its initial snapshot, into a commit of the
// repository, and returns their size. It packs at most most bytes; 0 means wire.DefaultPacked.
func (t *Travel) packLayers(ctx context.Context, tr *trip, rec *meta.Sandbox, most int64) (size int64, err error) {
	if most <= 0 {
		most = wire.DefaultPacked
	}
	if err := t.c.Finalize(ctx); err != nil {
		return 0, err
	}
	t.c.Keep.Lock()
	defer t.c.Keep.Unlock()
	list, of, err := t.list(ctx, rec)
	if err != nil {
		return 0, err
	}
	said, err := proposal.EncodeLayers(list)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(t.c.Repos.Scratch(), "layers-")
	if err != nil {
		return 0, fault.Wrap(err, "create packed layers")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files := []repo.File{{Name: proposal.FileLayers, Content: bytes.NewReader(said)}}
	for digest, id := range of {
		f, err := t.packLayer(ctx, filepath.Join(dir, proposal.LayerFile(digest)), id, most-size)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		size += info.Size()
		files = append(files, repo.File{Name: proposal.LayerFile(digest), Content: f})
	}
	here, err := tr.at(ctx, tr.here)
	if err != nil {
		return 0, err
	}
	_, err = tr.repo.Record(ctx,
		repo.Record{Files: files, Message: "Layers of sandbox " + rec.Name, To: tr.here(kindLayers), Old: here[kindLayers]})
	return size, err
}

// list lists the snapshots of a sandbox above the initial one, and their layers by digest.
func (t *Travel) list(
	ctx context.Context, rec *meta.Sandbox,
) (*proposal.Layers, map[string]timeline.LayerID, error) {
	if !rec.Host {
		return nil, nil,
			fault.New(fault.Unsupported, "cannot push the layers of sandbox %s: its base %s is not the "+
				"host", rec.Name, rec.From).
				WithHint("omit --with-layers")
	}
	h, err := t.c.DB.History(ctx, rec.ID)
	if err != nil {
		return nil, nil, err
	}
	base := h.Began(rec.Head)
	list := &proposal.Layers{Schema: proposal.Schema, Sandbox: string(rec.ID), Top: rec.Repo.Top, Base: string(base),
		Head: string(rec.Head), Snapshots: []proposal.PackedSnapshot{}}
	of := map[string]timeline.LayerID{}
	order := h.NewestFirst()
	slices.Reverse(order)
	for _, id := range order {
		if id == base || !h.IsAncestor(base, id) {
			continue
		}
		s := h.Snapshots[id]
		p := proposal.PackedSnapshot{ID: string(id), Parent: string(s.Parent), Cause: string(s.Cause),
			Message: proposal.Text(s.Message), Time: s.Created, Exit: s.Exit, Paths: s.Stats.Paths, Bytes: s.Stats.Bytes}
		_, routes, err := t.c.DB.Ground(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		if i := slices.IndexFunc(routes, func(r timeline.Route) bool { return !r.Merged }); i >= 0 {
			l, err := t.c.DB.Layer(ctx, routes[i].Layer)
			if err != nil {
				return nil, nil, err
			}
			if !l.Finalized {
				return nil, nil, fault.New(fault.Conflict, "sandbox %s is changing", rec.Name).
					WithHint("wait until its changes are captured, then try again")
			}
			if l.DiffID == "" {
				if err := t.c.Layers.Packable(ctx, l.ID); l.Digest != "" && err != nil {
					return nil, nil, fault.Wrap(err, "pack snapshot %s of sandbox %s", s.ID, rec.Name)
				}
				return nil, nil,
					fault.New(fault.TooLarge,
						"cannot pack snapshot %s of sandbox %s: a file has too many holes or too large attributes",
						s.ID, rec.Name).
						WithHint("see its files: coppice diff %s %s", rec.Name, s.ID)
			}
			p.Layer, p.Below = l.DiffID, string(routes[i].Below)
			of[l.DiffID] = l.ID
		}
		list.Snapshots = append(list.Snapshots, p)
	}
	return list, of, nil
}

// packLayer writes a compressed layer into a new file, which the caller must close. It fails with errPacked if
// the result exceeds most bytes.
func (t *Travel) packLayer(ctx context.Context, name string, id timeline.LayerID, most int64) (f *os.File, err error) {
	if f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, fault.Wrap(err, "write a packed layer")
	}
	z, err := zstd.NewWriter(&upTo{f, most}, zstd.WithEncoderConcurrency(1))
	if err == nil {
		err = errors.Join(t.c.Layers.WriteTar(ctx, id, z), z.Close())
	}
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, errPacked) {
			err = errPacked
		}
		return nil, fault.Wrap(err, "pack layer %s", id)
	}
	return f, nil
}

// errPacked means that the packed layers would exceed the user's limit.
var errPacked = fault.New(fault.NoSpace, "the packed layers are larger than the limit").
	WithHint("omit --with-layers, remove unneeded files in the sandbox, or raise the limit: --max-layers BYTES; a " +
		"forge may refuse large ones")

// upTo writes at most left bytes to a file. A write beyond that fails with errPacked.
type upTo struct {
	f    *os.File
	left int64
}

func (u *upTo) Write(p []byte) (int, error) {
	if u.left -= int64(len(p)); u.left < 0 {
		return 0, errPacked
	}
	return u.f.Write(p)
}
