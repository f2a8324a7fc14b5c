package layer

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// sparse makes a file with data at some offsets.
func sparse(t *testing.T, name string, size int64, at ...int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, off := range at {
		if _, err := f.WriteAt([]byte("data"), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); errors.Is(err, unix.EFBIG) {
		t.Skip("needs large-files: the file system has no files of this size")
	} else if err != nil {
		t.Fatal(err)
	}
}

// sparseStore imports a directory as layer id.
func sparseStore(t *testing.T, id timeline.LayerID, fill func(dir string)) *Store {
	t.Helper()
	s, err := Open(t.Context(), vfs.OS(), filepath.Join(t.TempDir(), "layers"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	src := t.TempDir()
	fill(src)
	if _, err := s.ImportDir(t.Context(), id, src, ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

const sparseID = timeline.LayerID("00000000000000aa")

// TestFinalize_ReadsOnlyDataOfSparseFiles has 60 TiB of holes: a test that reads zeros does not end.
func TestFinalize_ReadsOnlyDataOfSparseFiles(t *testing.T) {
	const huge = 15 << 40
	s := sparseStore(t, sparseID, func(dir string) {
		for _, n := range []string{"a", "b", "c", "d"} {
			sparse(t, filepath.Join(dir, n), huge, 0, 5<<40, huge-4)
		}
		sparse(t, filepath.Join(dir, "small"), 1<<20, 4096)
	})
	got, err := s.Finalize(t.Context(), sparseID)
	if err != nil {
		t.Fatal(err)
	}
	if got.DiffID != "" {
		t.Errorf("the layer has the DiffID %s", got.DiffID)
	}
	if err := s.VerifyDigest(t.Context(), sparseID, got.Digest); err != nil {
		t.Errorf("verify: %v", err)
	}
	if err := s.WriteTar(t.Context(), sparseID, io.Discard); !fault.Is(err, fault.TooLarge) {
		t.Errorf("write as tar: %v", err)
	}
	sparse(t, filepath.Join(s.Dir(sparseID), "c"), huge, 7<<40)
	if err := os.Chtimes(filepath.Join(s.Dir(sparseID), "c"), timeOf(t, s, "d"), timeOf(t, s, "d")); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), sparseID); !fault.Is(err, fault.Corrupt) {
		t.Errorf("verify after a change: %v", err)
	}
}

func timeOf(t *testing.T, s *Store, name string) time.Time {
	t.Helper()
	fi, err := os.Stat(filepath.Join(s.Dir(sparseID), name))
	if err != nil {
		t.Fatal(err)
	}
	return fi.ModTime()
}

// TestFinalize_HashesSmallHolesAsZeros checks that for small holes the manifest is unchanged: it
// is of version 1, and has a DiffID.
func TestFinalize_HashesSmallHolesAsZeros(t *testing.T) {
	s := sparseStore(t, sparseID, func(dir string) { sparse(t, filepath.Join(dir, "f"), limit.ManifestHoles/4, 1<<20) })
	got, err := s.Finalize(t.Context(), sparseID)
	if err != nil || got.DiffID == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.Dir(sparseID)), manifestName))
	if err != nil {
		t.Fatal(err)
	}
	if first := "coppice layer 1\n"; string(text[:len(first)]) != first {
		t.Errorf("the manifest begins with %q", text[:len(first)])
	}
}

func TestSum_StopsOnCancel(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	sparse(t, name, 1<<40)
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := whole.sum(looptest.EndsAfter(t, 3), int(f.Fd()), 1<<40); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestSameContent_ReadsOnlyData compares two files of which one has a block at its beginning, and the other has one
// more at its end. The gap between them was once read as zeros.
func TestSameContent_ReadsOnlyData(t *testing.T) {
	t.Parallel()
	const size = 15 << 40
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		a, b []int64
		same bool
	}{
		"no data":        {nil, nil, true},
		"the same":       {[]int64{0, size - 4}, []int64{0, size - 4}, true},
		"one at the end": {[]int64{0}, []int64{0, size - 4}, false},
		"one in between": {[]int64{0, size / 3, size - 4}, []int64{0, size - 4}, false},
		"none and one":   {nil, []int64{size / 2}, false},
	} {
		a, b := filepath.Join(dir, name+" a"), filepath.Join(dir, name+" b")
		sparse(t, a, size, tc.a...)
		sparse(t, b, size, tc.b...)
		fa, err := os.Open(a)
		if err != nil {
			t.Fatal(err)
		}
		defer fa.Close()
		fb, err := os.Open(b)
		if err != nil {
			t.Fatal(err)
		}
		defer fb.Close()
		same, err := sameContent(looptest.EndsAfter(t, 20), int(fa.Fd()), int(fb.Fd()), size)
		if err != nil || same != tc.same {
			t.Errorf("%s: same %v, %v", name, same, err)
		}
		if same, err = sameContent(looptest.EndsAfter(t, 20), int(fb.Fd()), int(fa.Fd()), size); err != nil ||
			same != tc.same {
			t.Errorf("%s, the other way round: same %v, %v", name, same, err)
		}
	}
}
