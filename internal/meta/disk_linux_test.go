package meta

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// inNamespace runs the test named like t again, in a new user and mount namespace, and reports whether this is that
// second run.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "COPPICE_TEST_NAMESPACE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(string(out), "--- PASS: "+t.Name()):
	case err != nil && !errors.As(err, &exit):
		t.Skipf("needs user-namespaces: %v", err)
	default:
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	ok(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() { ok(t, syscall.Unmount(dir, 0)) })
	return dir
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	if !inNamespace(t) {
		return
	}
	ctx := context.Background()
	dir := mountTmpfs(t, "2m")
	path := filepath.Join(dir, "meta.db")
	d := must(Open(ctx, path))(t)
	rec := box(t, d, "web-1", "")

	// acknowledged counts the snapshots that were acknowledged before the disk was full.
	var acknowledged int
	add := func() error {
		s := timeline.Snapshot{ID: newSnap(t), Sandbox: rec.ID, Parent: rec.Head, Cause: timeline.CauseExec,
			Message: strings.Repeat("m", 8000), Created: epoch}
		r := timeline.Route{Top: s.ID, Below: rec.Head, Layer: newLayer(t)}
		err := d.AddSnapshot(ctx, s, &r, 0, func(r *Sandbox) { r.Head = s.ID })
		if err == nil {
			rec.Head = s.ID
			acknowledged++
		}
		return err
	}
	fill := func() (err error) {
		for range 1000 {
			if err = add(); err != nil {
				break
			}
		}
		return err
	}
	err := fill()
	wantFault(t, err, fault.NoSpace, "write the database")
	if !strings.Contains(fault.HintOf(err), "coppice system gc") {
		t.Errorf("hint %q", fault.HintOf(err))
	}
	check := func() {
		t.Helper()
		h := must(d.History(ctx, rec.ID))(t)
		if len(h.Snapshots) != acknowledged+1 || h.Head != rec.Head || h.Depth(h.Head) != acknowledged {
			t.Fatalf("%d snapshots, head %s; %d were acknowledged, the last as %s", len(h.Snapshots), h.Head,
				acknowledged, rec.Head)
		}
	}
	check()
	wantFault(t, fill(), fault.NoSpace, "") // a checkpoint may have made a little room
	check()
	ok(t, d.Close())

	// The database can be opened after a full disk, and takes writes once there is space.
	d, err = Open(ctx, path)
	if err != nil {
		wantFault(t, err, fault.NoSpace, "open")
	} else {
		check()
		ok(t, d.Close())
	}
	ok(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=16m"))
	d = must(Open(ctx, path))(t)
	check()
	for range 50 {
		ok(t, add())
	}
	check()
	ok(t, d.Check(ctx))
	ok(t, d.Close())

	// A disk that is full from the start.
	none := mountTmpfs(t, "64k")
	ok(t, os.WriteFile(filepath.Join(none, "filler"), make([]byte, 60<<10), 0o600))
	_, err = Open(ctx, filepath.Join(none, "meta.db"))
	wantFault(t, err, fault.NoSpace, "open")
}

// TestFullDisk_AllowsRemove removes a sandbox while a file fills the disk: removing is how users free space.
func TestFullDisk_AllowsRemove(t *testing.T) {
	t.Parallel()
	if !inNamespace(t) {
		return
	}
	ctx := context.Background()
	dir := mountTmpfs(t, "16m")
	path := filepath.Join(dir, "meta.db")
	d := must(Open(ctx, path))(t)
	rec := box(t, d, "web-1", "")
	for range 20 {
		snap(t, d, &rec, "apt-get install -y nginx")
	}
	filler := must(os.Create(filepath.Join(dir, "filler")))(t)
	if _, err := filler.Write(make([]byte, 16<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	ok(t, filler.Close())
	if gone := must(d.DeleteSandbox(ctx, rec.ID))(t); len(gone) != 20 {
		t.Errorf("%d layers are free, not 20", len(gone))
	}
	ok(t, d.Close())
	d = must(Open(ctx, path))(t)
	if left := must(d.Sandboxes(ctx))(t); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	ok(t, d.Close())
}

func TestReadOnlyHome(t *testing.T) {
	t.Parallel()
	if !inNamespace(t) {
		return
	}
	ctx := context.Background()
	dir := mountTmpfs(t, "4m")
	path := filepath.Join(dir, "meta.db")
	d := must(Open(ctx, path))(t)
	box(t, d, "web-1", "")
	ok(t, d.Close())
	readOnly := func(flags uintptr) { ok(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT|flags, "")) }

	readOnly(syscall.MS_RDONLY)
	for _, name := range []string{"meta.db", "new.db"} {
		_, err := Open(ctx, filepath.Join(dir, name))
		wantFault(t, err, fault.ReadOnly, "open")
		if !strings.Contains(fault.HintOf(err), "COPPICE_HOME=DIR coppice") {
			t.Errorf("hint %q", fault.HintOf(err))
		}
	}
	readOnly(0)
	d = must(Open(ctx, path))(t)
	must(d.Sandbox(ctx, "web-1"))(t)
	ok(t, d.Close())
	ok(t, os.Remove(path))
	for i := range 3 { // the directory holds no other files
		ok(t, must(Open(ctx, filepath.Join(dir, fmt.Sprint(i, ".db"))))(t).Close())
	}
	if left := must(os.ReadDir(dir))(t); len(left) != 3+1 { // with the key
		t.Errorf("left: %v", left)
	}
}
