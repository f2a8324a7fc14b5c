//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
)

// Layers that travel by a registry are packed one by one for the user's program, which has the
// credentials and the network, and taken from it the same way. The repository has only the
// list of them: where they are, and the digests by which each is checked that comes back.

// Packing lists the layers of a sandbox that travel, and how each was packed for the last push.
func (e *Engine) Packing(ctx context.Context, name string) (res wire.Packing, err error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	r, err := e.repoOf(ctx, &rec)
	if err != nil {
		return res, err
	}
	if err := e.Upkeep.Seal(ctx); err != nil {
		return res, err
	}
	list, err := e.packing(ctx, &rec)
	if err != nil {
		return res, err
	}
	before := map[string]proposal.Blob{}
	if old := packedBefore(ctx, r, rec.Name); old != nil {
		for _, b := range old.Blobs {
			before[b.Layer] = b
		}
	}
	res.Layers = []wire.LayerBlob{}
	for _, digest := range list.Digests() {
		b := before[digest]
		res.Layers = append(res.Layers, wire.LayerBlob{Layer: digest, Digest: b.Digest, Size: b.Size})
	}
	return res, nil
}

// packing is packable, and checks each layer: a layer that a registry has is not packed again,
// and earlier versions packed some that are not Packable.
func (e *Engine) packing(ctx context.Context, rec *meta.Sandbox) (*proposal.Layers, error) {
	e.shape.RLock() // the layers stay
	defer e.shape.RUnlock()
	list, of, err := e.packable(ctx, rec)
	if err != nil {
		return nil, err
	}
	for _, digest := range list.Digests() {
		if err := e.Layers.Packable(ctx, of[digest]); err != nil {
			return nil, fault.Wrap(err, "pack the layers of sandbox %s", rec.Name)
		}
	}
	return list, nil
}

// packedBefore gives the artifact of the last push from here; nil where there is none that
// can be read, and packing them again is all that is lost.
func packedBefore(ctx context.Context, r *repo.Repo, name string) *proposal.Artifact {
	ref := repo.Ref(wire.TravelRef(kindLayers, name))
	refs, err := r.Refs(ctx, ref)
	if err != nil || refs[ref] == "" {
		return nil
	}
	list, err := readLayers(ctx, r, refs[ref])
	if err != nil {
		return nil
	}
	return list.Artifact
}

// readLayers reads the list of packed layers.
func readLayers(ctx context.Context, r *repo.Repo, commit repo.OID) (*proposal.Layers, error) {
	var b bytes.Buffer
	if err := r.ReadFile(ctx, commit, proposal.FileLayers, 16<<20, &b); err != nil {
		return nil, err
	}
	return proposal.DecodeLayers(b.Bytes())
}

// PackLayer writes one of the layers that Packing lists to w. It is packed before the first
// byte is written, so that nothing waits for who reads it.
func (e *Engine) PackLayer(ctx context.Context, req wire.PackRequest, w io.Writer) (err error) {
	rec, err := e.DB.Sandbox(ctx, req.Name)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(e.Repos.Scratch(), "layer-")
	if err != nil {
		return fault.Wrap(err, "make room for a packed layer")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := e.packOne(ctx, &rec, req.Layer, filepath.Join(dir, "layer"))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// packOne packs a layer of a sandbox into a file, which the caller closes.
func (e *Engine) packOne(ctx context.Context, rec *meta.Sandbox, digest, file string) (*os.File, error) {
	e.shape.RLock() // the layer stays
	defer e.shape.RUnlock()
	_, of, err := e.packable(ctx, rec)
	if err != nil {
		return nil, err
	}
	id, ok := of[digest]
	if !ok {
		return nil, fault.New(fault.NotFound, "sandbox %s has no layer %.80q that travels", rec.Name, digest)
	}
	return e.packLayer(ctx, file, id, proposal.MaxPacked)
}

// recordArtifact writes into the repository where the layers of a sandbox are: all that it
// has now, or Conflict.
func (e *Engine) recordArtifact(ctx context.Context, t *travel, rec *meta.Sandbox, a *wire.Artifact) error {
	if err := e.Upkeep.Seal(ctx); err != nil {
		return err
	}
	list, _, err := e.packable(ctx, rec)
	if err != nil {
		return err
	}
	list.Artifact = &proposal.Artifact{Repository: a.Repository, Digest: a.Digest, Blobs: []proposal.Blob{}}
	var layers []string
	for _, b := range a.Layers {
		layers = append(layers, b.Layer)
		list.Artifact.Blobs = append(list.Artifact.Blobs, proposal.Blob(b))
	}
	if !slices.Equal(layers, list.Digests()) {
		return fault.New(fault.Conflict, "sandbox %s went on while its layers were pushed", rec.Name).
			WithHint("push it again: what is in the registry is not sent twice")
	}
	said, err := proposal.EncodeLayers(list)
	if err != nil {
		return err
	}
	here, err := t.at(ctx, t.here)
	if err != nil {
		return err
	}
	files := []repo.File{{Name: proposal.FileLayers, Content: bytes.NewReader(said)}}
	_, err = t.repo.Record(ctx,
		repo.Record{Files: files, Message: "Layers of sandbox " + rec.Name, To: t.here(kindLayers), Old: here[kindLayers]})
	return err
}

func wireArtifact(a *proposal.Artifact) *wire.Artifact {
	out := &wire.Artifact{Repository: a.Repository, Digest: a.Digest, Layers: []wire.LayerBlob{}}
	for _, b := range a.Blobs {
		out.Layers = append(out.Layers, wire.LayerBlob(b))
	}
	return out
}

// UnpackLayers makes a sandbox of the layers of a proposal that was taken in. r gives them
// one behind the other, as the list has them; it may be anybody's, as each is checked by its
// digest.
func (e *Engine) UnpackLayers(ctx context.Context, at wire.Travelled, as string, r io.Reader) (wire.Sandbox, error) {
	in, err := e.pulled(ctx, at)
	if err != nil {
		return wire.Sandbox{}, err
	}
	seen, err := in.at(ctx, in.seen)
	if err != nil {
		return wire.Sandbox{}, err
	}
	list, err := in.packed(ctx, seen[kindLayers])
	if err != nil {
		return wire.Sandbox{}, err
	}
	if list.Artifact == nil {
		return wire.Sandbox{}, fault.New(fault.Invalid, "the layers of %s are in the repository", at.Name).
			WithHint("coppice pull --with-layers %s %s", at.Remote, at.Name)
	}
	made, err := e.unpackLayers(ctx, in, list, inOrder(list.Artifact, r), as)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return *made, nil
}

// inOrder is the source of layers that come one behind the other.
func inOrder(a *proposal.Artifact, r io.Reader) source {
	blobs := a.Blobs
	return func(ctx context.Context, digest string, use func(io.Reader) error) error {
		if len(blobs) == 0 || blobs[0].Layer != digest {
			return fault.New(fault.Internal, "layer %s was asked for out of order", digest)
		}
		left := &io.LimitedReader{R: r, N: blobs[0].Size}
		blobs = blobs[1:]
		if err := use(left); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, left); err != nil {
			return err
		}
		if left.N > 0 {
			return fault.New(fault.Invalid, "layer %s is shorter than the list says", digest)
		}
		return ctx.Err()
	}
}
