//go:build linux

package boxfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/bits"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

type entry struct {
	name, body, link string
	kind             byte
	mode             int64
	xattrs           map[string]string
}

func packed(t testing.TB, list ...entry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range list {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.body)),
			Format: tar.FormatPAX, Uid: 12345}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.mode == 0 {
			h.Mode = 0o644
			if e.kind == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		for k, v := range e.xattrs {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords[xattrRecord+k] = v
		}
		must(t, tw.WriteHeader(h))
		_, err := io.WriteString(tw, e.body)
		must(t, err)
	}
	must(t, tw.Close())
	return &b
}

func TestHostileArchives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, os.Mkdir(w.dir+"/etc", 0o755))
	w.write("etc/passwd", "mine")
	must(t, os.Symlink("/etc", w.dir+"/conf"))
	res, err := w.TarFrom(t.Context(), "/in", packed(t,
		entry{name: "../../secret", body: "x"}, entry{name: "/abs/f", body: "abs"}, entry{name: "a/../../secret", body: "x"},
		entry{name: "l", kind: tar.TypeSymlink, link: "/etc"}, entry{name: "l/passwd", body: "stolen"},
		entry{name: "l/sub/deep", kind: tar.TypeDir},
		entry{name: "up", kind: tar.TypeSymlink, link: "../.."}, entry{name: "up/secret", body: "x"},
		entry{name: "h", kind: tar.TypeLink, link: "../etc/passwd"}, entry{name: "h2", kind: tar.TypeLink, link: "l/passwd"},
		entry{name: "dev", kind: tar.TypeChar}, entry{name: "disk", kind: tar.TypeBlock}, entry{name: "q", kind: 'Q'},
		entry{name: strings.Repeat("n", 300), body: "x"}, entry{name: "suid", body: "x", mode: 0o6755},
		entry{name: "d", kind: tar.TypeDir, mode: 0o500}, entry{name: "d/f", body: "in a closed directory"},
		entry{name: "again", body: "1"}, entry{name: "again", body: "2"},
		entry{name: "same", kind: tar.TypeLink, link: "again"},
		entry{name: "again/below", body: "x"}, entry{name: "d", body: "a file over a directory"},
		entry{name: "pipe", kind: tar.TypeFifo},
		entry{name: "x", body: "x",
			xattrs: map[string]string{"user.a": "b\x00", "trusted.overlay.opaque": "y", "user.overlay.opaque": "y",
				"user.coppice.owner": "0:0", "security.capability": "x"}},
	))
	must(t, err)
	t.Log(strings.Join(res.LeftOut, "\n"))
	w.untouched()
	w.is("etc/passwd", "mine")
	w.is("in/abs/f", "abs")
	w.is("in/d/f", "in a closed directory")
	w.is("in/again", "2")
	w.is("in/same", "2")
	if l, err := w.List(t.Context(), "in", -1); err != nil || len(l.Files) != 11 {
		t.Errorf("%q, %v", namesOf(l), err)
	}
	if l, err := w.List(t.Context(), "etc", -1); err != nil || len(l.Files) != 1 {
		t.Errorf("%q, %v", namesOf(l), err)
	}
	if i, _ := w.Stat("in/suid", false); i.Mode != 0o755 {
		t.Errorf("mode %o", i.Mode)
	}
	if i, _ := w.Stat("in/d", false); i.Mode != 0o500 {
		t.Errorf("mode %o", i.Mode)
	}
	b := make([]byte, 10)
	if n, err := unix.Getxattr(w.dir+"/in/x", "user.a", b); err != nil || string(b[:n]) != "b\x00" {
		t.Errorf("%q, %v", b[:max(n, 0)], err)
	}
	if n, _ := unix.Listxattr(w.dir+"/in/x", nil); n != len("user.a")+1 {
		t.Errorf("attributes of %d bytes", n)
	}
	// Existing links belong to the user, and are kept.
	if _, err := w.TarFrom(t.Context(), "/",
		packed(t, entry{name: "conf", kind: tar.TypeDir}, entry{name: "conf/new", body: "n"})); err != nil {
		t.Error(err)
	}
	w.is("etc/new", "n")
}

func TestTar_RoundTrips(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a/f", strings.Repeat("content ", 100_000))
	w.write("a/.wh.f", "marks nothing here") // a whiteout in an OCI layer
	w.write("a/.wh..wh..opq", "")
	must(t, os.Link(w.dir+"/a/f", w.dir+"/a/g"))
	must(t, os.Symlink("/nowhere\xff", w.dir+"/a/l"))
	must(t, os.Mkdir(w.dir+"/a/empty", 0o711))
	must(t, unix.Mkfifo(w.dir+"/a/p", 0o640))
	must(t, os.Truncate(w.dir+"/a/f", 3<<20)) // with a hole
	must(t, unix.Setxattr(w.dir+"/a/f", "user.tag", []byte("\x00v"), 0))
	old := []unix.Timespec{{Sec: -86400 * 365 * 10, Nsec: 5}, {Sec: -86400 * 365 * 10, Nsec: 5}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, w.dir+"/a/empty", old, 0))
	var plain bytes.Buffer
	must(t, w.TarTo(t.Context(), "a", &plain))
	for _, pack := range []struct {
		name string
		fn   func(io.Writer) io.WriteCloser
	}{
		{"plain", func(w io.Writer) io.WriteCloser { return nop{w} }},
		{"gzip", func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }},
		{"zstd", func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }},
	} {
		var b bytes.Buffer
		z := pack.fn(&b)
		_, err := z.Write(plain.Bytes())
		must(t, err)
		must(t, z.Close())
		res, err := w.TarFrom(t.Context(), pack.name, &b)
		if err != nil || len(res.LeftOut) > 0 {
			t.Fatalf("%s: %+v, %v", pack.name, res, err)
		}
		var again bytes.Buffer
		must(t, w.TarTo(t.Context(), pack.name, &again))
		if want, got := summary(t, &plain), summary(t, &again); want != got {
			t.Errorf("%s:\n%s\nwant\n%s", pack.name, got, want)
		}
		must(t, w.Remove(t.Context(), pack.name, true))
	}
	var one bytes.Buffer
	must(t, w.TarTo(t.Context(), "a/g", &one))
	if s := summary(t, &one); !strings.HasPrefix(s, "g 0 644 ") || strings.Count(s, "\n") != 1 {
		t.Error(s)
	}
}

type nop struct{ io.Writer }

func (nop) Close() error { return nil }

func summary(t *testing.T, b *bytes.Buffer) string {
	t.Helper()
	var s strings.Builder
	for tr := tar.NewReader(bytes.NewReader(b.Bytes())); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return s.String()
		}
		must(t, err)
		body, err := io.ReadAll(tr)
		must(t, err)
		when := h.ModTime.UnixMicro()
		if h.Name == "./" {
			when = 0 // it was just created
		}
		fmt.Fprintf(&s, "%s %c %o %d %q %q %d %x\n", h.Name, h.Typeflag, h.Mode, when, h.Linkname,
			h.PAXRecords[xattrRecord+"user.tag"], len(body), body[:min(len(body), 8)])
	}
}

func TestTarFrom_RefusesBombs(t *testing.T) {
	t.Parallel()
	small := func(o *Options) { o.Limits = Limits{Entries: 100, Bytes: 1 << 20} }
	w := newWorld(t, small)
	many := make([]entry, 200)
	for i := range many {
		many[i] = entry{name: fmt.Sprint(i)}
	}
	_, err := w.TarFrom(t.Context(), "many", packed(t, many...))
	w.kind(err, fault.TooLarge)
	_, err = w.TarFrom(t.Context(), "big", packed(t, entry{name: "f", body: strings.Repeat("x", 2<<20)}))
	w.kind(err, fault.TooLarge)
	for name, pack := range map[string]func(io.Writer) io.WriteCloser{
		"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"zstd": func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z },
	} {
		w := newWorld(t)
		pr, pw := io.Pipe()
		go func() {
			z := pack(pw)
			tw := tar.NewWriter(z)
			_ = tw.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 1 << 38, Format: tar.FormatPAX})
			buf := make([]byte, 1<<20)
			for range 1 << 18 {
				if _, err := tw.Write(buf); err != nil {
					break
				}
			}
			_ = pw.Close()
		}()
		_, err := w.TarFrom(t.Context(), name, pr)
		pr.Close()
		if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "bomb") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"",
		"no archive at all, but some text that is longer than a few bytes" + strings.Repeat(".", 600), "\x1f\x8bnot gzip",
		"\x28\xb5\x2f\xfdnot zstd"} {
		_, err := w.TarFrom(t.Context(), "bad", strings.NewReader(text))
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	cut, _ := io.ReadAll(packed(t, entry{name: "f", body: strings.Repeat("x", 10_000)}))
	_, err = w.TarFrom(t.Context(), "cut", bytes.NewReader(cut[:5000]))
	if !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

func TestTarFrom_RefusesNamesBeyondPathMax(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.TarFrom(t.Context(), "in", packed(t, entry{name: strings.Repeat("d/", 30_000) + "x", body: "x"}))
	w.kind(err, fault.TooLarge)
}

// TestTarTo_RefusesPathsBeyondPathMax checks that a tree that could not be unpacked again is not packed: the total
// length of its names grows with the square of its depth.
func TestTarTo_RefusesPathsBeyondPathMax(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	top, err := os.Open(w.dir)
	must(t, err)
	cur := int(top.Fd())
	for range 30 {
		name := strings.Repeat("n", 200)
		must(t, unix.Mkdirat(cur, name, 0o755))
		next, err := unix.Openat(cur, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { unix.Close(next) })
		cur = next
	}
	must(t, top.Close())
	w.kind(w.TarTo(t.Context(), "/", io.Discard), fault.TooLarge)
}

func TestTarFrom_BoundsItsReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	many := make([]entry, limit.UnpackReports+10)
	for i := range many {
		many[i] = entry{name: "..", link: strings.Repeat("n", 1000)}
	}
	many[0] = entry{name: "h", kind: tar.TypeLink, link: "../" + strings.Repeat("n", 100_000)}
	res, err := w.TarFrom(t.Context(), "in", packed(t, many...))
	must(t, err)
	if n := len(res.LeftOut); n != limit.UnpackReports+1 || res.LeftOut[n-1] != "and more" || len(res.LeftOut[0]) > 2000 {
		t.Errorf("%d lines, the first of %d bytes", n, len(res.LeftOut[0]))
	}
}

func FuzzTarFrom(f *testing.F) {
	seed, _ := io.ReadAll(
		packed(f, entry{name: "a/b", body: "x"}, entry{name: "l", kind: tar.TypeSymlink, link: "/"},
			entry{name: "l/x", body: "y"}, entry{name: "h", kind: tar.TypeLink, link: "a/b"}))
	f.Add(seed)
	f.Add([]byte{0x1f, 0x8b, 8})
	deep, _ := io.ReadAll(packed(f, entry{name: strings.Repeat("d/", 30_000) + "x", body: "x"}))
	f.Add(deep)
	if os.Getuid() == 0 {
		f.Skip("needs an ordinary user: what gets out must harm nothing")
	}
	w := newWorld(f, func(o *Options) { o.Limits = Limits{Entries: 100, Bytes: 1 << 20} })
	f.Fuzz(func(t *testing.T, b []byte) {
		w := w
		w.t = t
		_, _ = w.TarFrom(context.Background(), "in", bytes.NewReader(b))
		w.untouched()
		_ = w.Remove(context.Background(), "in", true)
		if l, err := w.List(context.Background(), "/", -1); err != nil || len(l.Files) > 0 {
			t.Errorf("%q, %v", namesOf(l), err)
		}
	})
}

func FuzzNotices(f *testing.F) {
	f.Add(make([]byte, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = notices(b)
	})
}

// zstdFrame returns a frame with one uncompressed block and a window of 2^(10+exponent)*(1+mantissa/8) bytes (RFC
// 8878, 3.1.1.1.2).
func zstdFrame(exponent, mantissa byte, content []byte) []byte {
	const last = 1
	out := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, exponent<<3 | mantissa}
	head := uint32(len(content))<<3 | last
	return append(append(out, byte(head), byte(head>>8), byte(head>>16)), content...)
}

func TestTarFrom_RefusesAWindowBeyondItsLimit(t *testing.T) {
	w := newWorld(t)
	content, err := io.ReadAll(packed(t, entry{name: "f", body: "x"}))
	must(t, err)
	exponent := byte(bits.TrailingZeros(limit.UnpackWindow) - 10)
	if _, err := w.TarFrom(t.Context(), "at", bytes.NewReader(zstdFrame(exponent, 0, content))); err != nil {
		t.Errorf("a window at the limit: %v", err)
	}
	_, err = w.TarFrom(t.Context(), "beyond", bytes.NewReader(zstdFrame(exponent, 1, content)))
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("a window beyond the limit: %v, want invalid", err)
	}
}
