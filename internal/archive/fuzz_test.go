package archive

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/coppice-dev/coppice/internal/fault"
)

// FuzzOpen checks that for any input, no more than the limit is returned, and that errors are of kind Invalid or
// TooLarge.
func FuzzOpen(f *testing.F) {
	plain := bytes.Repeat([]byte("a file\x00"), 300)
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	_, _ = g.Write(plain)
	_ = g.Close()
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:20])
	z, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(z.EncodeAll(plain, nil))
	f.Add(plain)
	f.Add([]byte("\xfd7zXZ\x00\x00\x04"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, src []byte) {
		r, done, err := Open(t.Context(), bytes.NewReader(src), Limits{Bytes: 1 << 20, Window: 1 << 20})
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("%v", err)
			}
			return
		}
		defer done()
		n, err := io.Copy(io.Discard, io.LimitReader(r, 1<<24))
		if k := fault.KindOf(Damaged(err)); err != nil && k != fault.Invalid && k != fault.TooLarge || n < 0 {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}
