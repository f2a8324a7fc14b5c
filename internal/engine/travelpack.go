//go:build linux

package engine

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

// packLayers packs the layers that make up a sandbox's history, above what it began with,
// into a commit of the repository, and says how large they are.
func (e *Engine) packLayers(ctx context.Context, t *travel, rec *meta.Sandbox, most int64) (size int64, err error) {
	if most <= 0 {
		most = wire.DefaultPacked
	}
	if err := e.Upkeep.Seal(ctx); err != nil {
		return 0, err
	}
	e.shape.RLock() // the layers stay
	defer e.shape.RUnlock()
	list, of, err := e.packable(ctx, rec)
	if err != nil {
		return 0, err
	}
	said, err := proposal.EncodeLayers(list)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(e.Repos.Scratch(), "layers-")
	if err != nil {
		return 0, fault.Wrap(err, "make room for packed layers")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files := []repo.File{{Name: proposal.FileLayers, Content: bytes.NewReader(said)}}
	for digest, id := range of {
		f, err := e.packLayer(ctx, filepath.Join(dir, proposal.LayerFile(digest)), id, most-size)
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
	here, err := t.at(ctx, t.here)
	if err != nil {
		return 0, err
	}
	_, err = t.repo.Record(ctx,
		repo.Record{Files: files, Message: "Layers of sandbox " + rec.Name, To: t.here(kindLayers), Old: here[kindLayers]})
	return size, err
}

// packable lists the snapshots of a sandbox above the one that it began with, and their
// layers by digest.
func (e *Engine) packable(
	ctx context.Context, rec *meta.Sandbox,
) (*proposal.Layers, map[string]timeline.LayerID, error) {
	if !rec.Host {
		return nil, nil,
			fault.New(fault.Unsupported, "sandbox %s stands on %s, which your colleague does not have", rec.Name, rec.From).
				WithHint("layers travel for sandboxes that stand on the host; leave --with-layers out")
	}
	h, err := e.Histories.History(ctx, rec)
	if err != nil {
		return nil, nil, err
	}
	base := began(h, rec.Head)
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
		_, routes, err := e.DB.Ground(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		if i := slices.IndexFunc(routes, func(r timeline.Route) bool { return !r.Merged }); i >= 0 {
			l, err := e.DB.Layer(ctx, routes[i].Layer)
			if err != nil {
				return nil, nil, err
			}
			if !l.Sealed {
				return nil, nil, fault.New(fault.Conflict, "sandbox %s is changing right now", rec.Name).
					WithHint("wait until it does not, then try again")
			}
			if l.DiffID == "" {
				if err := e.Layers.Packable(ctx, l.ID); l.Digest != "" && err != nil {
					return nil, nil, fault.Wrap(err, "pack snapshot %s of sandbox %s", s.ID, rec.Name)
				}
				return nil, nil,
					fault.New(fault.TooLarge,
						"snapshot %s of sandbox %s has files with more holes, or larger attributes, than a packed layer may hold",
						s.ID, rec.Name).
						WithHint("see what is large: coppice diff %s %s", rec.Name, s.ID)
			}
			p.Layer, p.Below = l.DiffID, string(routes[i].Below)
			of[l.DiffID] = l.ID
		}
		list.Snapshots = append(list.Snapshots, p)
	}
	return list, of, nil
}

// packLayer writes a layer, compressed, into a file. The caller closes it.
func (e *Engine) packLayer(ctx context.Context, name string, id timeline.LayerID, most int64) (f *os.File, err error) {
	if f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, fault.Wrap(err, "write a packed layer")
	}
	z, err := zstd.NewWriter(&upTo{f, most}, zstd.WithEncoderConcurrency(1))
	if err == nil {
		err = errors.Join(e.Layers.WriteTar(ctx, id, z), z.Close())
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

// errPacked: packed layers would be larger than they may be.
var errPacked = fault.New(fault.NoSpace, "the layers are larger, packed, than may go into the repository").
	WithHint("leave --with-layers out, drop what nobody needs in the sandbox, or allow more: --max-layers BYTES; a " +
		"forge may refuse large ones")

// upTo writes so many bytes and no more.
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
