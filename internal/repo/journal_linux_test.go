package repo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/vfs"
)

// landing performs the steps of an apply in the git directory, except for those that git performs.
func (r *Repo) landing() error {
	const id = OID("0123456789012345678901234567890123456789")
	for _, step := range []func() error{
		r.takeIndex,
		r.copyIndex,
		func() error { return r.writeJournal(journal{Version: journalVersion, Old: id, Tree: id}) },
		func() error { return vfs.NoteUnsynced(r.opt.FS, filepath.Join(r.Dir, privateName), []byte("new")) },
		r.putIndex,
		r.done,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// dirWithIndex returns a directory with an index.
func dirWithIndex(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "git")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, indexName), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// landed checks that the state that an interrupted apply left in a git directory can be read and cleaned up: the
// index is the old or the new one, and git's lock, if it exists, is Coppice's.
func landed(t *testing.T, what, dir string) {
	t.Helper()
	r := &Repo{Top: dir, Dir: dir, opt: Options{FS: vfs.OS()}}
	if index, err := os.ReadFile(filepath.Join(dir, indexName)); err != nil || string(index) != "old" &&
		string(index) != "new" {
		t.Errorf("%s: the index is %q, %v", what, index, err)
	}
	if _, err := r.readJournal(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, lockName)); err == nil && !r.ownsIndex() {
		t.Errorf("%s: the lock of the index is not Coppice's", what)
	}
	if err := r.done(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(names) != 1 {
		t.Errorf("%s: %q are left, %v", what, names, err)
	}
}

// TestJournal_SurvivesACrash checks that the git directory can be repaired after a crash of the daemon or the
// machine at any point.
func TestJournal_SurvivesACrash(t *testing.T) {
	t.Parallel()
	dir, clones := dirWithIndex(t), t.TempDir()
	disk := vfs.NewCrashable(dir)
	calls := 0
	disk.OnCall = func(op vfs.Op) {
		calls++
		for i, how := range []vfs.Crash{vfs.Kill, {}, {Names: 100}, {Data: 100}, vfs.PowerLoss(uint64(calls)),
			vfs.PowerLoss(uint64(1000 + calls))} {
			at := filepath.Join(clones, fmt.Sprint(calls, "-", i))
			if err := disk.CrashClone(at, how); err != nil {
				t.Error(err)
				continue
			}
			landed(t, fmt.Sprintf("a crash before call %d, %s, which leaves %+v", calls, op, how), at)
		}
	}
	r := &Repo{Top: dir, Dir: dir, opt: Options{FS: disk}}
	if err := r.landing(); err != nil {
		t.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	landed(t, "in the end", dir)
	t.Logf("%d calls", calls)
}

// TestJournal_SurvivesWriteFailure checks that the git directory can be repaired whichever write fails.
func TestJournal_SurvivesWriteFailure(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		for k := 1; ; k++ {
			dir := dirWithIndex(t)
			disk := &vfs.Faulty{FS: vfs.OS()}
			r := &Repo{Top: dir, Dir: dir, opt: Options{FS: disk}}
			disk.FailAt(k, errno, errno == syscall.ENOSPC)
			err := r.landing()
			what := fmt.Sprintf("call %d fails with %v", k, errno)
			if !disk.Failed() {
				if err != nil {
					t.Error(err)
				}
				break
			}
			if err != nil && !strings.Contains(err.Error(), errno.Error()) { // removing a file succeeds on a full disk
				t.Errorf("%s: %v", what, err)
			}
			landed(t, what, dir)
		}
	}
}
