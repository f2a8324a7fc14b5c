package layer

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/vfs"
)

func TestLayers_AreSpreadOverDisk(t *testing.T) {
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.EXT4_SUPER_MAGIC {
		t.Skip("needs ext4: no other file system has the flag")
	}
	for range 2 { // the second call finds it set
		s, err := Open(context.Background(), vfs.OS(), filepath.Join(dir, "layers"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	tmp, err := os.Open(filepath.Join(dir, "layers", "tmp"))
	if err != nil {
		t.Fatal(err)
	}
	defer tmp.Close()
	if flags, err := unix.IoctlGetInt(int(tmp.Fd()), unix.FS_IOC_GETFLAGS); err != nil || flags&topDir == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}
