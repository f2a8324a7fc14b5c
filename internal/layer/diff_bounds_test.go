package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestDiff_CountsNoLinesOfALargeFile(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for name, size := range map[string]int{"a": limit.DiffLines, "b": limit.DiffLines + 1} {
		w.must(os.WriteFile(filepath.Join(now, name), bytes.Repeat([]byte{'x'}, size), 0o600))
	}
	list, err := Changes(context.Background(), rawView(was, true), rawView(now, true), nil, DiffOptions{Stat: true})
	if err != nil || len(list) != 2 || list[0].Binary || list[0].Lines == nil || !list[1].Binary {
		t.Errorf("%+v, %v", list, err)
	}
}

// written counts the bytes that are written to it.
type written int

func (c *written) Write(p []byte) (int, error) { *c += written(len(p)); return len(p), nil }

func TestDiff_TruncatesAfterFirstChanges(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for i := range 100 {
		w.must(os.WriteFile(filepath.Join(now, fmt.Sprintf("f%03d", i)), nil, 0o600))
	}
	a, b := rawView(was, true), rawView(now, true)
	for _, n := range []int{1, 99, 100, 101} {
		list, more, err := Some(ctx, a, b, nil, DiffOptions{Most: n})
		w.must(err)
		if more != (n < 100) || len(list) != min(n, 100) || list[0].Path != "/f000" {
			t.Errorf("at most %d: %d changes, more %v", n, len(list), more)
		}
	}
	if _, err := Changes(ctx, a, b, nil, DiffOptions{Most: 99}); !fault.Is(err, fault.TooLarge) ||
		fault.HintOf(err) == "" {
		t.Errorf("all of them: %v, want too_large with a hint", err)
	}
}

// TestDiff_BoundsListedChanges has one change more in one directory than an answer lists.
func TestDiff_BoundsListedChanges(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "layer") // where many files are made fast
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	was, now := filepath.Join(dir, "was"), filepath.Join(dir, "now")
	for _, d := range []string{was, now} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, now)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i := range limit.DiffEntries + 1 {
		if err := unix.Mknodat(fd, fmt.Sprint(i), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	a, b := rawView(was, true), rawView(now, true)
	list, more, err := Some(context.Background(), a, b, nil, DiffOptions{})
	if err != nil || !more || len(list) != limit.DiffEntries {
		t.Errorf("%d changes, more %v, %v; want the first %d", len(list), more, err, limit.DiffEntries)
	}
	if _, err := Changes(context.Background(), a, b, nil, DiffOptions{}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("all of them: %v, want too_large", err)
	}
}

func TestDiff_StopsOnCancel(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for i := range 1_000 {
		w.must(os.WriteFile(filepath.Join(now, fmt.Sprintf("f%03d", i)), []byte("text\n"), 0o600))
	}
	a, b := rawView(was, true), rawView(now, true)
	for _, stat := range []bool{false, true} {
		told := 0
		ctx := looptest.EndsAfter(t, 50)
		err := EachChange(ctx, a, b, nil, DiffOptions{Stat: stat}, func(*Change) error { told++; return nil })
		if !errors.Is(err, context.Canceled) || told > 51 {
			t.Errorf("with stat %v: %v after %d changes", stat, err, told)
		}
	}
	one, err := os.Open(filepath.Join(now, "f000"))
	w.must(err)
	defer one.Close()
	fd := int(one.Fd())
	if _, err := sameContent(looptest.EndsAfter(t, 0), fd, fd, 5); !errors.Is(err, context.Canceled) {
		t.Errorf("contents are compared after the context was canceled: %v", err)
	}
	walker := w.s.newWalker(looptest.EndsAfter(t, 50), CaptureInput{})
	if _, _, err := walker.walk([]rootspec.Part{{Dir: now, Path: "/"}}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("capture: %v", err)
	}
	ctx := looptest.EndsAfter(t, 50)
	seen := 0
	if err := b.walk(ctx, func(*mdir, *found) error { seen++; return nil }); !errors.Is(err, context.Canceled) ||
		seen > 51 {
		t.Errorf("walk: %v after %d entries", err, seen)
	}
}

func TestDiff_BoundsCountedLines(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for name, n := range map[string]int{"a": limit.DiffLineCount, "b": limit.DiffLineCount + 1} {
		w.must(os.WriteFile(filepath.Join(now, name), bytes.Repeat([]byte{'\n'}, n), 0o600))
	}
	list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil, DiffOptions{Stat: true})
	if err != nil || len(list) != 2 || list[0].Lines == nil || list[0].Lines.Added != limit.DiffLineCount ||
		!list[1].Binary {
		t.Errorf("%+v, %v", list, err)
	}
	var patch bytes.Buffer
	w.must(Patch(t.Context(), &patch, rawView(was, true), rawView(now, true), nil, DiffOptions{Paths: []string{"/b"}}))
	if got := patch.String(); !strings.Contains(got, "Binary files /dev/null and b/b differ") {
		t.Errorf("the patch is %.300q", got)
	}
}

// TestDiff_HonorsIgnore checks that it is not a change when the overlay of an ordinary user copies up a directory.
func TestDiff_HonorsIgnore(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	for _, dir := range []string{"opt", "own"} {
		w.must(os.MkdirAll(filepath.Join(was, dir), 0o755))
		w.must(os.MkdirAll(filepath.Join(now, dir), 0o755))
	}
	if err := os.Chown(filepath.Join(was, "opt"), 12345, 12345); err != nil {
		t.Skip("needs real-root: to give a directory to another user")
	}
	w.must(os.Chmod(filepath.Join(was, "opt"), 0o555)) // root may still write to it
	w.must(os.Chmod(filepath.Join(now, "opt"), 0o755))
	w.must(os.Chmod(filepath.Join(now, "own"), 0o700))
	for _, tc := range []struct {
		ignore Ignored
		want   []string
	}{
		{Ignored{}, []string{"/opt", "/own"}},
		{Ignored{Roots: map[string]bool{"/opt": true}, Owners: true}, []string{"/own"}},
	} {
		opts := DiffOptions{Ignore: tc.ignore}
		list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil, opts)
		var got []string
		for _, c := range list {
			got = append(got, c.Path)
		}
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("changes of %v, %v; want %v", got, err, tc.want)
		}
		var patch bytes.Buffer
		w.must(Patch(t.Context(), &patch, rawView(was, true), rawView(now, true), nil, opts))
		if got := strings.Count(patch.String(), "new mode"); got != len(tc.want) {
			t.Errorf("the patch has %d modes, want %d: %s", got, len(tc.want), patch.String())
		}
	}
}

// TestDiff_ReportsChangesOfRoots covers the root of a part: a process can change its mode and owner like those of any
// directory.
func TestDiff_ReportsChangesOfRoots(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	roots := map[string]bool{}
	for _, dir := range []string{"same", "bits", "open", "setgid", "owner"} {
		w.must(os.MkdirAll(filepath.Join(was, dir), 0o755))
		w.must(os.MkdirAll(filepath.Join(now, dir), 0o755))
		roots["/"+dir] = true
	}
	w.must(os.Chmod(filepath.Join(now, "bits"), 0o555)) // of the same owner
	w.must(os.Chmod(filepath.Join(now, "open"), 0o777))
	w.must(os.Chmod(filepath.Join(now, "setgid"), 0o755|os.ModeSetgid))
	want := []string{"/bits", "/open", "/owner", "/setgid"}
	if err := unix.Setxattr(filepath.Join(now, "owner"), xattrOwner, []byte("5:5"), 0); err != nil {
		want = []string{"/bits", "/open", "/setgid"} // user attributes are not supported here
	}
	list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil,
		DiffOptions{Ignore: Ignored{Roots: roots, Owners: true}})
	var got []string
	for _, c := range list {
		got = append(got, c.Path)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("changes of %v, %v; want %v", got, err, want)
	}
}

func TestDiff_ReportsRemovedSize(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	w.must(os.WriteFile(filepath.Join(was, "bin"), make([]byte, 300), 0o600))
	list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil, DiffOptions{Stat: true})
	if err != nil || len(list) != 1 || list[0].Kind != Removed || !list[0].Binary || list[0].Size != 300 {
		t.Errorf("%+v, %v", list, err)
	}
}

// endsWaiting is a context that is canceled as soon as a caller waits for it.
type endsWaiting struct {
	context.Context
	end context.CancelFunc
}

func (e endsWaiting) Done() <-chan struct{} { e.end(); return e.Context.Done() }

// TestDiff_ComparesLinesOfOneFileAtATime checks that a comparison of lines waits for its turn, and stops waiting when
// its caller cancels it.
func TestDiff_ComparesLinesOfOneFileAtATime(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	w.must(os.WriteFile(filepath.Join(now, "f"), []byte("one\n"), 0o600))
	a, b := w.s.PlainView([]rootspec.Part{{Dir: was, Path: "/"}}), w.s.PlainView([]rootspec.Part{{Dir: now, Path: "/"}})
	for name, compare := range map[string]func(ctx context.Context) error{
		"stat": func(ctx context.Context) error {
			_, err := Changes(ctx, a, b, nil, DiffOptions{Stat: true})
			return err
		},
		"patch": func(ctx context.Context) error { return Patch(ctx, io.Discard, a, b, nil, DiffOptions{}) },
	} {
		w.must(w.s.turn.take(t.Context()))
		ctx, end := context.WithCancel(t.Context())
		if err := compare(endsWaiting{ctx, end}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, during another comparison: %v", name, err)
		}
		w.s.turn.give()
		if err := compare(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
