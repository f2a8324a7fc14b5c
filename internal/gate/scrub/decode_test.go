package scrub

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

// flusher is what the encoders have in common.
type flusher interface {
	io.WriteCloser
	Flush() error
}

// codings are the encodings that are searched.
func codings() map[string]func(io.Writer) flusher {
	raw := func(w io.Writer) flusher { f, _ := flate.NewWriter(w, 6); return f }
	z := func(w io.Writer) flusher { f, _ := zstd.NewWriter(w); return f }
	return map[string]func(io.Writer) flusher{"gzip": func(w io.Writer) flusher { return gzip.NewWriter(w) },
		"deflate": func(w io.Writer) flusher { return zlib.NewWriter(w) }, "Deflate": raw, "zstd": z}
}

func pack(of func(io.Writer) flusher, text string) []byte {
	var b bytes.Buffer
	w := of(&b)
	io.WriteString(w, text)
	w.Close()
	return b.Bytes()
}

// noise returns text that compresses badly.
func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = grants[rand.IntN(len(grants))]
	}
	return string(b)
}

// TestEncoded_PassesOthersUnchanged reads bodies without a value.
func TestEncoded_PassesOthersUnchanged(t *testing.T) {
	t.Parallel()
	for name, of := range codings() {
		for _, text := range []string{"", "short", noise(200_000), strings.Repeat("again ", 100_000),
			token[:leastForm-1]} {
			b := pack(of, text)
			for _, in := range []io.Reader{bytes.NewReader(b), iotest.OneByteReader(bytes.NewReader(b))} {
				r, err := known().Encoded(name, in)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(r)
				if r.Close(); err != nil || !bytes.Equal(got, b) {
					t.Errorf("%s of %d bytes: %d bytes of %d, %v", name, len(text), len(got), len(b), err)
				}
			}
		}
	}
}

// TestEncoded_StopsBeforeValue checks that what was returned before the value does not decode to any part of it.
func TestEncoded_StopsBeforeValue(t *testing.T) {
	t.Parallel()
	for name, of := range codings() {
		for _, size := range []int{0, 10, 32 << 10, 200_000} {
			text := noise(size)
			b := pack(of, text+token+noise(size))
			r, err := known().Encoded(name, iotest.HalfReader(bytes.NewReader(b)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			if r.Close(); !errors.As(err, &Found{}) {
				t.Errorf("%s after %d bytes: %v", name, size, err)
			}
			plain := unpack(t, name, got)
			if strings.Contains(plain, token[:passed+2]) || !strings.HasPrefix(text+token, plain) {
				t.Errorf("%s after %d bytes: %d bytes came through", name, size, len(plain))
			}
		}
	}
}

// unpack decodes as much as it can of a body that was cut.
func unpack(t *testing.T, name string, b []byte) string {
	t.Helper()
	e, err := new(Live).Encoded(name, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if len(b) == 0 {
		return ""
	}
	d, err := e.(*encoded).open()
	if err != nil {
		return ""
	}
	got, _ := io.ReadAll(d)
	return string(got)
}

// TestEncoded_DelaysNothing checks that what a server flushes arrives before it sends more.
func TestEncoded_DelaysNothing(t *testing.T) {
	t.Parallel()
	for name, of := range codings() {
		pr, pw := io.Pipe()
		r, err := known().Encoded(name, pr)
		if err != nil {
			t.Fatal(err)
		}
		w := of(pw)
		next := make(chan struct{})
		go func() {
			io.WriteString(w, "event one\n\n")
			w.Flush()
			<-next
			io.WriteString(w, "event two\n\n")
			w.Close()
			pw.Close()
		}()
		var got []byte
		for b := make([]byte, 1000); !strings.Contains(unpack(t, name, got), "event one\n\n"); {
			n, err := r.Read(b)
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, b[:n]...)
		}
		close(next)
		rest, err := io.ReadAll(r)
		if r.Close(); err != nil || unpack(t, name, append(got, rest...)) != "event one\n\nevent two\n\n" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEncoded_RefusesOthers checks bodies that cannot be decoded, or not in full.
func TestEncoded_RefusesOthers(t *testing.T) {
	t.Parallel()
	for _, coding := range []string{"br", "compress", "gzip, gzip", "dcb", "zstd,identity"} {
		if _, err := known().Encoded(coding, strings.NewReader("")); !errors.Is(err, ErrCoding) {
			t.Errorf("%s: %v", coding, err)
		}
	}
	for name, of := range codings() {
		for what, b := range map[string][]byte{"garbage": []byte("not encoded at all, but text"),
			"after": append(pack(of, "text"), token...)} {
			r, err := known().Encoded(name, bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			if r.Close(); !errors.Is(err, ErrCoding) || bytes.Contains(got, []byte(token)) {
				t.Errorf("%s with %s: %q, %v", name, what, got, err)
			}
		}
	}
	// Blocks that decode to nothing are bounded.
	r, err := known().Encoded("deflate", io.MultiReader(bytes.NewReader(bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, maxPending))))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, ErrCoding) {
		t.Errorf("empty blocks: %v", err)
	}
}
