package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// tarOf returns an archive whose files have the content "x".
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
		{"dotdot", []tar.Header{{Name: "../x"}, {Name: "a/../../y"}, {Name: "ok"}}, "/ok", "outside the archive"},
		{"symlink traversal", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "l/x"}}, "/l",
			"its parent is not a directory"},
		{"hard link out",
			[]tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../outside"},
				{Name: "i", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}, {Name: "f"}}, "/f", "links to"},
		{"hard link through a symlink",
			[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
				{Name: "h", Typeflag: tar.TypeLink, Linkname: "l/passwd"}}, "/l", "not an earlier file"},
		{"device", []tar.Header{{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
			{Name: "wh", Typeflag: tar.TypeChar}, {Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}, {Name: "f"}}, "/f",
			"device nodes"},
		{"twice", []tar.Header{{Name: "f"}, {Name: "f", Mode: 0o600}}, "/f", "replaces"},
		{"file over directory", []tar.Header{{Name: "d/x"}, {Name: "d"}}, "/d /d/x", "the same name is a directory"},
		{"directory over file", []tar.Header{{Name: "d"}, {Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/x"}},
			"/d /d/x", "replaces"},
		{"directory over symlink",
			[]tar.Header{{Name: "d", Typeflag: tar.TypeSymlink, Linkname: outside},
				{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/x"}}, "/d /d/x", "replaces"},
		{"long name", []tar.Header{{Name: long}, {Name: "f"}}, "/f", "too long"},
		{"control bytes", []tar.Header{{Name: "/a\x1b[2Jb"}}, "/a\x1b[2Jb", `\x1b[2J`},
		{"overlay marks",
			[]tar.Header{
				{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755,
					PAXRecords: map[string]string{"SCHILY.xattr.user.overlay.opaque": "y"}}}, "/d", ""},
		{"trusted attribute",
			[]tar.Header{{Name: "f", PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}}},
			"/f", "left out"},
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
			_, err = w.s.Finalize(context.Background(), id)
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
		finalized, err := w.s.Finalize(context.Background(), id)
		w.must(err)
		if want == "" {
			want = finalized.DiffID
		}
		if finalized.DiffID != want {
			t.Errorf("%s: another layer", name)
		}
		if _, err := w.s.ImportTar(context.Background(), w.id(), bytes.NewReader(data[:len(data)*2/3]),
			TarOptions{}); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Internal) && name != "plain" {
			t.Errorf("%s cut short: %v", name, err)
		}
	}
}

// zeros reads as n zero bytes.
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
	if _, err := w.s.ImportTar(context.Background(), id, &b, TarOptions{}); !fault.Is(err, fault.TooLarge) ||
		!strings.Contains(err.Error(), "bomb") {
		t.Errorf("bomb: %v", err)
	}
	if _, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(smallTar(t)),
		TarOptions{MaxEntries: 2}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("entries: %v", err)
	}
	if _, err := w.s.ImportTar(context.Background(), id,
		bytes.NewReader(tarOf(t, tar.Header{Name: "a"}, tar.Header{Name: "b"})),
		TarOptions{MaxBytes: 1}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("bytes: %v", err)
	}
	if w.s.Has(id) {
		t.Error("a refused archive is visible")
	}
}

// allocated returns how many bytes fn allocates.
func allocated(fn func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestImportTar_RefusesNamesBeyondPathMax covers a name of 60 kB that made 30,000 directories, whose paths took more
// than a gigabyte.
func TestImportTar_RefusesNamesBeyondPathMax(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	for _, name := range []string{strings.Repeat("d/", 30_000) + "x", strings.Repeat("d/", limit.ArchiveName/2) + "xx"} {
		id := w.id()
		data := tarOf(t, tar.Header{Name: name})
		took := allocated(func() {
			if _, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(data),
				TarOptions{}); !fault.Is(err, fault.TooLarge) {
				t.Errorf("%d bytes: %v", len(name), err)
			}
		})
		if took > 16<<20 {
			t.Errorf("a name of %d bytes takes %d bytes of memory", len(name), took)
		}
		if w.s.Has(id) {
			t.Error("a refused archive is visible")
		}
	}
}

// TestImportTar_DeepDirectoryCostIsLinear checks that each directory of a name costs the same at any depth.
func TestImportTar_DeepDirectoryCostIsLinear(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	var all []int64
	for _, depth := range []int{limit.ArchiveName / 4, limit.ArchiveName / 2} {
		data := tarOf(t, tar.Header{Name: strings.Repeat("d/", depth), Typeflag: tar.TypeDir, Mode: 0o500},
			tar.Header{Name: strings.Repeat("d/", depth-1), Typeflag: tar.TypeDir, Mode: 0o300})
		id := w.id()
		top := newDir()
		_, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(data), TarOptions{})
		w.must(err)
		u := &untar{}
		at := top
		for range depth {
			if at, err = u.child(at, "d"); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, u.kept)
		v := w.s.View(rootspec.Stack{Layers: []string{w.s.Dir(id), w.s.Dir(id)}})
		for n, want := range map[int]uint32{1: 0o755, depth - 1: 0o300, depth: 0o500} {
			if e, err := v.Lookup(strings.Repeat("/d", n)); err != nil || e.Mode&0o777 != want {
				t.Errorf("directory %d of %d has the mode %o, %v; want %o", n, depth, e.Mode, err, want)
			}
		}
	}
	if all[1] > 2*all[0]+2*dirCost {
		t.Errorf("twice as deep keeps %d bytes, and not twice %d", all[1], all[0])
	}
}

// TestImportTar_BoundsDirectoryAttributes matters because the attributes of directories are
// held in memory until all entries are in place.
func TestImportTar_BoundsDirectoryAttributes(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	pr, pw := io.Pipe()
	defer pr.Close()
	go func() {
		tw := tar.NewWriter(pw)
		value := strings.Repeat("v", 1<<20-100)
		for i := range 1000 {
			h := tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX,
				PAXRecords: map[string]string{"SCHILY.xattr.user.k": value}}
			if err := tw.WriteHeader(&h); err != nil {
				break
			}
		}
		pw.CloseWithError(tw.Close())
	}()
	rep, err := w.s.ImportTar(context.Background(), w.id(), pr, TarOptions{})
	if !fault.Is(err, fault.TooLarge) || rep.Entries > limit.ArchiveKept>>20+10 {
		t.Errorf("after %d entries: %v", rep.Entries, err)
	}
}

func TestImportTar_KeepsRepeatedAttributeOnce(t *testing.T) {
	u := &untar{}
	d := newDir()
	h := &tar.Header{Name: "d", PAXRecords: map[string]string{"SCHILY.xattr.user.k": strings.Repeat("v", 1<<20)}}
	for range 300 {
		if err := u.describe(d, h); err != nil {
			t.Fatal(err)
		}
	}
	if u.kept > 2<<20 {
		t.Errorf("%d bytes are kept", u.kept)
	}
}

// TestImportTar_BoundsItsReport covers link targets and attribute names, which may have a megabyte each, and reports
// with many lines.
func TestImportTar_BoundsItsReport(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	rep, err := w.s.ImportTar(context.Background(), w.id(),
		bytes.NewReader(
			tarOf(t, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../" + strings.Repeat("n", 100_000)},
				tar.Header{Name: "f", PAXRecords: map[string]string{"SCHILY.xattr.trusted." + strings.Repeat("k", 100_000): "v"}})),
		TarOptions{})
	w.must(err)
	for _, l := range rep.Changed {
		if len(l) > 2000 {
			t.Errorf("a line of %d bytes", len(l))
		}
	}
	u := &untar{}
	for range limit.ArchiveReports + 10 {
		u.note("x", "left out")
	}
	if n := len(u.rep.Changed); n != limit.ArchiveReports+1 || u.rep.Changed[n-1] != "and more" {
		t.Errorf("%d lines", n)
	}
}

// TestImportTar_RefusesOrBoundsHostileHeaders covers other archives that are small and request many resources.
func TestImportTar_RefusesOrBoundsHostileHeaders(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	links := []tar.Header{{Name: "0"}}
	for i := range 5000 {
		links = append(links, tar.Header{Name: fmt.Sprint(i + 1), Typeflag: tar.TypeLink, Linkname: fmt.Sprint(i)})
	}
	same := make([]tar.Header, 5000)
	for i := range same {
		same[i] = tar.Header{Name: "d/f"}
	}
	for name, tt := range map[string]struct {
		data []byte
		kind fault.Kind
	}{
		"a chain of hard links":  {tarOf(t, links...), ""},
		"one name, many times":   {tarOf(t, same...), ""},
		"a sparse file of 8 EiB": {sparseTar(t, "9223372036854775807"), fault.TooLarge},
		"a sparse file of 1 TiB": {sparseTar(t, "1099511627776"), fault.TooLarge},
		"a header of 2 MiB":      {tarRaw(t, 'x', 2<<20), fault.Invalid},
		"a long name of 2 MiB":   {tarRaw(t, 'L', 2<<20), fault.Invalid},
	} {
		took := allocated(func() {
			if _, err := w.s.ImportTar(context.Background(), w.id(), bytes.NewReader(tt.data),
				TarOptions{}); err != nil != (tt.kind != "") || err != nil && fault.KindOf(err) != tt.kind {
				t.Errorf("%s: %v", name, err)
			}
		})
		if took > 64<<20 && !looptest.Race { // with it, a sync.Pool drops what it holds at random
			t.Errorf("%s takes %d bytes of memory", name, took)
		}
	}
}

// sparseTar returns an archive with one file that is a hole, in the form 1.0 of GNU for PAX.
func sparseTar(t testing.TB, size string) []byte {
	t.Helper()
	return tarOfRecords(t,
		[][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", "hole"},
			{"GNU.sparse.realsize", size}},
		"1\n"+size+"\n0\n")
}

// tarOfRecords returns an archive of one file with any records, which archive/tar does not write.
func tarOfRecords(t testing.TB, records [][2]string, body string) []byte {
	t.Helper()
	var pax strings.Builder
	for _, r := range records {
		n := len(r[0]) + len(r[1]) + 3
		for size := n; ; size++ {
			if line := fmt.Sprintf("%d %s=%s\n", size, r[0], r[1]); len(line) == size {
				pax.WriteString(line)
				break
			}
		}
	}
	body += strings.Repeat("\x00", 512-len(body)%512)
	return append(append(tarBlock(t, 'x', pax.String()), tarBlock(t, '0', body)...), make([]byte, 1024)...)
}

// tarRaw returns an archive that begins with an entry of any type.
func tarRaw(t testing.TB, kind byte, size int) []byte {
	t.Helper()
	return append(tarBlock(t, kind, strings.Repeat("x", size)), tarBlock(t, '0', "x")...)
}

// tarBlock returns a header and its content.
func tarBlock(t testing.TB, kind byte, body string) []byte {
	t.Helper()
	b := make([]byte, 512)
	copy(b, "name")
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00%011o\x00        %c", len(body), 0, kind))
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	b = append(b, body...)
	return append(b, make([]byte, (512-len(body)%512)%512)...)
}

func FuzzImportTar(f *testing.F) {
	f.Add(smallTar(f))
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte("\xfd7zXZ\x00"))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd})
	f.Add(tarOf(f, tar.Header{Name: strings.Repeat("d/", 30_000) + "x"}))
	f.Add(sparseTar(f, "1099511627776"))
	f.Add(tarRaw(f, 'L', 4096))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t, t.TempDir(), true)
		defer w.close()
		id := w.id()
		if _, err := w.s.ImportTar(context.Background(), id, bytes.NewReader(data),
			TarOptions{MaxBytes: 1 << 20, MaxEntries: 1000}); err != nil {
			if w.s.Has(id) {
				t.Error("a refused archive is visible")
			}
			return
		}
		if _, err := w.s.Finalize(context.Background(), id); err != nil {
			t.Error(err)
		}
		if err := w.s.Verify(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
}
