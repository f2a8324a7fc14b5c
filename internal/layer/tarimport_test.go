package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// tarOf makes an archive; content is "x".
func tarOf(t testing.TB, hs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range hs {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			h.Typeflag, h.Size = tar.TypeReg, 1
		}
		h.Format = tar.FormatPAX
		h.ModTime = time.Unix(1700000000, 123456789)
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size == 1 {
			if _, err := tw.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func smallTar(t testing.TB) []byte {
	return tarOf(t,
		tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "d/f", PAXRecords: map[string]string{"SCHILY.xattr.user.k": "v"}, Mode: 0o4755},
		tar.Header{Name: "d/h", Typeflag: tar.TypeLink, Linkname: "d/f"},
		tar.Header{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "p", Typeflag: tar.TypeFifo})
}

func TestImportTarMalice(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	outside := filepath.Join(w.home, "outside")
	w.must(os.Mkdir(outside, 0o755))
	long := strings.Repeat("n", 300)
	tests := []struct {
		name   string
		in     []tar.Header
		paths  string // what the layer holds
		report string // part of the report; "": empty
	}{
		{"absolute", []tar.Header{{Name: "/etc/x"}}, "/etc /etc/x", "taken as relative"},
		{"dotdot", []tar.Header{{Name: "../x"}, {Name: "a/../../y"}, {Name: "ok"}}, "/ok", "leads outside"},
		{"symlink traversal", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "l/x"}}, "/l", "below something that is no directory"},
		{"hard link out", []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../outside"}, {Name: "i", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}, {Name: "f"}}, "/f", "links to"},
		{"hard link through a symlink", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/passwd"}}, "/l", "no earlier file"},
		{"device", []tar.Header{{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, {Name: "wh", Typeflag: tar.TypeChar}, {Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}, {Name: "f"}}, "/f", "device nodes"},
		{"twice", []tar.Header{{Name: "f"}, {Name: "f", Mode: 0o600}}, "/f", "replaces"},
		{"file over directory", []tar.Header{{Name: "d/x"}, {Name: "d"}}, "/d /d/x", "a directory of that name"},
		{"directory over file", []tar.Header{{Name: "d"}, {Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/x"}}, "/d /d/x", "replaces"},
		{"directory over symlink", []tar.Header{{Name: "d", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/x"}}, "/d /d/x", "replaces"},
		{"long name", []tar.Header{{Name: long}, {Name: "f"}}, "/f", "too long"},
		{"control bytes", []tar.Header{{Name: "/a\x1b[2Jb"}}, "/a\x1b[2Jb", `\x1b[2J`},
		{"overlay marks", []tar.Header{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.user.overlay.opaque": "y"}}}, "/d", ""},
		{"trusted attribute", []tar.Header{{Name: "f", PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}}}, "/f", "left out"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := w.id()
			rep, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(tarOf(t, tt.in...)), TarOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			v := w.s.View(rootspec.Stack{Layers: []string{w.s.Dir(id), w.s.Dir(id)}})
			if err := v.Walk(context.Background(), func(e Entry) error { got = append(got, e.Path); return nil }); err != nil {
				t.Fatal(err)
			}
			if s := strings.Join(got, " "); s != tt.paths {
				t.Errorf("layer holds %q, want %q", s, tt.paths)
			}
			if all := strings.Join(rep.Changed, "\n"); tt.report == "" && all != "" || !strings.Contains(all, tt.report) {
				t.Errorf("report %q, want %q", all, tt.report)
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Errorf("written outside: %v %v", left, err)
			}
			_, err = w.s.Seal(context.Background(), id)
			w.must(err)
		})
	}
}

func TestImportTarCompressed(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	plain := smallTar(t)
	pack := map[string]func(io.Writer) (io.WriteCloser, error){
		"gz":  func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
		"zst": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
		"xz":  func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) },
	}
	want := ""
	for _, name := range []string{"plain", "gz", "zst", "xz"} {
		data := plain
		if fn := pack[name]; fn != nil {
			var b bytes.Buffer
			z, err := fn(&b)
			w.must(err)
			_, err = z.Write(plain)
			w.must(err)
			w.must(z.Close())
			data = b.Bytes()
		}
		id := w.id()
		_, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(data), TarOptions{})
		w.must(err)
		sealed, err := w.s.Seal(context.Background(), id)
		w.must(err)
		if want == "" {
			want = sealed.DiffID
		}
		if sealed.DiffID != want {
			t.Errorf("%s: another layer", name)
		}
		if _, err := w.s.ImportTar(context.Background(), w.id(), bytes.NewReader(data[:len(data)*2/3]), TarOptions{}); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Internal) && name != "plain" {
			t.Errorf("%s cut short: %v", name, err)
		}
	}
}

// zeros gives n bytes.
type zeros struct{ n int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), z.n)]
	clear(p)
	z.n -= int64(len(p))
	return len(p), nil
}

func TestImportTarBombs(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	w.must(err)
	tw := tar.NewWriter(z)
	w.must(tw.WriteHeader(&tar.Header{Name: "bomb", Mode: 0o644, Size: 300 << 20}))
	_, err = io.Copy(tw, &zeros{300 << 20})
	w.must(err)
	w.must(tw.Close())
	w.must(z.Close())
	id := w.id()
	if _, err := w.s.ImportTar(context.Background(), id, &b, TarOptions{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "bomb") {
		t.Errorf("bomb: %v", err)
	}
	if _, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(smallTar(t)), TarOptions{MaxEntries: 2}); !fault.Is(err, fault.Invalid) {
		t.Errorf("entries: %v", err)
	}
	if _, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(tarOf(t, tar.Header{Name: "a"}, tar.Header{Name: "b"})), TarOptions{MaxBytes: 1}); !fault.Is(err, fault.Invalid) {
		t.Errorf("bytes: %v", err)
	}
	if w.s.Has(id) {
		t.Error("a refused archive is visible")
	}
}

func FuzzImportTar(f *testing.F) {
	f.Add(smallTar(f))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte("\xfd7zXZ\x00"))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd})
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t, t.TempDir(), true)
		defer w.close()
		id := w.id()
		if _, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(data), TarOptions{MaxBytes: 1 << 20, MaxEntries: 1000}); err != nil {
			if w.s.Has(id) {
				t.Error("a refused archive is visible")
			}
			return
		}
		if _, err := w.s.Seal(context.Background(), id); err != nil {
			t.Error(err)
		}
		if err := w.s.Verify(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
}
