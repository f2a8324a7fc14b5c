//go:build linux && (amd64 || arm64)

package keeper

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestTypeOfMount(t *testing.T) {
	t.Parallel()
	const mounts = `1 0 0:1 / / rw - rootfs rootfs rw
41 31 0:38 / /with\040space rw,relatime shared:9 master:1 - fuse.sshfs me@there:/ rw
410 31 8:1 / /srv rw - ext4 /dev/sda1 rw
`
	list, err := mountinfo.GetMountsFromReader(strings.NewReader(mounts), nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[uint64]string{0: "", 1: "rootfs", 4: "", 41: "fuse.sshfs", 410: "ext4"} {
		if got := typeOfMount(list, id); got != want {
			t.Errorf("mount %d: %q, not %q", id, got, want)
		}
	}
}

func TestStandsOn_GivesEachFileSystemOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	on, err := standsOn(
		rootspec.Spec{Bind: dir,
			Overlays: []rootspec.Overlay{
				{Upper: dir, Lowers: []string{"/proc", filepath.Join(dir, "missing"), dir, "/proc/self"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(on) != 2 || on[0].dir != dir || on[0].fs == "" || on[1] != (standing{"/proc", "proc"}) {
		t.Errorf("%+v", on)
	}
}
