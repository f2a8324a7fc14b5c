//go:build linux

package rootspec_test

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// mountTimes mounts the spec repeatedly beside the root, and prints the median and the 99th percentile of the times
// in nanoseconds.
func mountTimes(root string, arg []byte, out io.Writer) error {
	var s rootspec.Spec
	if err := json.Unmarshal(arg, &s); err != nil {
		return err
	}
	at := root + "-again"
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
		return err
	}
	var times []time.Duration
	for range 200 {
		t0 := time.Now()
		if err := rootspec.Mount(s, at, rootspec.Options{}); err != nil {
			return err
		}
		times = append(times, time.Since(t0))
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	slices.Sort(times)
	_, err := fmt.Fprint(out, times[len(times)/2].Nanoseconds(), times[len(times)*99/100].Nanoseconds())
	return err
}

// walkTimes lists and stats a tree of the root, and prints the number of entries and the processor time of each
// round, which other load disturbs less than the elapsed time.
func walkTimes(root string, arg []byte, out io.Writer) error {
	var p string
	if err := json.Unmarshal(arg, &p); err != nil {
		return err
	}
	for range 4 {
		var before, after unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
			return err
		}
		n := 0
		err := filepath.WalkDir(root+p, func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			n++
			_, err = d.Info()
			return err
		})
		if err != nil {
			return err
		}
		if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
			return err
		}
		spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		fmt.Fprintln(out, spent, n)
	}
	return nil
}

func BenchmarkMount(b *testing.B) {
	rootfstest.NeedsMount(b)
	for _, n := range []int{1, 10, 40} {
		for _, wrap := range []bool{false, true} {
			if wrap && n == 1 {
				continue
			}
			b.Run(fmt.Sprintf("lowers=%d/wrap=%v", n, wrap), func(b *testing.B) {
				s := benchSpec(b, n, wrap)
				out, err := rootfstest.InRoot(b, s, rootfstest.MountOptions{}, "mountTimes", s)
				must(b, err)
				var p50, p99 float64
				_, err = fmt.Sscan(out, &p50, &p99)
				must(b, err)
				b.ReportMetric(p50/1e3, "µs-p50")
				b.ReportMetric(p99/1e3, "µs-p99")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func benchSpec(b *testing.B, n int, wrap bool) rootspec.Spec {
	dir := b.TempDir()
	o := rootspec.Overlay{Target: "/", Upper: dir + "/up", Work: dir + "/work", Wrap: wrap}
	must(b, os.MkdirAll(o.Upper, 0o755))
	must(b, os.MkdirAll(o.Work, 0o755))
	for i := range n - 1 {
		l := fmt.Sprintf("%s/l%d", dir, i)
		must(b, os.MkdirAll(l+"/usr/lib", 0o755))
		o.Lowers = append(o.Lowers, l)
	}
	o.Lowers = append(o.Lowers, dir+"/base")
	must(b, os.MkdirAll(dir+"/base/usr", 0o755))
	if wrap {
		o.Lowers[n-1] = "/"
	}
	return rootspec.Spec{Overlays: []rootspec.Overlay{o}}
}

// BenchmarkLookup compares listing a tree directly, through an overlay of the host's root, and through a wrapped one.
func BenchmarkLookup(b *testing.B) {
	if os.Geteuid() != 0 || rootfstest.IsUser() {
		b.Skip("needs real-root: only it shifts ids")
	}
	tree := "/usr/share"
	for _, c := range []string{"direct", "overlay", "wrapped", "wrapped+40"} {
		b.Run(c, func(b *testing.B) {
			s := rootspec.Spec{Bind: "/"}
			if c != "direct" {
				s = benchSpec(b, 2, true)
				if c == "overlay" {
					s.Overlays[0].Lowers = []string{"/"}
				}
				if c == "wrapped+40" {
					s = benchSpec(b, 40, true)
				}
			}
			out, err := rootfstest.InRoot(b, s, rootfstest.MountOptions{}, "walkTimes", tree)
			must(b, err)
			var cold, first, second, warm, n float64
			_, err = fmt.Sscan(out, &cold, &n, &first, &n, &second, &n, &warm, &n)
			must(b, err)
			b.ReportMetric(cold/n, "ns/entry-first")
			b.ReportMetric(min(first, second, warm)/n, "ns/entry-warm")
			b.ReportMetric(n, "entries")
			b.ReportMetric(0, "ns/op")
		})
	}
}
