//go:build linux

package travel

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/timeline"
)

var _ API = (*client.Client)(nil)

func TestInOrder_ReturnsEachLayerOnce(t *testing.T) {
	t.Parallel()
	list := &proposal.Artifact{Blobs: []proposal.Blob{{Layer: "one", Size: 3}, {Layer: "two", Size: 4}}}
	first := func(r io.Reader) error { _, err := r.Read(make([]byte, 1)); return err }
	from := inOrder(list, strings.NewReader("onetwo"))
	if err := from(t.Context(), "two", first); !fault.Is(err, fault.Internal) {
		t.Errorf("the second layer before the first: %v, want internal", err)
	}
	if err := from(t.Context(), "one", first); err != nil {
		t.Errorf("the first layer: %v", err)
	}
	var got strings.Builder
	err := from(t.Context(), "two", func(r io.Reader) error { _, err := io.Copy(&got, r); return err })
	if got.String() != "two" || !fault.Is(err, fault.Invalid) {
		t.Errorf("the second layer, one byte too short: %q, %v, want two and invalid", got.String(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := inOrder(list, strings.NewReader("one"))(ctx, "one", first); err == nil {
		t.Error("a layer was passed to use after the context has ended")
	}
}

func TestUpTo_RefusesMoreBytes(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &upTo{f, 4}
	if n, err := w.Write([]byte("1234")); n != 4 || err != nil {
		t.Errorf("4 bytes: %d, %v", n, err)
	}
	if n, err := w.Write([]byte("5")); n != 0 || !fault.Is(err, fault.NoSpace) {
		t.Errorf("one byte more: %d, %v, want no_space", n, err)
	}
}

func TestCauseOf_ImportBecomesManual(t *testing.T) {
	t.Parallel()
	if c := causeOf(string(timeline.CauseExec)); c != timeline.CauseExec {
		t.Errorf("the cause of a command's snapshot: %s", c)
	}
	if c := causeOf(string(timeline.CauseImport)); c != timeline.CauseManual {
		t.Errorf("the cause of an import's snapshot: %s, want %s", c, timeline.CauseManual)
	}
}

func TestAbove_ListsParents(t *testing.T) {
	t.Parallel()
	if got, want := above("/a/b/../c/"), []string{"/a/c", "/a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
