//go:build linux && (amd64 || arm64)

package execs

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// Bounds of the programs that label one snapshot. The list fits into a frame of the keeper
// (wire.MaxFrame) even if each byte takes six in JSON.
const (
	maxLabels     = 256
	maxDetails    = 64 // list length above which no detail is added
	maxLabelBytes = 128 << 10
)

// Labels collects the programs that are started between two freezes, to label the snapshot. A program that was started
// by another one of the same interval is a detail of that one; details are left out first. The zero value is ready to
// use. Labels is not safe for concurrent use.
type Labels struct {
	list  []wire.Program // oldest first
	bytes int            // size of list
	last  uint64         // id of the newest program
	since uint64         // last id before the interval
}

const (
	maxArgs = 64    // arguments in a label
	cutMark = "..." // replaces the rest
)

// Note adds a program, whose ID must be greater than that of the one before. parent returns the pid of the program's
// parent, and is called only if the parent was started in the same interval.
func (l *Labels) Note(n *initlink.Program, parent func() int) {
	l.last = n.ID
	p := wire.Program{PID: n.PID, Dir: string(n.Dir), Started: n.Started}
	switch {
	case n.Before > l.since:
		p.Parent = n.PID
	case n.Parent > l.since:
		p.Parent = parent()
	}
	text, whole := strings.CutSuffix(string(n.Args), "\x00")
	p.Args = strings.SplitN(text, "\x00", maxArgs+1)
	switch {
	case len(p.Args) > maxArgs:
		p.Args[maxArgs] = cutMark
	case !whole || n.Cut != 0:
		p.Args[len(p.Args)-1] += cutMark
	}
	l.add(p)
}

// Take returns the programs of the interval, and begins the next one.
func (l *Labels) Take() []wire.Program {
	list := l.list
	*l = Labels{last: l.last, since: l.last}
	return list
}

func (l *Labels) add(n wire.Program) {
	if n.Parent != 0 && (l.full() || len(l.list) >= maxDetails) {
		if n.Parent != n.PID {
			l.list[len(l.list)-1].Unlisted++
		}
		return
	}
	if n.Parent != 0 {
		n.Dir = ""
	}
	for len(l.list) > 0 && l.full() {
		l.drop()
	}
	l.list = append(l.list, n)
	l.bytes += size(n)
}

func (l *Labels) full() bool { return len(l.list) >= maxLabels || l.bytes >= maxLabelBytes }

// drop removes the oldest detail from the list or, if there is none, the oldest program, and counts it as Unlisted in a
// neighbour.
func (l *Labels) drop() {
	i := max(0, slices.IndexFunc(l.list, func(n wire.Program) bool { return n.Parent != 0 }))
	gone := l.list[i]
	l.bytes -= size(gone)
	l.list = slices.Delete(l.list, i, i+1)
	if len(l.list) > 0 {
		l.list[max(0, i-1)].Unlisted += 1 + gone.Unlisted
	}
}

// size returns about how many bytes of a frame a program takes if JSON escapes none of them.
func size(n wire.Program) int {
	bytes := 32 + len(n.Dir)
	for _, a := range n.Args {
		bytes += len(a) + 1
	}
	return bytes
}
