package rootfs

import (
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// mountTree finds the mount that a path is in.
type mountTree struct {
	root     *mountinfo.Info
	children map[int][]*mountinfo.Info
}

func newMountTree(ms []*mountinfo.Info) mountTree {
	t := mountTree{children: map[int][]*mountinfo.Info{}}
	byID := map[int]bool{}
	for _, m := range ms {
		byID[m.ID] = true
	}
	for _, m := range ms {
		if m.ID != m.Parent && byID[m.Parent] {
			t.children[m.Parent] = append(t.children[m.Parent], m)
		} else if t.root == nil && m.Mountpoint == "/" {
			t.root = m
		}
	}
	return t
}

// at returns the mount that contains p, nil if there is none. It descends from the root mount, always into the child
// that covers p with the shortest mount point; among several at one mount point, the last is on top.
func (t mountTree) at(p string) *mountinfo.Info {
	cur := t.root
	for cur != nil {
		var next *mountinfo.Info
		for _, c := range t.children[cur.ID] {
			if rootspec.Within(p, c.Mountpoint) && rootspec.Within(c.Mountpoint, cur.Mountpoint) &&
				(next == nil || len(c.Mountpoint) <= len(next.Mountpoint)) {
				next = c
			}
		}
		if next == nil {
			return cur
		}
		cur = next
	}
	return nil
}

// device is the device number of a file system.
type device struct{ major, minor int }

func deviceOf(m *mountinfo.Info) device { return device{m.Major, m.Minor} }

// place identifies a directory by its file system and its path there, independent of where that is mounted.
type place struct {
	dev  device
	path string
}

func (t mountTree) place(p string) (place, bool) {
	m := t.at(p)
	if m == nil {
		return place{}, false
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(p, strings.TrimSuffix(m.Mountpoint, "/")), "/")
	return place{dev: deviceOf(m), path: join(m.Root, rel)}, true
}

func join(dir, rel string) string {
	switch {
	case rel == "":
		return dir
	case dir == "/":
		return "/" + rel
	}
	return dir + "/" + rel
}
