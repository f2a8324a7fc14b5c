package archive_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/coppice-dev/coppice/internal/archive"
	"github.com/coppice-dev/coppice/internal/fault"
)

// packed returns text in each kind of compression.
func packed(t testing.TB, text []byte) map[string][]byte {
	t.Helper()
	var b bytes.Buffer
	w, err := xz.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"none": text, "gzip": gzipped(t, text), "zstd": zstandard(t, text),
		"xz": written(t, &b, w, text)}
}

func gzipped(t testing.TB, text []byte) []byte {
	var b bytes.Buffer
	return written(t, &b, gzip.NewWriter(&b), text)
}

func zstandard(t testing.TB, text []byte) []byte {
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	return written(t, &b, w, text)
}

// written returns what w writes to b for text.
func written(t testing.TB, b *bytes.Buffer, w io.WriteCloser, text []byte) []byte {
	t.Helper()
	_, err := w.Write(text)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(ctx context.Context, src []byte) ([]byte, error) {
	r, done, err := archive.Open(ctx, bytes.NewReader(src), archive.Limits{Bytes: 1 << 40, Window: 8 << 20})
	if err != nil {
		return nil, err
	}
	defer done()
	return io.ReadAll(r)
}

func TestArchive_DetectsCompression(t *testing.T) {
	t.Parallel()
	text := []byte(strings.Repeat("some text, ", 1000))
	for name, src := range packed(t, text) {
		if got, err := read(t.Context(), src); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(text), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := read(ctx, src); err == nil {
			t.Errorf("%s: read despite a cancelled context", name)
		}
		if name == "none" {
			continue
		}
		if _, err := read(t.Context(), src[:len(src)-5]); err == nil {
			t.Errorf("%s: a truncated archive was accepted", name)
		}
	}
	if got, err := read(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("empty archive: %q, %v", got, err)
	}
}

func TestArchive_RefusesBomb(t *testing.T) {
	t.Parallel()
	// 72 MiB of zeros, compressed with xz(1): the package's writer takes minutes.
	xz, err := os.ReadFile("testdata/zeros.xz")
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 72<<20)
	for name, src := range map[string][]byte{"none": zeros, "gzip": gzipped(t, zeros),
		"zstd": zstandard(t, zeros), "xz": xz} {
		_, err := read(t.Context(), src)
		if bomb := fault.Is(err, fault.TooLarge) && strings.Contains(err.Error(), "bomb"); bomb != (name != "none") {
			t.Errorf("%s of %d bytes: %v", name, len(src), err)
		}
	}
}

// TestArchive_RefusesLargeWindow checks that the window is limited: a decompressor must hold all of it in memory.
func TestArchive_RefusesLargeWindow(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithWindowSize(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	src := written(t, &b, z, make([]byte, 65<<20))
	if _, err := read(t.Context(), src); !fault.Is(archive.Damaged(err), fault.Invalid) {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"a/b": "a|b", "./a//b/": "a|b", "/etc/passwd": "etc|passwd", "": "", ".": "", "/": "",
		"..": "out", "a/../b": "out", "a/..": "out", "/../x": "out", "a\x00b": "out", "...": "...",
		strings.Repeat("n", 255): strings.Repeat("n", 255), strings.Repeat("n", 256): "out",
		strings.Repeat("a/", 40000): "out",
	} {
		names, absolute, ok := archive.Name(path)
		got := strings.Join(names, "|")
		if !ok {
			got = "out"
		}
		if got != want || absolute != strings.HasPrefix(path, "/") {
			t.Errorf("%.20q: %.40q, %v; not %.40q", path, got, absolute, want)
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add("a/b/../c")
	f.Fuzz(func(t *testing.T, path string) {
		names, _, ok := archive.Name(path)
		for _, n := range names {
			if !ok || n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
				t.Errorf("%q: %q", path, names)
			}
		}
	})
}
