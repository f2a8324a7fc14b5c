//go:build linux

package travel

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

// Layers in a registry are packed one by one for the user's program, which has the credentials and the network
// access, and are received the same way. The repository holds only the list of them, with the location and the
// digest of each. Received layers are checked by their digests.

// Packing lists the layers of a sandbox to transfer, with the digest and the size that each had when it was
// packed for the last push from this home. It finalizes them first.
func (t *Travel) Packing(ctx context.Context, name string) (res wire.Packing, err error) {
	rec, err := t.c.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	r, err := t.c.Sandboxes.Repository(ctx, &rec)
	if err != nil {
		return res, err
	}
	if err := t.c.Finalize(ctx); err != nil {
		return res, err
	}
	list, err := t.Packable(ctx, &rec)
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

// Packable lists the layers of a sandbox to transfer, and checks that each can be packed. A layer that a registry
// has is not packed again, but earlier versions packed some that layer.Store.Packable refuses. Conflict: a layer
// is not finalized.
func (t *Travel) Packable(ctx context.Context, rec *meta.Sandbox) (*proposal.Layers, error) {
	t.c.Keep.Lock()
	defer t.c.Keep.Unlock()
	list, of, err := t.list(ctx, rec)
	if err != nil {
		return nil, err
	}
	for _, digest := range list.Digests() {
		if err := t.c.Layers.Packable(ctx, of[digest]); err != nil {
			return nil, fault.Wrap(err, "pack the layers of sandbox %s", rec.Name)
		}
	}
	return list, nil
}

// packedBefore returns the artifact of the last push from this home; nil if there is none, or if it cannot be
// read: the layers are then packed again.
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

// readLayers reads the list of packed layers in a commit.
func readLayers(ctx context.Context, r *repo.Repo, commit repo.OID) (*proposal.Layers, error) {
	var b bytes.Buffer
	if err := r.ReadFile(ctx, commit, proposal.FileLayers, 16<<20, &b); err != nil {
		return nil, err
	}
	return proposal.DecodeLayers(b.Bytes())
}

// PackLayer packs one of the layers that Packing lists, and writes it to w. It packs the layer into a file before
// it writes the first byte, so that it holds no lock while w is slow.
func (t *Travel) PackLayer(ctx context.Context, req wire.PackRequest, w io.Writer) (err error) {
	rec, err := t.c.DB.Sandbox(ctx, req.Name)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(t.c.Repos.Scratch(), "layer-")
	if err != nil {
		return fault.Wrap(err, "create a packed layer")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := t.packOne(ctx, &rec, req.Layer, filepath.Join(dir, "layer"))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// packOne packs a layer of a sandbox into a file, which the caller must close.
func (t *Travel) packOne(ctx context.Context, rec *meta.Sandbox, digest, file string) (*os.File, error) {
	t.c.Keep.Lock()
	defer t.c.Keep.Unlock()
	_, of, err := t.list(ctx, rec)
	if err != nil {
		return nil, err
	}
	id, ok := of[digest]
	if !ok {
		return nil, fault.New(fault.NotFound, "layer %.80[2]q not found among the pushable layers of sandbox "+
			"%[1]s", rec.Name, digest)
	}
	return t.packLayer(ctx, file, id, proposal.MaxPacked)
}

// recordArtifact stores the location of a sandbox's layers in the repository. Conflict: they are not all layers
// of the sandbox's current history.
func (t *Travel) recordArtifact(ctx context.Context, tr *trip, rec *meta.Sandbox, a *wire.Artifact) error {
	if err := t.c.Finalize(ctx); err != nil {
		return err
	}
	list, _, err := t.list(ctx, rec)
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
		return fault.New(fault.Conflict, "sandbox %s changed while its layers were pushed", rec.Name).
			WithHint("push it again: layers that are in the registry are not sent again")
	}
	said, err := proposal.EncodeLayers(list)
	if err != nil {
		return err
	}
	here, err := tr.at(ctx, tr.here)
	if err != nil {
		return err
	}
	files := []repo.File{{Name: proposal.FileLayers, Content: bytes.NewReader(said)}}
	_, err = tr.repo.Record(ctx,
		repo.Record{Files: files, Message: "Layers of sandbox " + rec.Name, To: tr.here(kindLayers), Old: here[kindLayers]})
	return err
}

// wireArtifact converts an artifact to its wire form.
func wireArtifact(a *proposal.Artifact) *wire.Artifact {
	out := &wire.Artifact{Repository: a.Repository, Digest: a.Digest, Layers: []wire.LayerBlob{}}
	for _, b := range a.Blobs {
		out.Layers = append(out.Layers, wire.LayerBlob(b))
	}
	return out
}

// UnpackLayers creates a sandbox from the layers of a pulled proposal whose layers are in a registry. r holds the
// layers concatenated, in the order of the list. r need not be trusted, since each layer is checked by its
// digest. as is the name of the sandbox; "" uses that of the proposal.
func (t *Travel) UnpackLayers(ctx context.Context, at wire.Travelled, as string, r io.Reader) (wire.Sandbox, error) {
	in, err := t.pulled(ctx, at)
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
			WithHint("coppice git pull --with-layers %s %s", at.Remote, at.Name)
	}
	made, err := t.unpackLayers(ctx, in, list, inOrder(list.Artifact, r), as)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return *made, nil
}

// inOrder is the source of layers that are concatenated in r.
func inOrder(a *proposal.Artifact, r io.Reader) source {
	blobs := a.Blobs
	return func(ctx context.Context, digest string, use func(io.Reader) error) error {
		if len(blobs) == 0 || blobs[0].Layer != digest {
			return fault.New(fault.Internal, "layer %s was requested out of order", digest)
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
			return fault.New(fault.Invalid, "layer %s is shorter than its list entry states", digest)
		}
		return ctx.Err()
	}
}
