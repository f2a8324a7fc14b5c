package registry

import (
	"encoding/json"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coppice-dev/coppice/internal/fault"
)

// ArtifactType is the artifact type of packed layers.
const ArtifactType = "application/vnd.coppice.layers.v1"

// DiffID is the annotation of a layer with its digest before it was compressed.
const DiffID = "dev.coppice.layer.diffid"

// maxManifest is the size that every registry accepts, in bytes.
const maxManifest = 4 << 20

// Layer is a layer of an artifact: a tar archive, compressed with zstd.
type Layer struct {
	Blob
	DiffID string // digest of the uncompressed archive
}

// Manifest is the manifest of an artifact, the same bytes for the same layers.
type Manifest struct{ bytes []byte }

// NewManifest returns the manifest of packed layers. NoSpace: there are too many.
func NewManifest(layers []Layer) (*Manifest, error) {
	config := ocispec.DescriptorEmptyJSON
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactType, Config: config, Layers: []ocispec.Descriptor{}}
	for _, l := range layers {
		d := l.descriptor(ocispec.MediaTypeImageLayerZstd)
		d.Annotations = map[string]string{DiffID: l.DiffID}
		m.Layers = append(m.Layers, d)
	}
	if len(layers) == 0 {
		m.Layers = append(m.Layers, config) // a manifest needs at least one
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fault.Wrap(err, "write a manifest")
	}
	if len(b) > maxManifest {
		return nil, fault.New(fault.NoSpace, "too many layers for one artifact: %d", len(layers)).
			WithHint("shorten the history: coppice system gc; or fork the sandbox and push the fork")
	}
	return &Manifest{b}, nil
}

// Blob returns the digest and size of the manifest.
func (m *Manifest) Blob() Blob {
	return Blob{Digest: digest.FromBytes(m.bytes).String(), Size: int64(len(m.bytes))}
}
