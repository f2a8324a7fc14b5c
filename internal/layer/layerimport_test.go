package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// files returns a picture without the metadata of directories.
func files(p map[string]string) map[string]string {
	p = maps.Clone(p)
	for name, l := range p {
		if strings.HasPrefix(l, "4") {
			p[name] = "a directory"
		}
	}
	return p
}

// sent returns a layer as it is transferred.
func (w *world) sent(id timeline.LayerID) (stream []byte, diffID string) {
	w.t.Helper()
	finalized, err := w.s.Finalize(context.Background(), id)
	w.must(err)
	var b bytes.Buffer
	w.must(w.s.WriteTar(context.Background(), id, &b))
	return b.Bytes(), finalized.DiffID
}

// TestImportLayer_RoundTrips checks that a layer that is written and imported on the same base is the same layer,
// whatever the sandbox did, and that at another path it is the layer of that path.
func TestImportLayer_RoundTrips(t *testing.T) {
	for _, plain := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			if !plain {
				needOverlay(t)
			}
			dir := t.TempDir()
			n := 0
			rapid.Check(t, func(rt *rapid.T) {
				n++
				home := filepath.Join(dir, fmt.Sprint(n))
				if err := os.Mkdir(home, 0o755); err != nil {
					rt.Fatal(err)
				}
				defer os.RemoveAll(home)
				w := newWorld(rt, home, plain)
				defer w.close()
				w.base(func(src string) {
					for i, p := range []string{"home/alice/proj/a", "home/alice/proj/d/b", "home/alice/proj/d/c", "etc/x"} {
						w.must(os.MkdirAll(filepath.Join(src, filepath.Dir(p)), 0o755))
						w.must(os.WriteFile(filepath.Join(src, p), fmt.Append(nil, i), 0o644))
					}
				})
				w.present()
				base := w.stack
				top := filepath.Join(w.live, "home/alice/proj")
				for range rapid.IntRange(1, 12).Draw(rt, "steps") {
					scribble(rt, top)
				}
				if w.capture().Empty {
					return
				}
				stream, diffID := w.sent(w.stack[0])
				below := w.s.View(w.dirs(base))
				id := w.id()
				_, err := w.s.ImportLayer(context.Background(), id, bytes.NewReader(stream),
					LayerOptions{DiffID: diffID, Below: below.Lookup})
				w.must(err)
				want := files(viewPicture(rt, w.s.View(w.dirs(w.stack))))
				w.same("imported", want, files(viewPicture(rt, w.s.View(w.dirs(append([]timeline.LayerID{id}, base...))))))
				w.elsewhere(rt, stream, diffID, want)
			})
		})
	}
}

// elsewhere imports a layer on a base whose work tree has another path.
func (w *world) elsewhere(rt *rapid.T, stream []byte, diffID string, want map[string]string) {
	const from, to = "/home/alice/proj", "/srv/bob/work"
	src := filepath.Join(w.home, "src2")
	w.must(os.MkdirAll(filepath.Join(src, "srv/bob"), 0o755))
	w.must(os.Chmod(filepath.Join(src, "srv/bob"), 0o700))
	w.must(os.MkdirAll(filepath.Join(src, "home"), 0o751))
	w.must(os.CopyFS(filepath.Join(src, to), os.DirFS(filepath.Join(w.home, "src", from))))
	base := w.id()
	_, err := w.s.ImportDir(context.Background(), base, src, ImportOptions{})
	w.must(err)
	below := w.s.View(w.dirs([]timeline.LayerID{base}))
	id := w.id()
	_, err = w.s.ImportLayer(context.Background(), id, bytes.NewReader(stream),
		LayerOptions{DiffID: diffID, Below: below.Lookup, From: from, To: to})
	w.must(err)
	now := w.s.View(w.dirs([]timeline.LayerID{id, base}))
	names := func(p map[string]string, top string) map[string]string {
		out := map[string]string{}
		for name, l := range p {
			if strings.HasPrefix(name, top+"/") {
				kind, _, _ := strings.Cut(l, " ")
				out[strings.TrimPrefix(name, top)] = kind
			}
		}
		return out
	}
	got := files(viewPicture(rt, now))
	w.same("elsewhere", names(want, from), names(got, to))
	if _, is := got[from]; is {
		rt.Fatalf("%s exists", from)
	}
	for _, dir := range []string{"/", "/srv/bob", "/home"} {
		a, err := below.Lookup(dir)
		w.must(err)
		b, err := now.Lookup(dir)
		w.must(err)
		if a.Mode != b.Mode || a.Mtime != b.Mtime || a.UID != b.UID {
			rt.Fatalf("%s is %o of %d at %d, and was %o of %d at %d", dir, b.Mode, b.UID, b.Mtime, a.Mode, a.UID, a.Mtime)
		}
	}
}

// scribble changes something below a directory.
func scribble(rt *rapid.T, top string) {
	names := []string{"a", "d", "d/b", "d/c", "d/new", "n", "n/x", "l"}
	p := filepath.Join(top, rapid.SampledFrom(names).Draw(rt, "path"))
	switch rapid.SampledFrom([]string{"write", "remove", "remake", "link", "symlink", "chmod"}).Draw(rt, "op") {
	case "write":
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		_ = os.WriteFile(p, []byte(rapid.StringMatching("[a-z]{0,9}").Draw(rt, "content")), 0o644)
	case "remove":
		_ = os.RemoveAll(p)
	case "remake":
		if os.RemoveAll(p) == nil {
			_ = os.MkdirAll(p, 0o755)
		}
	case "link":
		_ = os.Link(filepath.Join(top, "a"), p)
	case "symlink":
		_ = os.Symlink("../a", p)
	case "chmod":
		if info, err := os.Lstat(p); err == nil && info.Mode().IsRegular() {
			_ = os.Chmod(p, 0o4750)
		}
	}
}

func TestImportLayer_RefusesWrongDigest(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	good := tarOf(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "d/f"},
		tar.Header{Name: "d/.wh.x"})
	sum := sha256.Sum256(good)
	diffID := "sha256:" + hex.EncodeToString(sum[:])
	for name, stream := range map[string][]byte{
		"a byte more":  append(bytes.Clone(good), 0),
		"a byte other": bytes.Replace(good, []byte("x"), []byte("y"), 1),
		"cut short":    good[:len(good)-1],
		"nothing":      nil,
	} {
		id := w.id()
		_, err := w.s.ImportLayer(context.Background(), id, bytes.NewReader(stream), LayerOptions{DiffID: diffID})
		if !fault.Is(err, fault.Invalid) || w.s.Has(id) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.s.ImportLayer(context.Background(), w.id(), bytes.NewReader(good),
		LayerOptions{DiffID: diffID}); err != nil {
		t.Error(err)
	}
}

func TestImportLayer_IgnoresHostileWhiteouts(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	stream := tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/"}, tar.Header{Name: "l/.wh.etc"},
		tar.Header{Name: ".wh.."}, tar.Header{Name: ".wh..."},
		tar.Header{Name: ".wh."}, tar.Header{Name: "../.wh.x"}, tar.Header{Name: "ok"},
		tar.Header{Name: "../home/alice/proj/f"})
	sum := sha256.Sum256(stream)
	id := w.id()
	rep, err := w.s.ImportLayer(context.Background(), id, bytes.NewReader(stream),
		LayerOptions{DiffID: "sha256:" + hex.EncodeToString(sum[:]), From: "/home/alice/proj", To: "/home/bob/../x"})
	w.must(err)
	var got []string
	for p := range viewPicture(t, w.s.View(w.dirs([]timeline.LayerID{id}))) {
		got = append(got, p)
	}
	if len(got) != 3 {
		t.Errorf("%q, %q", got, rep.Changed)
	}
}

func TestImportLayer_BoundsBytes(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	id := w.id()
	data := tarOf(t, tar.Header{Name: "a"}, tar.Header{Name: "b"})
	_, err := w.s.ImportLayer(context.Background(), id, bytes.NewReader(data),
		LayerOptions{TarOptions: TarOptions{MaxBytes: 1}, DiffID: "sha256:" + strings.Repeat("0", 64), From: "/", To: "/"})
	if !fault.Is(err, fault.TooLarge) {
		t.Errorf("%v, want too_large", err)
	}
	if w.s.Has(id) {
		t.Error("a refused layer is visible")
	}
}
