//go:build linux

package rootfs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// TestPresent_MatchesCapturedRoot changes a live root, captures it, and checks with every driver that a new
// generation on the captured layers has the same content: layers that package layer writes match roots that drivers
// present.
func TestPresent_MatchesCapturedRoot(t *testing.T) {
	if !rootfstest.IsUser() {
		t.Run("root", func(t *testing.T) {
			rootfstest.NeedsMount(t)
			histories(t, true)
		})
	}
	forUser(t)
	if rootfstest.AsUser(t) {
		histories(t, false)
	}
}

// seeds returns the number of histories for each driver; the environment can set more for a soak test.
func seeds(t *testing.T) uint64 {
	n := os.Getenv("COPPICE_TEST_SEEDS")
	if n == "" {
		return 4
	}
	many, err := strconv.ParseUint(n, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return many
}

func histories(t *testing.T, root bool) {
	for _, name := range []string{"overlay", "copy", "btrfs"} {
		t.Run(name, func(t *testing.T) {
			newHome := tempHome
			if name == "btrfs" {
				newHome = onBtrfs(t)
			}
			for seed := range seeds(t) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, name, newHome(t), root, seed) })
			}
		})
	}
}

func history(t *testing.T, name, home string, root bool, seed uint64) {
	ctx := t.Context()
	layers, err := layer.Open(ctx, vfs.OS(), filepath.Join(home, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	defer layers.Close()
	drv := newDriver(t, name, home, root, func(ctx context.Context, st rootspec.Stack, dst string) error {
		return layers.Materialise(ctx, layers.View(st), dst)
	})
	base := filepath.Join(home, "base")
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := rootfstest.GenLayer(base, "", rand.New(rand.NewPCG(seed, 1))); err != nil {
		t.Fatal(err)
	}
	live := rootfs.Live{Dir: filepath.Join(home, "gen0"), Stack: rootspec.Stack{Layers: []string{base}}}
	stack := slices.Clone(live.Stack.Layers)
	var index *layer.Index
	past := []moment{{stack: slices.Clone(stack), want: dump(t, drv, live)}}
	rnd := rand.New(rand.NewPCG(seed, 2))
	moved := false // whether the generation was rewound in place
	for round := range 8 {
		spec, err := drv.Present(ctx, live)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := drv.Parts(live)
		if err != nil {
			t.Fatal(err)
		}
		if index == nil {
			index = new(layer.Index)
			if drv.Plain() {
				if index, err = layers.Scan(ctx, parts, true); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := rootfstest.InRoot(t, spec, rootfstest.MountOptions{}, "change", seed*100+uint64(round)); err != nil {
			t.Fatal(err)
		}
		want := dump(t, drv, live)
		id := timeline.LayerID(fmt.Sprintf("%016x", seed<<8|uint64(round)))
		got, err := layers.Capture(ctx, id, layer.CaptureInput{Parts: parts, Index: index, Plain: drv.Plain()})
		if err != nil {
			t.Fatal(err)
		}
		index = got.Index
		if !got.Empty {
			stack = slices.Insert(stack, 0, layers.Dir(id))
		}
		next := rootfs.Live{Dir: filepath.Join(home, fmt.Sprint("check", round)),
			Stack: rootspec.Stack{Layers: slices.Clone(stack)}}
		agree(t, round, drv, next, want, moved)
		past = append(past, moment{slices.Clone(stack), want})
		if round%2 == 1 { // rewind in place, to any earlier state
			to := past[rnd.IntN(len(past))]
			inPlace(t, home, spec, stack, to.stack)
			moved = true
			agree(t, round, drv, live, to.want, moved)
			stack = slices.Clone(to.stack)
			again := layer.CaptureInput{Parts: parts, Index: index, Plain: drv.Plain()}
			if index, err = layers.Rescan(ctx, again); err != nil {
				t.Fatal(err)
			}
			again.Index = index
			again.Head = func() *layer.View { return layers.View(rootspec.Stack{Layers: stack}) }
			got, err := layers.Capture(ctx, timeline.LayerID(fmt.Sprintf("%016x", 1<<32|seed<<8|uint64(round))), again)
			if err != nil || !got.Empty {
				t.Fatalf("round %d: after a rewind a capture finds %v, %v", round, got.Paths, err)
			}
			index = got.Index
			continue
		}
		if round == 2 { // continue in a new generation
			moved = false
			live, index = next, nil
		}
	}
}

// agree checks that a live root shows the captured content. After a rewind in place, overlayfs may have lost which
// names are links to one file: see layer.Rewind.
func agree(t *testing.T, round int, drv rootfs.Driver, live rootfs.Live, want string, moved bool) {
	t.Helper()
	shown := dump(t, drv, live)
	if moved && !drv.Plain() {
		shown, want = apart(shown), apart(want)
	}
	if shown != want {
		t.Fatalf("round %d\n%s", round, difference(want, shown))
	}
}

// moment is a captured state.
type moment struct {
	stack []string
	want  string
}

// apart returns a dump without which names are links to one file.
func apart(dump string) string { return links.ReplaceAllString(dump, " $1") }

var links = regexp.MustCompile(` = "[^\n]*" (\[[^\n]*\])`)

// inPlace rewinds a live root from one stack to another through its mount.
func inPlace(t *testing.T, home string, spec rootspec.Spec, from, to []string) {
	t.Helper()
	o := rewindOrder{Store: filepath.Join(home, "rewind"), To: to}
	for _, l := range append(slices.Clone(from), to...) {
		if !slices.Contains(from, l) || !slices.Contains(to, l) {
			o.Touched = append(o.Touched, rootspec.Part{Dir: l, Path: "/"})
		}
	}
	if _, err := rootfstest.InRoot(t, spec, rootfstest.MountOptions{}, "rewind", o); err != nil {
		t.Fatal(err)
	}
}

type rewindOrder struct {
	Store   string
	To      []string
	Touched []rootspec.Part
}

// rewind is the step of inPlace.
func rewind(root string, arg []byte, _ io.Writer) error {
	var o rewindOrder
	if err := json.Unmarshal(arg, &o); err != nil {
		return err
	}
	ctx := context.Background()
	store, err := layer.Open(ctx, vfs.OS(), o.Store)
	if err != nil {
		return err
	}
	defer store.Close()
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, err = store.Rewind(ctx, layer.RewindInput{
		Root: int(dir.Fd()), Parts: []string{"/"}, Target: store.View(rootspec.Stack{Layers: o.To}), Touched: o.Touched,
	})
	return err
}

func dump(t *testing.T, drv rootfs.Driver, live rootfs.Live) string {
	t.Helper()
	spec, err := drv.Present(t.Context(), live)
	if err != nil {
		t.Fatal(err)
	}
	out, err := rootfstest.InRoot(t, spec, rootfstest.MountOptions{}, "dump", nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func difference(want, got string) string {
	var b bytes.Buffer
	for _, p := range [][3]string{{"-", want, got}, {"+", got, want}} {
		for l := range strings.Lines(p[1]) {
			if !strings.Contains(p[2], l) {
				b.WriteString(p[0] + " " + l)
			}
		}
	}
	return b.String()
}
