//go:build linux && (amd64 || arm64)

package procs

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestProveEnd_RefusesWhatItCannotKnow changes the file of a run directory and checks when it proves an end. That of
// processes which run is tested in package box.
func TestProveEnd_RefusesWhatItCannotKnow(t *testing.T) {
	t.Parallel()
	init := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			_, _ = init.Process.Kill(), init.Wait()
		}
		ended = true
	}
	t.Cleanup(end)
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	expect := func(t *testing.T, change func(*origin)) (dir, name string) {
		t.Helper()
		dir = t.TempDir()
		if err := ExpectEnd(dir, init.Process.Pid, os.Getuid() == 0); err != nil {
			t.Fatal(err)
		}
		name = filepath.Join(dir, unendedName+boot)
		text, err := os.ReadFile(name)
		var o origin
		if err = errors.Join(err, json.Unmarshal(text, &o)); err == nil {
			change(&o)
			text, err = json.Marshal(o)
		}
		if err = errors.Join(err, os.WriteFile(name, text, 0o600)); err != nil {
			t.Fatal(err)
		}
		return dir, name
	}
	refused := func(t *testing.T, dir, name, why string) {
		t.Helper()
		err := ProveEnd(dir, 0)
		if !fault.Is(err, fault.Conflict) || !strings.Contains(errors.Join(err, errors.Unwrap(err)).Error(), why) ||
			!strings.HasSuffix(fault.HintOf(err), "rm "+name) {
			t.Errorf("%v; %s", err, fault.HintOf(err))
		}
		if expected, err := EndExpected(dir); err != nil || !expected {
			t.Errorf("expected %v, %v", expected, err)
		}
	}
	unchanged := func(*origin) {}
	dirs, whole := map[string]string{}, t
	t.Run("another pid namespace", func(t *testing.T) { //nolint:paralleltest // in the order in which init ends
		if os.Getuid() != 0 {
			t.Skip("needs real-root: to make a pid namespace")
		}
		cmd := exec.CommandContext(t.Context(), "sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := strconv.Itoa(cmd.Process.Pid)
		space, err := os.Readlink("/proc/" + pid + "/ns/pid")
		if err != nil {
			t.Fatal(err)
		}
		dir, name := expect(whole, func(o *origin) { o.PIDs = space })
		refused(t, dir, name, "are left: "+pid)
		_, _ = cmd.Process.Kill(), cmd.Wait()
		dirs["a pid namespace that has ended"] = dir
	})
	t.Run("an incomplete file", func(t *testing.T) { //nolint:paralleltest // as above
		for _, text := range []string{"", "{", "{}", "null"} {
			dir, name := expect(t, unchanged)
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, dir, name, "cannot be determined")
		}
	})
	t.Run("init runs", func(t *testing.T) { //nolint:paralleltest // as above
		dir, name := expect(t, unchanged)
		refused(t, dir, name, "are left: "+strconv.Itoa(init.Process.Pid))
		dirs["init has ended"] = dir
		dirs["the pid of init belongs to another process"], _ = expect(t, func(o *origin) { o.Init.Start++ })
	})
	dirs["no file"] = t.TempDir()
	dirs["no directory"] = filepath.Join(t.TempDir(), "none")
	dirs["an earlier boot"] = t.TempDir()
	earlier := filepath.Join(dirs["an earlier boot"], unendedName+"7b1c6d1e-0000-4000-8000-000000000000")
	if err := os.WriteFile(earlier, nil, 0o600); err != nil { // a power loss may have emptied it
		t.Fatal(err)
	}
	end()
	for why, dir := range dirs {
		if err := ProveEnd(dir, 0); err != nil {
			t.Errorf("%s: %v", why, err)
		}
		if expected, err := EndExpected(dir); err != nil || expected {
			t.Errorf("%s: expected %v, %v", why, expected, err)
		}
	}
}

// TestLastGiven_Advances checks that the kernel reports the number of each process that was started.
func TestLastGiven_Advances(t *testing.T) {
	t.Parallel()
	before, err := lastGiven()
	if err != nil {
		t.Skipf("needs proc: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	after, err := lastGiven()
	if err != nil {
		t.Fatal(err)
	}
	if pid := cmd.Process.Pid; before < pid && after < pid { // unless the numbers began again
		t.Errorf("%d was given between %d and %d", pid, before, after)
	}
}
