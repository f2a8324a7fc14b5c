package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// image is what the image says about itself.
type image struct {
	version, revision string
	created           time.Time
}

// annotations of the image, and labels of its containers.
func (i image) annotations() map[string]string {
	return map[string]string{
		ocispec.AnnotationTitle:       "coppice",
		ocispec.AnnotationDescription: "Sandboxes for AI agents, whose file system is a history",
		ocispec.AnnotationLicenses:    "Apache-2.0",
		ocispec.AnnotationSource:      "https://github.com/coppice-dev/coppice",
		ocispec.AnnotationVersion:     i.version,
		ocispec.AnnotationRevision:    i.revision,
		ocispec.AnnotationCreated:     i.created.Format(time.RFC3339),
	}
}

// writeImage writes a tar file to w with an OCI image layout (github.com/opencontainers/image-spec): an index with
// one image for each directory of trees, which is named by its architecture and is the one layer of its image. With the
// file manifest.json, versions of Docker that do not read image layouts load the images as well.
func writeImage(w io.Writer, i image, trees fs.FS) error {
	entries, err := fs.ReadDir(trees, ".")
	if err != nil {
		return err
	}
	l := layout{t: tar.NewWriter(w), at: i.created, written: map[digest.Digest]bool{}}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Annotations: i.annotations()}
	var docker []dockerImage
	for _, entry := range entries {
		tree, err := fs.Sub(trees, entry.Name())
		if err != nil {
			return err
		}
		manifest, d, err := l.addImage(i, entry.Name(), tree)
		if err != nil {
			return fmt.Errorf("image for %s: %w", entry.Name(), err)
		}
		index.Manifests = append(index.Manifests, manifest)
		docker = append(docker, d)
	}
	if len(index.Manifests) == 0 {
		return errors.New("no directory of an architecture")
	}
	all, err := l.addJSON(ocispec.MediaTypeImageIndex, index)
	if err != nil {
		return err
	}
	all.Annotations = map[string]string{
		ocispec.AnnotationRefName:  i.version,
		"io.containerd.image.name": "docker.io/library/coppice:" + i.version,
	}
	return errors.Join(
		l.file(ocispec.ImageLayoutFile, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}),
		l.file(ocispec.ImageIndexFile, ocispec.Index{Versioned: index.Versioned, MediaType: index.MediaType,
			Manifests: []ocispec.Descriptor{all}}),
		l.file("manifest.json", docker),
		l.t.Close())
}

// dockerImage is an entry of manifest.json, as docker save writes it.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// layout writes the files of an image layout.
type layout struct {
	t       *tar.Writer
	at      time.Time
	written map[digest.Digest]bool // blobs
}

// addImage writes the image of one architecture, and returns its manifest.
func (l *layout) addImage(i image, arch string, tree fs.FS) (ocispec.Descriptor, dockerImage, error) {
	var none ocispec.Descriptor
	packed, diffID, err := compressedLayer(tree, i.created)
	if err != nil {
		return none, dockerImage{}, err
	}
	layer, err := l.addBlob(ocispec.MediaTypeImageLayerGzip, packed)
	if err != nil {
		return none, dockerImage{}, err
	}
	platform := ocispec.Platform{OS: "linux", Architecture: arch}
	if arch == "arm64" {
		platform.Variant = "v8"
	}
	config, err := l.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
		Created: &i.created, Platform: platform,
		Config: ocispec.ImageConfig{
			Entrypoint: []string{"/usr/bin/coppice"},
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Labels:     i.annotations(),
		},
		RootFS:  ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}},
		History: []ocispec.History{{Created: &i.created, CreatedBy: "scripts/release"}},
	})
	if err != nil {
		return none, dockerImage{}, err
	}
	manifest, err := l.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{layer}, Annotations: i.annotations(),
	})
	manifest.Platform = &platform
	return manifest, dockerImage{Config: blobPath(config.Digest), Layers: []string{blobPath(layer.Digest)},
		RepoTags: []string{"coppice:" + i.version + "-" + arch}}, err
}

// compressedLayer returns tree as a compressed layer, and the digest of the layer before compression.
func compressedLayer(tree fs.FS, at time.Time) ([]byte, digest.Digest, error) {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.New()
	t := tar.NewWriter(io.MultiWriter(z, sum))
	err = errors.Join(writeTar(t, "", tree, at), t.Close(), z.Close())
	return packed.Bytes(), digest.NewDigest(digest.SHA256, sum), err
}

// addJSON writes a document as a blob.
func (l *layout) addJSON(mediaType string, document any) (ocispec.Descriptor, error) {
	b, err := json.Marshal(document)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return l.addBlob(mediaType, b)
}

// addBlob writes a blob, unless the layout already has it.
func (l *layout) addBlob(mediaType string, content []byte) (ocispec.Descriptor, error) {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	if l.written[d.Digest] {
		return d, nil
	}
	l.written[d.Digest] = true
	return d, l.write(blobPath(d.Digest), content)
}

func blobPath(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

// file writes a document that is not a blob.
func (l *layout) file(name string, document any) error {
	b, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return l.write(name, b)
}

func (l *layout) write(name string, content []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: l.at}
	if err := l.t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(l.t, bytes.NewReader(content))
	return err
}
