package repo

import (
	"maps"
	"slices"
	"strings"
)

// treeChange is one path that two trees differ in, a directory or what lies in one.
type treeChange struct {
	path      string
	old, mode Mode // 0 where there is none
	oldID, id OID
	stat      stat // of what was written for it
}

// emptyTree is the tree without anything, which every repository has.
func (f Format) emptyTree() OID {
	if f == SHA256 {
		return "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
	}
	return "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
}

// treePlan is what a checkout does, step by step: directories with those above first, what
// is hidden and removed, then files. It is a pure function of the changes.
type treePlan struct {
	dirs    []string
	hidden  []string
	gone    []string
	files   []*treeChange
	modules []string
}

// planTree decides. The changes are in git's order, in which what is in a directory comes
// behind it.
func planTree(changes []treeChange) treePlan {
	var p treePlan
	now := replaced(changes)
	lead := dirSet{}
	under := "/" // a directory that goes, or nothing
	for i := range changes {
		c := &changes[i]
		switch {
		case c.mode == 0 && strings.HasPrefix(c.path, under):
			continue // goes with it
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

// replaced gives what is now at the paths that were something else of another order: a
// directory is removed and a file added, or the other way round.
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

// dirSet is a set of directories, with all that lie above each.
type dirSet map[string]bool

// above adds the directories that a path lies in.
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

// sorted gives each directory behind the one that it lies in.
func (d dirSet) sorted() []string { return slices.Sorted(maps.Keys(d)) }
