//go:build linux && (amd64 || arm64)

package guest

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// TestFlaw_OfEachDifference changes one fact of a container at a time.
func TestFlaw_OfEachDifference(t *testing.T) {
	t.Parallel()
	out := initlink.Outside{
		Namespaces: map[string]uint64{"pid": 1, "ipc": 2, "uts": 3, "mnt": 4, "user": 5, "net": 6},
		Caps:       0xa80425fb,
	}
	made := func() contained {
		return contained{
			pid: 1, ownProc: true,
			namespaces: map[string]uint64{"pid": 11, "ipc": 12, "uts": 13, "mnt": 14, "user": 5, "net": 6},
			status: map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapBnd": "00000000a80425fb",
				"CapPrm": "00000000a80425fb", "CapEff": "00000000a80425fb"},
		}
	}
	if flaw := made().flaw(out); flaw != "" {
		t.Errorf("as described: %s", flaw)
	}
	for name, change := range map[string]func(*contained){
		"pid":    func(c *contained) { c.pid = 2 },
		"proc":   func(c *contained) { c.ownProc = false },
		"pidns":  func(c *contained) { c.namespaces["pid"] = 1 },
		"mnt":    func(c *contained) { c.namespaces["mnt"] = 4 },
		"net":    func(c *contained) { c.namespaces["net"] = 16 },
		"user":   func(c *contained) { c.namespaces["user"] = 15 },
		"nnp":    func(c *contained) { c.status["NoNewPrivs"] = "0" },
		"filter": func(c *contained) { c.status["Seccomp"] = "0" },
		"none":   func(c *contained) { delete(c.status, "Seccomp") },
		"more":   func(c *contained) { c.status["CapBnd"] = "000001ffffffffff" },
		"fewer":  func(c *contained) { c.status["CapEff"] = "0000000000000000" },
		"masks":  func(c *contained) { c.open = []string{"/proc/kcore"} },
	} {
		c := made()
		change(&c)
		if c.flaw(out) == "" {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// TestNotCovered finds paths on which nothing is mounted, and that can be written.
func TestNotCovered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if open, err := notCovered([]string{"/proc", dir, "/no/such"}); err != nil || len(open) != 1 || open[0] != dir {
		t.Errorf("%q, %v", open, err)
	}
	if open, err := notReadOnly([]string{dir, "/no/such"}); err != nil || len(open) != 1 || open[0] != dir {
		t.Errorf("%q, %v", open, err)
	}
}

// TestCloseInherited leaves open what this process has opened itself. That it closes what a runtime leaves open is
// checked with a runtime (package box).
func TestCloseInherited(t *testing.T) {
	t.Parallel()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if err := closeInherited(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(p[0]), unix.F_GETFD, 0); err != nil {
		t.Errorf("an own descriptor was closed: %v", err)
	}
}
