//go:build linux && (amd64 || arm64)

package escape_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest/escape"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/removal"
)

// btrfsAt is set in the environment of the run as a user to a directory on a btrfs, which only root can mount.
const btrfsAt = "COPPICE_ESCAPE_BTRFS"

// TestBtrfs_IsNotReachedFromInside runs the attack in every tier, in sandboxes whose root is a subvolume, as with
// driver btrfs, and then removes the sandboxes. On any other file system the kernel itself returns ENOTTY.
func TestBtrfs_IsNotReachedFromInside(t *testing.T) {
	needsStatic(t)
	shared := tools(t, btrfsDir(t))
	other := otherUser()
	for _, s := range append([]setting{
		{"process", plan.TierProcess, plan.NetOff, plan.UserRoot, false, true, false},
		{"supervised", plan.TierSupervised, plan.NetRules, plan.UserRoot, true, true, false},
		{other + "-process", plan.TierProcess, plan.NetOff, other, false, true, false},
	}, gvisorSettings()...) {
		t.Run(s.name, func(t *testing.T) {
			x := newTrial(t, s, shared)
			b := x.start(t)
			facts, err := json.Marshal(escape.Facts{User: s.user, Own: s.tier == plan.TierGvisor})
			if err != nil {
				t.Fatal(err)
			}
			out, exit := run(t, b, wire.ExecRequest{Cmd: []string{"/tools/" + escape.Argv0, "btrfs", string(facts)}, Dir: "/"})
			if exit.Code != escape.Refused {
				t.Errorf("exit %d %s\n%s", exit.Code, exit.Signal, out)
			}
			x.stop(t, b)
			if err := removal.Tree(t.Context(), x.dir); err != nil {
				t.Errorf("could not remove the sandbox: %v", err)
			}
			if _, err := os.Lstat(x.dir); !os.IsNotExist(err) {
				t.Errorf("the sandbox was not removed: %v", err)
			}
		})
	}
}

// TestBtrfsAsUser runs TestBtrfs_IsNotReachedFromInside as a user; see TestAsUser.
func TestBtrfsAsUser(t *testing.T) {
	needsStatic(t)
	t.Setenv(btrfsAt, btrfsDir(t))
	asUser(t, "^TestBtrfs_IsNotReachedFromInside$")
}

// btrfsDir returns a directory on a btrfs, in which all users may create files.
func btrfsDir(t *testing.T) string {
	t.Helper()
	if at := os.Getenv(btrfsAt); at != "" {
		return at
	}
	if os.Getuid() != 0 || os.Getenv(realID) != "" {
		t.Skip("needs real-root: to mount a btrfs")
	}
	dir, err := os.MkdirTemp("/var/tmp", "escape-btrfs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at, img := filepath.Join(dir, "at"), filepath.Join(dir, "img")
	for _, c := range [][]string{{"mkdir", at}, {"truncate", "-s", "1G", img}, {"mkfs.btrfs", "-q", img},
		{"mount", "-o", "loop", img, at}, {"chmod", "755", dir}, {"chmod", "1777", at}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs btrfs: %s: %v %s", c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return at
}
