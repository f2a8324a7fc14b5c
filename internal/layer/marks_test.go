package layer

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// markedWorld returns a world with a base that has etc/passwd, and a layer with what make changes in etc.
func markedWorld(t *testing.T, make func(w *world, etc string)) *world {
	t.Helper()
	w := newWorld(t, t.TempDir(), true)
	t.Cleanup(w.close)
	w.base(func(src string) {
		w.must(os.Mkdir(filepath.Join(src, "etc"), 0o755))
		w.must(os.WriteFile(filepath.Join(src, "etc/passwd"), []byte("x"), 0o644))
	})
	w.present()
	make(w, filepath.Join(w.live, "etc"))
	if w.capture().Empty {
		t.Fatal("nothing is captured")
	}
	return w
}

// TestWriteTar_RefusesWhiteoutNames covers a file with the name of a whiteout, which would remove another file when
// the layer is imported. It stays in the layer, which can be verified but not packed.
func TestWriteTar_RefusesWhiteoutNames(t *testing.T) {
	for _, name := range []string{".wh.passwd", ".wh..wh..opq", ".wh.dir/", ".wh.dir/below"} {
		w := markedWorld(t, func(w *world, etc string) {
			p := filepath.Join(etc, name)
			if strings.HasSuffix(name, "/") {
				w.must(os.Mkdir(p, 0o755))
				return
			}
			w.must(os.MkdirAll(filepath.Dir(p), 0o755))
			w.must(os.WriteFile(p, nil, 0o644))
		})
		id := w.stack[0]
		finalized, err := w.s.Finalize(t.Context(), id)
		if err != nil || finalized.Digest == "" || finalized.DiffID != "" {
			t.Errorf("%s: finalized as %+v, %v; want a digest and no DiffID", name, finalized, err)
		}
		w.must(w.s.VerifyDigest(t.Context(), id, finalized.Digest))
		var b bytes.Buffer
		err = w.s.WriteTar(t.Context(), id, &b)
		top, _, _ := strings.Cut(name, "/")
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), `"/etc/`+top+`"`) ||
			fault.HintOf(err) == "" || b.Len() > 0 {
			t.Errorf("%s: %v, and %d bytes are written", name, err, b.Len())
		}
		if err := w.s.Packable(t.Context(), id); !fault.Is(err, fault.Unsupported) {
			t.Errorf("%s is packable: %v", name, err)
		}
	}
}

// TestWriteTar_RemovesFileNamedLikeWhiteout checks that the removal of such a file can be
// expressed, and survives a round trip.
func TestWriteTar_RemovesFileNamedLikeWhiteout(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) {
		for _, name := range []string{"passwd", ".wh.passwd", ".wh..wh..opq"} {
			w.must(os.WriteFile(filepath.Join(src, name), nil, 0o644))
		}
	})
	w.present()
	base := w.stack
	w.must(os.Remove(filepath.Join(w.live, ".wh.passwd")))
	w.must(os.Remove(filepath.Join(w.live, ".wh..wh..opq")))
	w.capture()
	stream, diffID := w.sent(w.stack[0])
	w.must(w.s.Packable(t.Context(), w.stack[0]))
	id, below := w.id(), w.s.View(w.dirs(base))
	_, err := w.s.ImportLayer(t.Context(), id, bytes.NewReader(stream), LayerOptions{DiffID: diffID, Below: below.Lookup})
	w.must(err)
	want := files(viewPicture(t, w.s.View(w.dirs(w.stack))))
	w.same("imported", want, files(viewPicture(t, w.s.View(w.dirs(append([]timeline.LayerID{id}, base...))))))
}

// TestWriteTar_SocketHidesLowerEntry covers a socket, which tar cannot express: the entry that it replaced must not
// reappear after an import.
func TestWriteTar_SocketHidesLowerEntry(t *testing.T) {
	socket := func(w *world, p string) {
		w.must(os.RemoveAll(p))
		w.must(unix.Mknod(p, unix.S_IFSOCK|0o755, 0))
	}
	for about, c := range map[string]struct {
		make func(w *world, etc string)
		gone []string
	}{
		"a file":      {func(w *world, etc string) { socket(w, filepath.Join(etc, "passwd")) }, []string{"/etc/passwd"}},
		"a directory": {func(w *world, etc string) { socket(w, etc) }, []string{"/etc", "/etc/passwd"}},
		"a link to one": {func(w *world, etc string) {
			socket(w, filepath.Join(etc, "agent"))
			w.must(os.Remove(filepath.Join(etc, "passwd")))
			w.must(os.Link(filepath.Join(etc, "agent"), filepath.Join(etc, "passwd")))
		}, []string{"/etc/agent", "/etc/passwd"}},
	} {
		w := markedWorld(t, c.make)
		stream, diffID := w.sent(w.stack[0])
		id, base := w.id(), w.stack[1:]
		_, err := w.s.ImportLayer(t.Context(), id, bytes.NewReader(stream),
			LayerOptions{DiffID: diffID, Below: w.s.View(w.dirs(base)).Lookup})
		w.must(err)
		got := w.s.View(w.dirs(append([]timeline.LayerID{id}, base...)))
		for _, name := range c.gone {
			if e, err := got.Lookup(name); !fault.Is(err, fault.NotFound) {
				t.Errorf("a socket in place of %s: the import has %s, mode %o, %v", about, name, e.Mode, err)
			}
		}
	}
}

// TestImportTar_KeepsFilesNamedLikeWhiteouts covers a plain archive, which has no whiteouts.
func TestImportTar_KeepsFilesNamedLikeWhiteouts(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	stream := tarOf(t, tar.Header{Name: "passwd"}, tar.Header{Name: ".wh.passwd"}, tar.Header{Name: ".wh..wh..opq"})
	id := w.id()
	rep, err := w.s.ImportTar(t.Context(), id, bytes.NewReader(stream), TarOptions{})
	w.must(err)
	v := w.s.View(w.dirs([]timeline.LayerID{id}))
	for _, name := range []string{"/passwd", "/.wh.passwd", "/.wh..wh..opq"} {
		if _, err := v.Lookup(name); err != nil {
			t.Errorf("%v; the report is %+v", err, rep)
		}
	}
}
