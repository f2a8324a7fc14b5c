package proposal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

func someLayers() *Layers {
	digest := "sha256:" + strings.Repeat("ab", 32)
	code := 3
	return &Layers{Schema: Schema, Sandbox: "0123456789ab", Top: "/home/alice/proj", Base: "aaaaaaaaaaaa",
		Head: "cccccccccccc", Snapshots: []PackedSnapshot{
			{ID: "bbbbbbbbbbbb", Parent: "aaaaaaaaaaaa", Cause: "exec", Message: "make", Time: time.Unix(1, 0).
				UTC(), Exit: &code,
				Paths: 1, Bytes: 2, Layer: digest, Below: "aaaaaaaaaaaa"},
			{ID: "cccccccccccc", Parent: "bbbbbbbbbbbb", Cause: "manual", Time: time.Unix(2, 0).UTC()},
		}}
}

func TestLayers_RoundTrip(t *testing.T) {
	t.Parallel()
	b, err := EncodeLayers(someLayers())
	if err != nil {
		t.Fatal(err)
	}
	l, err := DecodeLayers(b)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := EncodeLayers(l); err != nil || !bytes.Equal(again, b) {
		t.Errorf("%s, %v", again, err)
	}
}

func elsewhere() *Layers {
	l := someLayers()
	l.Artifact = &Artifact{Repository: "ghcr.io/team/layers", Digest: "sha256:" + strings.Repeat("cd", 32),
		Blobs: []Blob{{Layer: l.Snapshots[0].Layer, Digest: "sha256:" + strings.Repeat("ef", 32), Size: 9}}}
	return l
}

func TestLayers_InRegistry(t *testing.T) {
	t.Parallel()
	b, err := EncodeLayers(elsewhere())
	if err != nil {
		t.Fatal(err)
	}
	if l, err := DecodeLayers(b); err != nil || l.Artifact.Blobs[0].Size != 9 {
		t.Errorf("%+v, %v", l, err)
	}
	for name, change := range map[string]func(a *Artifact){
		"a host alone":          func(a *Artifact) { a.Repository = "ghcr.io" },
		"a URL with a password": func(a *Artifact) { a.Repository = "https://u:p@ghcr.io/x" },
		"control bytes":         func(a *Artifact) { a.Repository = "ghcr.io/\x1b[31m" },
		"a digest that is none": func(a *Artifact) { a.Digest = "latest" },
		"a layer less":          func(a *Artifact) { a.Blobs = nil },
		"a layer more":          func(a *Artifact) { a.Blobs = append(a.Blobs, a.Blobs[0]) },
		"another layer":         func(a *Artifact) { a.Blobs[0].Layer = a.Digest },
		"a blob that is none":   func(a *Artifact) { a.Blobs[0].Digest = "../../x" },
		"no bytes":              func(a *Artifact) { a.Blobs[0].Size = 0 },
		"too many bytes":        func(a *Artifact) { a.Blobs[0].Size = MaxPacked + 1 },
	} {
		l := elsewhere()
		change(l.Artifact)
		if _, err := EncodeLayers(l); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeLayers_RefusesInvalid(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(l *Layers){
		"a schema of later":     func(l *Layers) { l.Schema++ },
		"a top that is none":    func(l *Layers) { l.Top = "home" },
		"a top upwards":         func(l *Layers) { l.Top = "/home/../../etc" },
		"a parent of later":     func(l *Layers) { l.Snapshots[0].Parent = "cccccccccccc" },
		"a snapshot twice":      func(l *Layers) { l.Snapshots[1].ID = "bbbbbbbbbbbb" },
		"the base again":        func(l *Layers) { l.Snapshots[1].ID = l.Base },
		"an id that is none":    func(l *Layers) { l.Snapshots[1].ID = "../../../etc" },
		"a head elsewhere":      func(l *Layers) { l.Head = "dddddddddddd" },
		"a digest that is none": func(l *Layers) { l.Snapshots[0].Layer = "sha256:../x" },
		"a layer on nothing":    func(l *Layers) { l.Snapshots[0].Below = "" },
		"a layer on later":      func(l *Layers) { l.Snapshots[0].Below = "cccccccccccc" },
		"fewer than no bytes":   func(l *Layers) { l.Snapshots[0].Bytes = -1 },
		"a zero byte":           func(l *Layers) { l.Snapshots[0].Message = "\x00" },
	} {
		l := someLayers()
		change(l)
		if _, err := EncodeLayers(l); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecodeLayers checks that every decoded text is the canonical encoding.
func FuzzDecodeLayers(f *testing.F) {
	b, err := EncodeLayers(someLayers())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}\n"))
	f.Add(append(bytes.Clone(b), "{}"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := DecodeLayers(b)
		if err != nil {
			return
		}
		if again, err := EncodeLayers(l); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q is encoded as %q, %v", b, again, err)
		}
	})
}
