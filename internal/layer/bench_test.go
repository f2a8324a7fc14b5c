package layer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

func benchStore(b *testing.B) (*Store, string) {
	b.Helper()
	dir := b.TempDir()
	s, err := Open(context.Background(), vfs.OS(), filepath.Join(dir, "layers"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s, dir
}

// fill makes n files of 1 KiB, 500 in a directory.
func fill(tb testing.TB, dir string, n int) {
	tb.Helper()
	content := make([]byte, 1024)
	for i := range n {
		d := filepath.Join(dir, fmt.Sprintf("d%03d", i/500))
		if i%500 == 0 {
			if err := os.MkdirAll(d, 0o755); err != nil {
				tb.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("file%06d", i)), content, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

func BenchmarkCapture(b *testing.B) {
	for _, have := range []int{0, 10_000, 100_000} {
		for _, change := range []int{0, 1, 1000} {
			b.Run(fmt.Sprintf("have=%d/change=%d", have, change), func(b *testing.B) {
				s, dir := benchStore(b)
				live := filepath.Join(dir, "live")
				// Programs work deep in a tree that has a single branch at first.
				fill(b, filepath.Join(live, "srv/work/project"), max(have, 1))
				parts := []rootspec.Part{{Dir: live, Path: "/"}}
				x, err := s.Scan(context.Background(), parts, false)
				if err != nil {
					b.Fatal(err)
				}
				if err := os.MkdirAll(filepath.Join(live, "new"), 0o755); err != nil {
					b.Fatal(err)
				}
				c, err := s.Capture(context.Background(), "ffffffffffffffff", CaptureInput{Parts: parts, Index: x})
				if err != nil {
					b.Fatal(err)
				}
				x = c.Index
				content := make([]byte, 1024)
				n, used := 0, time.Duration(0)
				for b.Loop() {
					b.StopTimer()
					for i := range change {
						if err := os.WriteFile(filepath.Join(live, "new", fmt.Sprint(i)), content, 0o644); err != nil {
							b.Fatal(err)
						}
					}
					time.Sleep(12 * time.Millisecond)
					n++
					b.StartTimer()
					used -= cpu()
					c, err := s.Capture(context.Background(), timeline.LayerID(fmt.Sprintf("%016x", n)),
						CaptureInput{Parts: parts, Index: x})
					if err != nil {
						b.Fatal(err)
					}
					used += cpu()
					if c.Stats.Paths != change {
						b.Fatalf("%d paths: %v", c.Stats.Paths, c.Paths)
					}
					x = c.Index
				}
				b.ReportMetric(float64(used.Nanoseconds())/float64(n), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkAdopt turns an upper with 1000 files into a layer: of one part, of parts directly in the root, as on a
// host, and of deeper parts.
func BenchmarkAdopt(b *testing.B) {
	for _, paths := range [][]string{{"/"},
		{"/", "/bin", "/etc", "/home", "/lib", "/opt", "/root", "/srv", "/usr", "/var"},
		{"/", "/usr", "/usr/local", "/var/lib/a", "/srv/a"}} {
		for _, flushed := range []bool{true, false} {
			b.Run(fmt.Sprintf("parts=%d/flushed=%t", len(paths), flushed), func(b *testing.B) {
				s, dir := benchStore(b)
				if !flushed {
					s.fs = unflushed{s.fs}
				}
				n := 0
				for b.Loop() {
					b.StopTimer()
					n++
					parts := make([]rootspec.Part, len(paths))
					for i, p := range paths {
						parts[i] = rootspec.Part{Dir: filepath.Join(dir, "live", fmt.Sprint(n), fmt.Sprint("p", i)), Path: p}
						if err := os.MkdirAll(parts[i].Dir, 0o700); err != nil {
							b.Fatal(err)
						}
					}
					fill(b, parts[len(parts)-1].Dir, 1000)
					if err := s.fs.SyncFS(s.top); err != nil { // as after the flush of the intent
						b.Fatal(err)
					}
					b.StartTimer()
					if err := s.Adopt(context.Background(), timeline.LayerID(fmt.Sprintf("%016x", n)), parts); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// unflushed is a file system that leaves flushing to the kernel.
type unflushed struct{ vfs.FS }

func (unflushed) Sync(int) error { return nil }

// cpu returns the time that this process has used, on all processors: a figure that does not depend on other users of
// the machine.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkMerge(b *testing.B) {
	s, dir := benchStore(b)
	fill(b, dir+"/src", 1000)
	var ids []timeline.LayerID
	for i := range 8 {
		id := timeline.LayerID(fmt.Sprintf("%016x", i+1))
		if _, err := s.ImportDir(context.Background(), id, dir+"/src", ImportOptions{}); err != nil {
			b.Fatal(err)
		}
		ids = append(ids, id)
	}
	for b.Loop() {
		if err := s.Merge(context.Background(), "00000000000000ff", ids); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Remove(context.Background(), "00000000000000ff"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkIndex(b *testing.B) {
	s, dir := benchStore(b)
	fill(b, dir+"/live", 100_000)
	x, err := s.Scan(context.Background(), []rootspec.Part{{Dir: dir + "/live", Path: "/"}}, false)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("write=100000", func(b *testing.B) {
		var n counter
		for b.Loop() {
			n = 0
			if _, err := x.WriteTo(&n); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n), "bytes")
	})
}

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// TestImportAgainstCp compares the speed of ImportDir with cp -a on a real tree; set COPPICE_BENCH_IMPORT to a
// directory, such as /usr.
func TestImportAgainstCp(t *testing.T) {
	src := os.Getenv("COPPICE_BENCH_IMPORT")
	if src == "" {
		t.Skip("needs COPPICE_BENCH_IMPORT: a directory to import")
	}
	dir := t.TempDir()
	s, err := Open(context.Background(), vfs.OS(), dir+"/layers")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 3 {
		start := time.Now()
		if out, err := exec.Command("cp", "-a", src, dir+"/cp").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		cp := time.Since(start)
		if err := s.RemoveTree(context.Background(), dir+"/cp"); err != nil {
			t.Fatal(err)
		}
		start = time.Now()
		id := timeline.LayerID(fmt.Sprintf("%016x", i))
		rep, err := s.ImportDir(context.Background(), id, src, ImportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ours := time.Since(start)
		t.Logf("%s: %d entries, %d MB: cp -a %v, ImportDir %v: %.2f times as fast", src, rep.Entries, rep.Bytes>>20, cp, ours,
			cp.Seconds()/ours.Seconds())
		if err := s.Remove(context.Background(), id); err != nil {
			t.Fatal(err)
		}
	}
}
