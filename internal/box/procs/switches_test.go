//go:build linux && (amd64 || arm64)

package procs

import (
	"maps"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSwitches_TellWhoHasRun checks that the number of a stopped process does not change, and that it differs once the
// process has run, although it is stopped again.
func TestSwitches_TellWhoHasRun(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	stopped := func() List {
		t.Helper()
		if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
			if p, ok := readStat(Stat{PID: cmd.Process.Pid}.dir() + "/stat"); ok && p.Halted() {
				return List{p}
			}
			if time.Now().After(end) {
				t.Fatal("the process does not stop")
			}
		}
	}
	l := stopped()
	first := l.Switches()
	if len(first) != 1 || first[cmd.Process.Pid] == 0 || !maps.Equal(first, l.Switches()) {
		t.Fatalf("%v, then %v", first, l.Switches())
	}
	stopped() // again
	if again := l.Switches(); !maps.Equal(first, again) {
		t.Errorf("a signal that does not continue it: %v, then %v", first, again)
	}
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if again := stopped().Switches(); again[cmd.Process.Pid] <= first[cmd.Process.Pid] {
		t.Errorf("%v, although it ran since %v", again, first)
	}
}
