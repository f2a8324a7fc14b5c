package format

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
)

func sample() []Entry {
	return []Entry{
		{Path: "", Type: Dir, Mode: 0o755, Mtime: -5},
		{Path: "a b\n%", Type: File, Mode: 0o4755, UID: 1, GID: 4294967295, Mtime: 1700000000123456789, Size: 3,
			Xattrs: []Xattr{{"user.a", ""}, {"user.b", "\x00\xff"}}},
		{Path: "d", Type: Opaque, Mode: 0o1777},
		{Path: "d/dev", Type: Char, Major: 1, Minor: 3, Mode: 0o666},
		{Path: "d/h", Type: Hardlink, Link: "a b\n%"},
		{Path: "d/l", Type: Symlink, Mode: 0o777, Link: "../\xff"},
		{Path: "d.x", Type: Whiteout},
		{Path: "p", Type: FIFO, Mode: 0o600},
		{Path: "s", Type: Socket, Mode: 0o600},
	}
}

func encode(t testing.TB, e []Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Encode(t.Context(), &b, e); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestManifestRoundTrip(t *testing.T) {
	data := encode(t, sample())
	got, err := Parse(context.Background(), data)
	if err != nil {
		t.Fatal(err)
	}
	if again := encode(t, got); !bytes.Equal(again, data) {
		t.Errorf("got\n%s\nwant\n%s", again, data)
	}
}

func TestManifestStrict(t *testing.T) {
	good := string(encode(t, sample()))
	tests := map[string]string{
		"empty":                 "",
		"cut short":             good[:len(good)-1],
		"trailing bytes":        good + "x",
		"wrong count":           strings.Replace(good, "end 9", "end 8", 1),
		"leading zero":          strings.Replace(good, " 755 ", " 0755 ", 1),
		"lower-case escape":     strings.Replace(good, "%0A", "%0a", 1),
		"needless escape":       strings.Replace(good, "d/dev", "d/%64ev", 1),
		"out of order":          strings.Replace(good, "p p ", "p a ", 1),
		"dot dot":               strings.Replace(good, "d/dev", "d/..", 1),
		"no parent":             strings.Replace(good, "d/dev", "e/dev", 1),
		"link to nothing":       strings.Replace(good, "h d/h a%20b%0A%25", "h d/h b", 1),
		"unknown type":          strings.Replace(good, "\np ", "\nq ", 1),
		"attribute twice":       strings.Replace(good, "user.b", "user.a", 1),
		"sparse, version 1":     strings.Replace(good, "\nf ", "\nF ", 1),
		"version 2, not sparse": strings.Replace(good, "layer 1", "layer 2", 1),
		"no root":               strings.Replace(good, "d % 755 0 0 -5\n", "", 1),
		"two spaces":            strings.Replace(good, "d % 755", "d %  755", 1),
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			if in == good {
				t.Fatal("the test changes nothing")
			}
			if _, err := Parse(t.Context(), []byte(in)); !fault.Is(err, fault.Corrupt) {
				t.Errorf("Parse: %v", err)
			}
		})
	}
	_, err := Parse(t.Context(), []byte(strings.Replace(good, "layer 1", "layer 3", 1)))
	if !fault.Is(err, fault.Version) || fault.HintOf(err) == "" {
		t.Errorf("unknown version: %v", err)
	}
}

func TestLess_IsTreeOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		paths := rapid.SliceOf(rapid.StringMatching(`[ab.!]{1,2}(/[ab.!]{1,2}){0,2}`)).Draw(rt, "paths")
		sort.Slice(paths, func(i, j int) bool { return Less(paths[i], paths[j]) })
		for i := 1; i < len(paths); i++ {
			a, b := strings.Split(paths[i-1], "/"), strings.Split(paths[i], "/")
			for k := range min(len(a), len(b)) {
				if a[k] != b[k] {
					if a[k] > b[k] {
						rt.Fatalf("%q before %q", paths[i-1], paths[i])
					}
					break
				}
			}
		}
	})
}

func TestTar(t *testing.T) {
	open := func(*Entry) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("abc")), nil }
	var one, two bytes.Buffer
	if err := errors.Join(WriteTar(t.Context(), &one, sample(), open),
		WriteTar(t.Context(), &two, sample(), open)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("not deterministic")
	}
	var names []string
	for tr := tar.NewReader(&one); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	want := "./|a b\n%|d/|d/.wh..wh..opq|d/dev|d/h|d/l|.wh.d.x|p|.wh.s"
	if got := strings.Join(names, "|"); got != want {
		t.Errorf("entries %q, want %q", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(Magic + "\n"))
	var b bytes.Buffer
	_ = Encode(context.Background(), &b, sample())
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Parse(context.Background(), data)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Corrupt && k != fault.Version {
				t.Errorf("kind %s", k)
			}
			return
		}
		if again := encode(t, e); !bytes.Equal(again, data) {
			t.Error("accepted what Encode does not write")
		}
		for _, x := range e {
			h := header(&x)
			_ = h
		}
	})
}

func TestTar_ReportsUnsupportedEntries(t *testing.T) {
	root := Entry{Type: Dir, Mode: 0o755}
	big := strings.Repeat("v", 2<<20)
	for name, e := range map[string]Entry{
		"attributes": {Path: "f", Type: File, Xattrs: []Xattr{{"user.big", big}}},
		"a target":   {Path: "f", Type: Symlink, Link: big},
		"a device":   {Path: "f", Type: Char, Major: 1 << 24},
	} {
		err := WriteTar(t.Context(), io.Discard, []Entry{root, e}, nil)
		if no, ok := errors.AsType[*NoHeader](err); !ok || no.Path != "f" {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	broken := errors.New("broken")
	err := WriteTar(t.Context(), failing{broken}, []Entry{root}, nil)
	if _, ok := errors.AsType[*NoHeader](err); ok || !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestTar_RejectsInvalidDevices(t *testing.T) {
	for value, want := range map[string]byte{
		"c 4095:1048575": tar.TypeChar, "b 1:2": tar.TypeBlock,
		"c 4096:1": tar.TypeReg, "b 1:1048576": tar.TypeReg, "c 4000000000:1": tar.TypeReg,
	} {
		h := header(&Entry{Path: "f", Type: File, Xattrs: []Xattr{{deviceXattr, value}}})
		if kept := h.PAXRecords["SCHILY.xattr."+deviceXattr] == value; h.Typeflag != want || kept != (want == tar.TypeReg) {
			t.Errorf("%s: type %c, the attribute is kept: %v", value, h.Typeflag, kept)
		}
	}
}

// TestTar_RefusesWhiteoutNames covers the names that OCI reserves: a file whose real name begins with ".wh." would
// remove other files when the layer is imported.
func TestTar_RefusesWhiteoutNames(t *testing.T) {
	root, dir := Entry{Type: Dir, Mode: 0o755}, Entry{Path: "d", Type: Dir, Mode: 0o755}
	for _, e := range []Entry{
		{Path: ".wh.passwd", Type: File}, {Path: "d/.wh.passwd", Type: File}, {Path: "d/.wh..wh..opq", Type: File},
		{Path: "d/.wh.", Type: File},
		{Path: "d/.wh.h", Type: Hardlink, Link: "d/f"}, {Path: "d/.wh.l", Type: Symlink, Link: "x"},
		{Path: "d/.wh.p", Type: FIFO},
		{Path: "d/.wh.c", Type: Char}, {Path: "d/.wh.d", Type: Dir}, {Path: "d/.wh.o", Type: Opaque},
		{Path: "d/.wh..opq", Type: Whiteout}, // its mark is that of an opaque directory
	} {
		var b bytes.Buffer
		err := WriteTar(t.Context(), &b, []Entry{root, dir, e}, nil)
		if no, ok := errors.AsType[*NoHeader](err); !ok || no.Path != e.Path || b.Len() > 0 {
			t.Errorf("%s: %v, and %d bytes are written", e.Path, err, b.Len())
		}
	}
	for _, e := range []Entry{{Path: "d/.wh.s", Type: Socket}, {Path: "d/.wh.x", Type: Whiteout},
		{Path: "d/.whx", Type: File}, {Path: "d/a.wh.b", Type: File}} {
		if err := WriteTar(t.Context(), io.Discard, []Entry{root, dir, e}, nil); err != nil {
			t.Errorf("%s: %v", e.Path, err)
		}
	}
}

// TestManifest_StopsOnCancel matters because a manifest may have millions of entries.
func TestManifest_StopsOnCancel(t *testing.T) {
	t.Parallel()
	const n = 5000
	entries := []Entry{{Type: Dir, Mode: 0o755}}
	for i := range n {
		entries = append(entries, Entry{Path: fmt.Sprintf("%04d", i), Type: File})
	}
	var b bytes.Buffer
	if err := Encode(t.Context(), &b, entries); err != nil {
		t.Fatal(err)
	}
	parse := func(ctx context.Context) error { _, err := Parse(ctx, b.Bytes()); return err }
	for name, c := range map[string]struct {
		after int64
		do    func(ctx context.Context) error
	}{
		"lines":  {n / 2, parse},
		"checks": {n + n/2, parse},
		"again":  {2*n + 5, parse},
		"encode": {3, func(ctx context.Context) error { return Encode(ctx, io.Discard, entries) }},
		"tar":    {n / 2, func(ctx context.Context) error { return WriteTar(ctx, io.Discard, entries, nil) }},
	} {
		ctx := looptest.EndsAfter(t, c.after)
		if err := c.do(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want it cancelled", name, err)
		}
		if n := ctx.Calls(); n > c.after+5 {
			t.Errorf("%s: checked its context %d times, %d before it ended", name, n, c.after)
		}
	}
}
