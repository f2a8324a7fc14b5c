package layer

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTreeUsage_ToleratesChangingTree(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	const deep = "d/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/18/19/20/21/22/23/24"
	w.must(os.MkdirAll(filepath.Join(dir, deep), 0o755))
	w.must(os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	w.must(os.WriteFile(filepath.Join(dir, "stays"), make([]byte, 1<<20), 0o600))
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	for _, at := range []string{"d", "d/1/2/3", filepath.Dir(deep)} {
		swaps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					// A directory is exchanged with a file, or disappears and returns.
					_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, at), unix.AT_FDCWD, filepath.Join(dir, "f"),
						unix.RENAME_EXCHANGE)
				}
			}
		})
	}
	for range 1000 {
		n, err := w.s.TreeUsage(context.Background(), dir)
		if err != nil || n < 1<<20 || n > 4<<20 {
			t.Errorf("%d bytes, %v", n, err)
			break
		}
	}
	close(stop)
	swaps.Wait()
}
