package daemon

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAvailableMemory_IsLowestCgroupLimit(t *testing.T) {
	t.Parallel()
	const meminfo = "MemTotal:        8388608 kB\nMemFree:         1 kB\n"
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no control groups": {map[string]string{}, 8 << 30},
		"version 1 alone":   {map[string]string{"proc/self/cgroup": "4:memory:/a\n"}, 8 << 30},
		"no limit": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"},
			8 << 30},
		"its own": {
			map[string]string{"proc/self/cgroup": "4:memory:/x\n0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1073741824\n"},
			1 << 30},
		"a parent's": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1073741824\n",
			"sys/fs/cgroup/a/memory.high": "536870912\n"}, 512 << 20},
		"outside of its namespace": {
			map[string]string{"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30},
	} {
		root := t.TempDir()
		tc.files["proc/meminfo"] = meminfo
		for file, text := range tc.files {
			at := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := availableMemory(root); err != nil || got != tc.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, tc.want)
		}
	}
	if _, err := availableMemory(t.TempDir()); err == nil {
		t.Error("no error for a host without /proc/meminfo")
	}
}
