//go:build linux && (amd64 || arm64)

package cgroup

import (
	"strings"
	"testing"
)

func TestFindGroups(t *testing.T) {
	t.Parallel()
	const mounts = `1 1 0:1 / / rw - rootfs rootfs rw
30 1 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 1 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 1 0:29 / /with\040blank/memory rw - cgroup cgroup rw,memory
33 1 0:30 / /with\040blank/groups rw - cgroup2 none rw
34 1 0:31 / /sys/fs/cgroup/ro rw - cgroup2 none ro
`
	for _, c := range []struct{ kind, option, want string }{
		{"cgroup2", "rw", "/with blank/groups"},
		{"cgroup2", "nsdelegate", "/sys/fs/cgroup/unified"},
		{"cgroup", "cpu", "/sys/fs/cgroup/cpu,cpuacct"},
		{"cgroup", "memory", "/with blank/memory"},
		{"cgroup", "pids", ""},
	} {
		if got, err := findGroups(strings.NewReader(mounts), c.kind, c.option); err != nil || got != c.want {
			t.Errorf("%s, %s: %q, %v", c.kind, c.option, got, err)
		}
	}
	if got, err := findGroups(strings.NewReader(mounts+"torn line\n"), "cgroup2", "rw"); err == nil {
		t.Errorf("an incomplete line was accepted: %q", got)
	}
}
