package quota

import (
	"errors"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestLack_NamesCauseAndRemedy(t *testing.T) {
	t.Parallel()
	on := func(fs string, counts, holds bool) Facts {
		return Facts{Dir: "/srv/home", FS: fs, Device: "/dev/vdb", Mount: "/srv", Counts: counts, Holds: holds}
	}
	failed := on("ext4", true, true)
	failed.Err = errors.New("written past it")
	unknown := on("ext4", false, false)
	unknown.Device, unknown.Mount = "", ""
	odd := on("xfs", false, false)
	odd.Device, odd.Mount = "/dev/my disk", "/a b\n"
	for _, tt := range []struct {
		name          string
		in            error
		message, hint string
	}{
		{"a path with blanks", Lack(odd), "without prjquota", `umount '/a b\n' && mount -o prjquota '/dev/my disk' '/a b\n'`},
		{"an old kernel", Lack(Facts{NoCall: true}), "quotactl_fd", "Linux 5.14"},
		{"ext4 without the feature", Lack(on("ext4", false, false)), "the ext4 at /srv lacks project quotas",
			"tune2fs -O project,quota -Q prjquota /dev/vdb && mount -o prjquota /dev/vdb /srv"},
		{"ext4 somewhere", Lack(unknown), "lacks project quotas", "tune2fs -O project,quota -Q prjquota DEVICE"},
		{"ext4 without the option", Lack(on("ext4", true, false)), "does not enforce limits", "quotaon -P /srv"},
		{"xfs without the option", Lack(on("xfs", false, false)), "without prjquota",
			"umount /srv && mount -o prjquota /dev/vdb /srv"},
		{"xfs that only counts", Lack(on("xfs", true, false)), "without prjquota", "mount -o prjquota"},
		{"btrfs", Lack(on("btrfs", false, false)), "where only driver btrfs can", "btrfs quota enable /srv/home"},
		{"tmpfs", Lack(on("tmpfs", false, false)), "on tmpfs, which has no project quotas",
			"ext4 or xfs mounted with prjquota"},
		{"all is well but the try", Lack(failed), "a test in /srv/home failed: written past it", "COPPICE_HOME"},
		{"an ordinary user", NotRoot(), "runs as root", "a file system of the size that you want"},
		{"driver copy", NoDriver("copy"), "driver copy", "--driver auto"},
	} {
		if !fault.Is(tt.in, fault.Unsupported) || !strings.Contains(tt.in.Error(), tt.message) {
			t.Errorf("%s: %v (%s): want %q", tt.name, tt.in, fault.KindOf(tt.in), tt.message)
		}
		if hint := fault.HintOf(tt.in); !strings.Contains(hint, tt.hint) || strings.Contains(hint, "\n") {
			t.Errorf("%s: hint %q: want %q", tt.name, hint, tt.hint)
		}
	}
}

func TestInodes(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]int64{0: 0, 1: leastInodes, 1 << 20: leastInodes, 64 << 20: 16384,
		10 << 30: 2621440} {
		if got := Inodes(limit); got != want {
			t.Errorf("%d bytes: %d files, want %d", limit, got, want)
		}
	}
}
