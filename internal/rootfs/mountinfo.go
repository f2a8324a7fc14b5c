package rootfs

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Mount is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type Mount struct {
	ID, Parent int
	Dev        string // major:minor of the file system
	Root       string // the directory of the file system that is mounted
	Point      string // where, absolute
	Type       string // of the file system, "ext4", "fuse.sshfs"
	Source     string
}

// ParseMountinfo reads the text of /proc/self/mountinfo. A line that it does not
// understand is an error of kind fault.Internal: guessing what is mounted is not
// safe.
func ParseMountinfo(text []byte) ([]Mount, error) {
	var ms []Mount
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) == 0 {
			continue
		}
		sep := -1
		for i := 6; i < len(f); i++ {
			if f[i] == "-" {
				sep = i
				break
			}
		}
		if sep < 0 || len(f) < sep+3 {
			return nil, fault.New(fault.Internal, "mountinfo: cannot read the line %q", line)
		}
		id, err1 := strconv.Atoi(f[0])
		parent, err2 := strconv.Atoi(f[1])
		if err1 != nil || err2 != nil || !strings.HasPrefix(f[4], "/") {
			return nil, fault.New(fault.Internal, "mountinfo: cannot read the line %q", line)
		}
		ms = append(ms, Mount{
			ID: id, Parent: parent, Dev: f[2], Root: unescape(f[3]), Point: unescape(f[4]),
			Type: f[sep+1], Source: unescape(f[sep+2]),
		})
	}
	return ms, nil
}

// unescape undoes the octal escapes of blanks, newlines and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountTree answers which mount a path lies in.
type mountTree struct {
	root     *Mount
	children map[int][]*Mount
}

func newMountTree(ms []Mount) mountTree {
	t := mountTree{children: map[int][]*Mount{}}
	byID := map[int]bool{}
	for i := range ms {
		byID[ms[i].ID] = true
	}
	for i := range ms {
		m := &ms[i]
		if m.ID != m.Parent && byID[m.Parent] {
			t.children[m.Parent] = append(t.children[m.Parent], m)
		} else if t.root == nil && m.Point == "/" {
			t.root = m
		}
	}
	return t
}

// at gives the mount that the path p leads to, nil when there is none: from the
// root mount down, always into the child that covers p highest up; of several at
// one place the last was mounted on top.
func (t mountTree) at(p string) *Mount {
	cur := t.root
	for cur != nil {
		var next *Mount
		for _, c := range t.children[cur.ID] {
			if rootspec.Within(p, c.Point) && rootspec.Within(c.Point, cur.Point) && (next == nil || len(c.Point) <= len(next.Point)) {
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

// place is a directory as its file system knows it, whatever it is called by.
type place struct{ dev, path string }

func (t mountTree) place(p string) (place, bool) {
	m := t.at(p)
	if m == nil {
		return place{}, false
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(p, strings.TrimSuffix(m.Point, "/")), "/")
	return place{dev: m.Dev, path: join(m.Root, rel)}, true
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
