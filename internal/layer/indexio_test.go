package layer

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// TestIndexLargerThanItsBuffer reads back an index that is written in several
// pieces.
func TestIndexLargerThanItsBuffer(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	fill(t, w.home+"/live/a/b", 3000)
	x, err := w.s.Scan(context.Background(), []rootspec.Part{{Dir: w.home + "/live", Path: "/"}}, true)
	w.must(err)
	var one, two bytes.Buffer
	n, err := x.WriteTo(&one)
	w.must(err)
	if n != int64(one.Len()) || n <= indexBufSize {
		t.Errorf("%d bytes written, %d reported", one.Len(), n)
	}
	y, err := ReadIndex(bytes.NewReader(one.Bytes()))
	w.must(err)
	if y.Entries() != x.Entries() {
		t.Errorf("%d entries of %d", y.Entries(), x.Entries())
	}
	_, err = y.WriteTo(&two)
	w.must(err)
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the index that was read differs")
	}
	if n, err := x.WriteTo(&full{left: indexBufSize}); !errors.Is(err, errFull) || n > indexBufSize {
		t.Errorf("on a full disk: %d bytes, %v", n, err)
	}
}

var errFull = errors.New("full")

// full accepts left bytes.
type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.left)
	f.left -= n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}
