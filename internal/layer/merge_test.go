package layer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestMerge_LeavesNoStrayWhiteouts merges neighbours of a stack in every way and compares the mount with the live
// tree. In a directory that only one layer of a mount has, overlayfs lists whiteouts as names that do not exist, and
// the directory cannot be removed.
func TestMerge_LeavesNoStrayWhiteouts(t *testing.T) {
	for _, plain := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			needOverlay(t)
			w := newWorld(t, t.TempDir(), plain)
			defer w.close()
			write := func(dir, p string) {
				w.must(os.MkdirAll(filepath.Join(dir, filepath.Dir(p)), 0o755))
				w.must(os.WriteFile(filepath.Join(dir, p), []byte(p), 0o644))
			}
			remove := func(p string) { w.must(os.Remove(filepath.Join(w.live, p))) }
			w.base(func(src string) {
				write(src, "base/kept")
				write(src, "base/sub/gone")
				write(src, "base/gone")
			})
			w.present()
			write(w.live, "new/kept")
			write(w.live, "new/sub/gone")
			write(w.live, "base/new/gone")
			w.capture()
			write(w.live, "new/later/gone")
			remove("new/sub/gone")
			remove("base/sub/gone")
			w.capture()
			remove("new/later/gone")
			remove("base/new/gone")
			remove("base/gone")
			w.capture()
			want := picture(t, w.live)
			whole := w.stack
			w.plain = false // the kernel mounts captures of any driver
			for i := range whole {
				for j := i + 1; j <= len(whole); j++ {
					id := w.id()
					w.must(w.s.Merge(context.Background(), id, whole[i:j]))
					_, err := w.s.Finalize(context.Background(), id)
					w.must(err)
					w.must(w.s.Verify(context.Background(), id))
					w.stack = append(append(append([]timeline.LayerID{}, whole[:i]...), id), whole[j:]...)
					at, done := w.freshMount()
					got := picture(t, at)
					done()
					w.same(fmt.Sprintf("layers %d to %d merged", i, j-1), want, got)
				}
			}
			w.plain = plain
		})
	}
}
