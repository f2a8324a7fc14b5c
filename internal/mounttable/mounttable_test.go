//go:build linux

package mounttable

import (
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestParse_TakesLinesOfAnyLength(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(",lowerdir+=/some/layer", 10_000)
	text := "22 1 0:5 / / rw,relatime - ext4 /dev/sda rw\n" +
		`23 22 0:6 /a /mnt/o\040ne rw - overlay overlay rw` + long + "\n" +
		"24 22 0:7 / /sys/fs/cgroup rw - cgroup2 none rw,nsdelegate"
	all, err := Parse(strings.NewReader(text), nil)
	if err != nil || len(all) != 3 || all[1].Mountpoint != "/mnt/o ne" || all[1].FSType != "overlay" ||
		!strings.HasPrefix(all[1].VFSOptions, "rw,lowerdir+=/some/layer,") || all[2].Mountpoint != "/sys/fs/cgroup" {
		t.Errorf("%+v, %v", all, err)
	}
	one, err := Parse(strings.NewReader(text), mountinfo.FSTypeFilter("cgroup2"))
	if err != nil || len(one) != 1 || one[0].VFSOptions != "rw,nsdelegate" {
		t.Errorf("%+v, %v", one, err)
	}
	if all, err := Parse(strings.NewReader("25 1 0:8 / /"+strings.Repeat("x", maxLine)+" rw - a b c"), nil); err == nil {
		t.Errorf("a line with a truncated mount point was accepted: %+v", all)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	all, err := List(nil)
	if err != nil || len(all) == 0 {
		t.Errorf("%d mounts, %v", len(all), err)
	}
}
