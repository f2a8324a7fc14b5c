//go:build linux && (amd64 || arm64)

package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestRemoveLeft_RemovesGroupsOfKilledMonitor also checks that a group with a process in it is not removed.
func TestRemoveLeft_RemovesGroupsOfKilledMonitor(t *testing.T) {
	c := limited("killed")
	c.RunDir = t.TempDir()
	g, all := ownGroups(t, c)
	var paths []string
	if g != nil {
		paths = append(paths, g.path)
	}
	for _, s := range all {
		paths = append(paths, s.path)
	}
	inside := exec.Command("sleep", "1000")
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = inside.Process.Kill(); _ = inside.Wait() } // it was killed
	defer end()
	if g != nil {
		if err := g.Take(inside.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := all.Take(inside.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := RemoveLeft(c.RunDir, time.Second); err == nil || !Left(c.RunDir) {
		t.Errorf("groups with a process were removed: %v", err)
	}
	end()
	if err := RemoveLeft(c.RunDir, time.Second); err != nil || Left(c.RunDir) {
		t.Errorf("groups were left: %v", err)
	}
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := RemoveLeft(c.RunDir, time.Second); err != nil {
		t.Errorf("RemoveLeft without a list: %v", err)
	}
}

// TestRemoveLeft_KillsWhatIsFrozen covers a monitor that was killed while its sandbox was frozen: nothing in the group
// can notice that, and a later start would use the same files.
func TestRemoveLeft_KillsWhatIsFrozen(t *testing.T) {
	c := limited("iced")
	c.RunDir = t.TempDir()
	g, all := ownGroups(t, c)
	defer all.Remove()
	if g == nil {
		t.Skip("needs cgroup: no control group can be made here")
	}
	inside := exec.Command("sleep", "1000")
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- inside.Wait() }()
	defer func() { _ = inside.Process.Kill() }() // it may have been killed
	if err := errors.Join(g.Take(inside.Process.Pid), g.Freeze()); err != nil {
		t.Fatal(err)
	}
	all.Remove()
	if err := RemoveLeft(c.RunDir, 20*time.Second); err != nil || Left(c.RunDir) {
		t.Errorf("a group was left: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the process runs on")
	}
}

// TestRemoveLeft_RemovesNothingElse has a list with an incomplete line, and names that are not groups of Coppice.
func TestRemoveLeft_RemovesNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := []string{"other", "coppice-file", "coppice-full"}
	for _, name := range []string{"other", "coppice-full/x", "coppice-empty"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "coppice-file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(kept, "coppice-empty", "coppice-gone") {
		if err := list(dir, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := list(dir, "coppice-torn"); err != nil {
		t.Fatal(err)
	}
	if err := RemoveLeft(dir, time.Second); err == nil || !Left(dir) {
		t.Errorf("groups that remain were not reported: %v", err)
	}
	for _, name := range kept {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "coppice-empty")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty group was left: %v", err)
	}
}
