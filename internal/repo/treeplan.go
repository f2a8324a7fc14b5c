package repo

import (
	"maps"
	"slices"
	"strings"
)

// treeChange is one path that differs between two trees, a directory or a file.
type treeChange struct {
	path      string
	old, mode Mode // 0 if absent
	oldID, id OID
	stat      stat // stat of the written file
}

// emptyTree returns the ID of the empty tree, which every repository has.
func (f Format) emptyTree() OID {
	if f == SHA256 {
		return "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
	}
	return "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
}

// treePlan is the steps of a checkout: directories, parents first, then paths to hide and to remove, then files. It
// is a pure function of the changes.
type treePlan struct {
	dirs    []string
	hidden  []string
	gone    []string
	files   []*treeChange
	modules []string
}

// planTree computes the plan. The changes are in git's order, in which a directory precedes its content.
func planTree(changes []treeChange) treePlan {
	var p treePlan
	now := replaced(changes)
	lead := dirSet{}
	under := "/" // a removed directory, or a value that matches nothing
	for i := range changes {
		c := &changes[i]
		switch {
		case c.mode == 0 && strings.HasPrefix(c.path, under):
			continue // removed with its directory
		case c.mode == 0:
			if c.old == ModeTree {
				under = c.path + "/"
			}
			switch now[c.path] {
			case 0:
				p.gone = append(p.gone, c.path)
				lead.above(c.path)
			case ModeTree, ModeSubmodule:
				p.hidden = append(p.hidden, c.path)
				lead.add(c.path)
			}
		case c.mode == ModeTree:
		case c.mode != ModeSubmodule:
			p.files = append(p.files, c)
			lead.above(c.path)
		case c.old != ModeSubmodule:
			p.modules = append(p.modules, c.path)
			lead.add(c.path)
			if c.old != 0 {
				p.hidden = append(p.hidden, c.path)
			}
		}
	}
	p.dirs = lead.sorted()
	return p
}

// replaced returns the new modes of paths whose type changed such that git lists two changes: a directory was removed
// and a file added, or the other way round.
func replaced(changes []treeChange) map[string]Mode {
	now := map[string]Mode{}
	for i := range changes {
		if changes[i].mode == 0 {
			now[changes[i].path] = 0
		}
	}
	if len(now) == 0 {
		return now
	}
	for i := range changes {
		if _, was := now[changes[i].path]; was && changes[i].old == 0 {
			now[changes[i].path] = changes[i].mode
		}
	}
	return now
}

// dirSet is a set of directories, including all parents of each.
type dirSet map[string]bool

// above adds the parents of a path.
func (d dirSet) above(path string) {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		d.add(path[:i])
	}
}

func (d dirSet) add(dir string) {
	for !d[dir] {
		d[dir] = true
		i := strings.LastIndexByte(dir, '/')
		if i < 0 {
			return
		}
		dir = dir[:i]
	}
}

// sorted returns the directories, parents first.
func (d dirSet) sorted() []string { return slices.Sorted(maps.Keys(d)) }
