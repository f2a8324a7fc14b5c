package proposal

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
)

// FileLayers is the file that describes packed layers, written by EncodeLayers. The layers are next to it, named by
// LayerFile, unless they are in an artifact.
const FileLayers = "layers.json"

// maxLayers is the maximum size of that file, in bytes.
const maxLayers = 16 << 20

// Layers describes how packed layers form a history.
type Layers struct {
	Schema    int              `json:"schema"`
	Sandbox   string           `json:"sandbox"` // the ID of the sandbox
	Top       string           `json:"top"`     // path of the work tree in the layers
	Base      string           `json:"base"`    // the snapshot below the layers, which is not among them
	Head      string           `json:"head"`    // the snapshot that the sandbox was at
	Snapshots []PackedSnapshot `json:"snapshots"`
	Artifact  *Artifact        `json:"artifact,omitempty"` // location of the layers; nil: next to this file
}

// Artifact is the location and the digests of packed layers in an OCI registry.
type Artifact struct {
	Repository string `json:"repository"` // REGISTRY/REPOSITORY
	Digest     string `json:"digest"`     // of its manifest
	Blobs      []Blob `json:"blobs"`      // of each layer, in the order of Layers.Digests
}

// Blob is a layer in a registry.
type Blob struct {
	Layer  string `json:"layer"`  // the digest of the layer as a tar archive
	Digest string `json:"digest"` // of the blob: the archive, compressed
	Size   int64  `json:"size"`   // of the blob, in bytes
}

// MaxPacked is the maximum size of a packed layer, in bytes.
const MaxPacked = 4 << 30

// Digests returns the digests of the layers, each once, in the order of the first snapshots that have them.
func (l *Layers) Digests() []string {
	all, seen := []string{}, map[string]bool{}
	for i := range l.Snapshots {
		if d := l.Snapshots[i].Layer; d != "" && !seen[d] {
			seen[d] = true
			all = append(all, d)
		}
	}
	return all
}

// PackedSnapshot is a snapshot. Its parent is Layers.Base or comes before it.
type PackedSnapshot struct {
	ID      string    `json:"id"`
	Parent  string    `json:"parent"`
	Cause   string    `json:"cause"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
	Exit    *int      `json:"exit,omitempty"` // of the command that the snapshot belongs to
	Paths   int       `json:"paths"`
	Bytes   int64     `json:"bytes"`
	// changes against Below: the digest of the layer as a tar archive; "" if it changed nothing
	Layer string `json:"layer,omitempty"`
	Below string `json:"below,omitempty"` // like Parent
}

// LayerFile returns the file name of a layer; "" for an invalid digest.
func LayerFile(digest string) string {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return ""
	}
	return hex + ".tar.zst"
}

// EncodeLayers encodes a description of packed layers. Invalid: it cannot be encoded.
func EncodeLayers(l *Layers) ([]byte, error) {
	if why := l.bad(); why != "" {
		return nil, fault.New(fault.Invalid, "cannot pack the layers: %s", why)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(l); err != nil {
		return nil, fault.Wrap(err, "encode the list of packed layers")
	}
	if b.Len() > maxLayers {
		return nil, fault.New(fault.Invalid, "cannot pack the layers: their history takes %d bytes", b.Len())
	}
	return b.Bytes(), nil
}

// DecodeLayers decodes the output of EncodeLayers, and nothing else.
func DecodeLayers(b []byte) (*Layers, error) {
	none := func(why string) error {
		return fault.New(fault.Invalid, "invalid list of packed layers %s: %s", FileLayers, why)
	}
	if len(b) > maxLayers {
		return nil, none("it is too large")
	}
	l := new(Layers)
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(l); err != nil {
		return nil, none("it has an invalid or unknown field")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, none("it has trailing data")
	}
	if again, err := EncodeLayers(l); err != nil || !bytes.Equal(again, b) {
		return nil, none("it is not in canonical form")
	}
	return l, nil
}

// bad returns what is wrong with the list, or "".
func (l *Layers) bad() string {
	switch {
	case l.Schema != Schema:
		return "invalid schema"
	case !strings.HasPrefix(l.Top, "/") || len(l.Top) > 4095 || strings.Contains(l.Top, "\x00") ||
		strings.Contains(l.Top+"/", "/../"):
		return "invalid work tree"
	case len(l.Snapshots) > MaxSnapshots:
		return "it has too many snapshots"
	}
	known := map[string]bool{l.Base: true}
	for i := range l.Snapshots {
		s := &l.Snapshots[i]
		switch {
		case known[s.ID] || !snapshotID(s.ID) || !known[s.Parent]:
			return "a snapshot is listed twice or before its parent"
		case (s.Layer == "") != (s.Below == "") || s.Layer != "" && (LayerFile(s.Layer) == "" || !known[s.Below]):
			return "a layer has no base"
		case len(s.Message) > maxText || !utf8.ValidString(s.Message) || strings.Contains(s.Message, "\x00") ||
			len(s.Cause) > 40 || !utf8.ValidString(s.Cause):
			return "invalid text"
		case s.Paths < 0 || s.Bytes < 0:
			return "invalid number"
		}
		known[s.ID] = true
	}
	if !snapshotID(l.Base) || !known[l.Head] {
		return "invalid first or last snapshot"
	}
	if l.Artifact != nil {
		return l.Artifact.bad(l.Digests())
	}
	return ""
}

// bad returns what is wrong with the location of layers, or "".
func (a *Artifact) bad(layers []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:[]"
	if len(a.Repository) > 512 || !strings.Contains(a.Repository, "/") || strings.Trim(a.Repository, plain) != "" ||
		LayerFile(a.Digest) == "" {
		return "invalid artifact"
	}
	if len(a.Blobs) != len(layers) {
		return "its artifact has different layers"
	}
	for i, b := range a.Blobs {
		if b.Layer != layers[i] || LayerFile(b.Digest) == "" || b.Size <= 0 || b.Size > MaxPacked {
			return "its artifact has different layers"
		}
	}
	return ""
}

func snapshotID(s string) bool { return len(s) == 12 && strings.Trim(s, "0123456789abcdef") == "" }
