//go:build linux

package history

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/masks"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/stacks"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

const boxID = timeline.SandboxID("0123456789ab")

// idle is a sandbox without a live root. It counts how often its lock is taken and released.
type idle struct {
	db              *meta.DB
	taken, released int
	err             error // of Root
}

func (i *idle) Acquire(ctx context.Context, name, _ string) (release func(), rec meta.Sandbox, err error) {
	i.taken++
	rec, err = i.db.Sandbox(ctx, name)
	return func() { i.released++ }, rec, err
}

func (i *idle) Root(context.Context, *meta.Sandbox) (*Root, error) { return nil, i.err }

// open is a policy that hides nothing.
type open struct{}

func (open) Hides(context.Context, *meta.Sandbox) (policies.Covered, error) {
	return policies.Covered{}, nil
}

// lab is a sandbox with the snapshots one, two and three; two and three each add a file.
type lab struct {
	*Histories
	db       *meta.DB
	layers   *layer.Store
	box      *idle
	verified []string // calls of VerifyRecords, Finalize and VerifyImages
	full     error    // of Finalize
}

func newLab(t *testing.T) *lab {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	db, err := meta.Open(ctx, filepath.Join(dir, "coppice.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	layers, err := layer.Open(ctx, vfs.OS(), filepath.Join(dir, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = layers.Close() })
	l := &lab{db: db, layers: layers, box: &idle{db: db}}
	other := func(what string) Verifier {
		return func(context.Context, string, func(wire.Progress), *wire.VerifyResult) error {
			l.verified = append(l.verified, what)
			return nil
		}
	}
	l.Histories = New(Config{
		DB: db, Layers: layers, Sandboxes: l.box, Feed: events.NewBus(time.Now, db), Shape: new(sync.RWMutex),
		Masks: masks.New(masks.Config{
			Policies: open{}, Stacks: stacks.New(db, layers.Dir), Home: dir, FS: vfs.OS(), Log: slog.New(slog.DiscardHandler),
			Discard: func(context.Context, string) error { return nil },
		}),
		Finalize:      func(context.Context) error { l.verified = append(l.verified, "finalize"); return l.full },
		VerifyRecords: other("records"), VerifyImages: other("images"), Now: time.Now,
	})
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rec := meta.Sandbox{ID: boxID, Name: "a", Created: began, Head: "aaaaaaaaaaaa", MountTop: "aaaaaaaaaaaa", Gen: 1}
	first := timeline.Snapshot{ID: rec.Head, Sandbox: boxID, Cause: timeline.CauseImport, Message: "one", Created: began}
	if err := db.CreateSandbox(ctx, rec, first); err != nil {
		t.Fatal(err)
	}
	l.add(t, "bbbbbbbbbbbb", "aaaaaaaaaaaa", "two", began.Add(time.Minute))
	l.add(t, "cccccccccccc", "bbbbbbbbbbbb", "three", began.Add(2*time.Minute))
	return l
}

// add adds a snapshot whose layer has a file named after the message.
func (l *lab) add(t *testing.T, id, parent timeline.SnapshotID, message string, at time.Time) {
	t.Helper()
	src, under := t.TempDir(), timeline.LayerID(id+"0000")
	if err := os.WriteFile(filepath.Join(src, message), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.layers.ImportDir(t.Context(), under, src, layer.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	snap := timeline.Snapshot{
		ID: id, Sandbox: boxID, Parent: parent, Cause: timeline.CauseExec, Message: message, Created: at,
	}
	route := timeline.Route{Top: id, Below: parent, Layer: under}
	move := func(r *meta.Sandbox) { r.Head, r.MountTop = id, id }
	if err := l.db.AddSnapshot(t.Context(), snap, &route, 0, move); err != nil {
		t.Fatal(err)
	}
	finalized, err := l.layers.Finalize(t.Context(), under)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.db.MarkFinalized(t.Context(), under, finalized.Digest, finalized.DiffID, finalized.Size); err != nil {
		t.Fatal(err)
	}
}

func TestLog_DrawsNewestFirst(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	log, err := l.Log(t.Context(), "a")
	if err != nil || len(log.Nodes) != 3 || len(log.Rows) < 3 || log.Head != "cccccccccccc" {
		t.Fatalf("%+v, %v", log, err)
	}
	for i, want := range []string{"three", "two", "one"} {
		if n := log.Nodes[i]; n.Message != want || n.Sandbox != "a" || n.Head != (i == 0) || n.Leaf != (i == 0) {
			t.Errorf("%d: %+v, want %s", i, n, want)
		}
	}
	if _, err := l.Log(t.Context(), "b"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// TestDiff_LocksOnlyForLiveState compares two snapshots without the lock, and the live state with it.
func TestDiff_LocksOnlyForLiveState(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, b := range []string{"HEAD", ""} {
		d, err := l.Diff(t.Context(), "a", wire.DiffRequest{A: "HEAD~1", B: b})
		added := 0
		for _, c := range d.Changes {
			if c.Kind == wire.Added && c.Path == "three" {
				added++
			} else if c.Path != "" && c.Path != "." && c.Path != "/" {
				t.Errorf("%+v", c)
			}
		}
		if err != nil || added != 1 {
			t.Errorf("against %q: %+v, %v", b, d.Changes, err)
		}
	}
	if l.box.taken != 1 || l.box.released != 1 {
		t.Errorf("the lock was taken %d times, and released %d times", l.box.taken, l.box.released)
	}
	paths, bytes, err := l.Weigh(t.Context(), "a", "bbbbbbbbbbbb", "cccccccccccc")
	if err != nil || paths < 1 || bytes != 4 {
		t.Errorf("%d paths of %d bytes, %v", paths, bytes, err)
	}
}

func TestCheckPaths(t *testing.T) {
	t.Parallel()
	if err := CheckPaths(make([]string, limit.ChosenPaths)); err != nil {
		t.Error(err)
	}
	for _, paths := range [][]string{make([]string, limit.ChosenPaths+1), {strings.Repeat("a", limit.ChosenBytes+1)}} {
		if err := CheckPaths(paths); !fault.Is(err, fault.TooLarge) {
			t.Error(err)
		}
	}
}

// TestOpenPast_WithoutTheLiveRoot checks that the files of a snapshot can be read while the live root is being
// removed.
func TestOpenPast_WithoutTheLiveRoot(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.box.err = fault.Wrap(fs.ErrNotExist, "look for parts")
	past, err := l.OpenPast(t.Context(), "a", "HEAD~1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := past.Stat("two", false); err != nil {
		t.Error(err)
	}
	if _, err := past.Stat("three", false); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	l.box.err = fault.New(fault.Unavailable, "no driver")
	if _, err := l.OpenPast(t.Context(), "a", "HEAD~1"); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
}

func TestDeleteTag_ListsExistingTags(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, tag := range []string{"y", "x"} {
		if err := l.db.SetTag(t.Context(), boxID, tag, "bbbbbbbbbbbb"); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.DeleteTag(t.Context(), "a", "z"); !fault.Is(err, fault.NotFound) ||
		fault.HintOf(err) != "its tags: x y" {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	if err := l.DeleteTag(t.Context(), "a", "x"); err != nil {
		t.Fatal(err)
	}
	if tags, err := l.Tags(t.Context(), "a"); err != nil || len(tags) != 1 || tags["y"] != "bbbbbbbbbbbb" {
		t.Errorf("%v, %v", tags, err)
	}
}

func TestVerify_FinalizesLayersAndFindsDamage(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	quiet := func(wire.Progress) {}
	if res, err := l.Verify(t.Context(), "a", quiet); err != nil || res.Layers != 2 || len(res.Damage) > 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := strings.Join(l.verified, " "); got != "records finalize images" {
		t.Errorf("verified in the order %s", got)
	}
	file := filepath.Join(l.layers.Dir("cccccccccccc0000"), "three")
	if err := os.WriteFile(file, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	res, err := l.Verify(t.Context(), "", quiet)
	if err != nil || len(res.Damage) != 1 || res.Damage[0].Snapshot != "cccccccccccc" || res.Damage[0].Sandbox != "a" {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestVerify_NeedsNoSpace checks that what is finalized can be verified while the disk is full.
func TestVerify_NeedsNoSpace(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, tt := range []struct {
		full error
		kind fault.Kind // of the error of Verify
	}{{fault.Wrap(unix.ENOSPC, "finalize a layer"), ""}, {fault.Wrap(unix.EIO, "finalize a layer"), fault.Internal}} {
		l.full = tt.full
		res, err := l.Verify(t.Context(), "a", func(wire.Progress) {})
		if tt.kind == "" && (err != nil || res.Layers != 2) || tt.kind != "" && !fault.Is(err, tt.kind) {
			t.Errorf("%v: %+v, %v", tt.full, res, err)
		}
	}
}

func TestView_LooksUpPathsOfParts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	rec, err := l.db.Sandbox(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	v, err := l.View(t.Context(), &rec, "bbbbbbbbbbbb", []rootspec.Part{{Dir: t.TempDir(), Path: "/"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Lookup("/two"); err != nil {
		t.Error(err)
	}
}

// second adds a sandbox b, a fork of a at its snapshot two, and returns the snapshot that b has made.
func (l *lab) second(t *testing.T, files map[string]string) timeline.SnapshotID {
	t.Helper()
	const id, head = timeline.SandboxID("ba9876543210"), timeline.SnapshotID("dddddddddddd")
	began := time.Date(2026, 1, 3, 3, 4, 5, 0, time.UTC)
	rec := meta.Sandbox{ID: id, Name: "b", Created: began, Head: "eeeeeeeeeeee", MountTop: "eeeeeeeeeeee", Gen: 1}
	first := timeline.Snapshot{
		ID: rec.Head, Sandbox: id, Parent: "bbbbbbbbbbbb", Cause: timeline.CauseFork, Message: "fork", Created: began,
	}
	if err := l.db.CreateSandbox(t.Context(), rec, first); err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.layers.ImportDir(t.Context(), "dddddddddddd0000", src, layer.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	snap := timeline.Snapshot{ID: head, Sandbox: id, Parent: rec.Head, Cause: timeline.CauseExec, Created: began}
	route := timeline.Route{Top: head, Below: "bbbbbbbbbbbb", Layer: "dddddddddddd0000"}
	move := func(r *meta.Sandbox) { r.Head, r.MountTop = head, head }
	if err := l.db.AddSnapshot(t.Context(), snap, &route, 0, move); err != nil {
		t.Fatal(err)
	}
	return head
}

func TestDiff_OfTwoSandboxesIsByContent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.second(t, map[string]string{"three": "text", "four": "text"}) // three is another file with the same content
	for name, req := range map[string]wire.DiffRequest{
		"live": {Other: "b"}, "snapshots": {A: "HEAD", B: "HEAD", Other: "b"}, "an id": {Other: "ba9876543210"},
	} {
		res, err := l.Diff(t.Context(), "a", req)
		if err != nil || len(res.Changes) != 1 || res.Changes[0].Kind != wire.Added || res.Changes[0].Path != "four" {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		var patch strings.Builder
		if err := l.Patch(t.Context(), "a", req, &patch); err != nil || !strings.Contains(patch.String(), "+++ b/four\n") ||
			strings.Contains(patch.String(), "three") {
			t.Errorf("%s: %q, %v", name, &patch, err)
		}
	}
	if res, err := l.Diff(t.Context(), "b", wire.DiffRequest{B: "HEAD~1", Other: "a"}); err != nil ||
		len(res.Changes) != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if l.box.taken != 0 {
		t.Errorf("took %d locks", l.box.taken)
	}
}

func TestDiff_OfTwoSandboxesNamesTheOneThatIsWrong(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.second(t, nil)
	for name, c := range map[string]struct {
		req  wire.DiffRequest
		kind fault.Kind
		says string
	}{
		"no such sandbox":           {wire.DiffRequest{Other: "c"}, fault.NotFound, `"c"`},
		"no such snapshot of it":    {wire.DiffRequest{B: "never", Other: "b"}, fault.NotFound, "sandbox b"},
		"no such snapshot of other": {wire.DiffRequest{A: "never", Other: "b"}, fault.NotFound, "sandbox a"},
		"itself":                    {wire.DiffRequest{Other: "a"}, fault.Invalid, "itself"},
	} {
		if _, err := l.Diff(t.Context(), "a", c.req); !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDiff_OfTwoSandboxesRefusesTheHostAndAnotherBase(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.second(t, nil)
	if err := l.db.UpdateSandbox(t.Context(), "ba9876543210", func(r *meta.Sandbox) error {
		r.Host = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err := l.Diff(t.Context(), "a", wire.DiffRequest{Other: "b"})
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "base") {
		t.Error(err)
	}
}

func TestDiff_OfTwoSandboxesNoticesANewLiveRoot(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.second(t, nil)
	req := wire.DiffRequest{Other: "b"}
	err := l.compare(t.Context(), "a", req, func(pair) error {
		return l.db.UpdateSandbox(t.Context(), "ba9876543210", func(r *meta.Sandbox) error { r.Gen++; return nil })
	})
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "sandbox b") {
		t.Error(err)
	}
}
