package guest

import (
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
)

// What is kept to label the snapshot of one interval. The bytes are such that the list
// fits into a frame of the keeper (wire.MaxFrame) even where JSON needs six for
// one.
const (
	maxLabels     = 256
	maxDetails    = 64 // programs in the list above which no detail is added
	maxLabelBytes = 128 << 10
)

// labels are the programs that are started from one freeze to the next. A program that
// was started below another one of the same interval is a detail of it: when room is
// short, details go first.
type labels struct {
	list  []wire.Program // oldest first
	bytes int            // of list
}

func (l *labels) add(n wire.Program) {
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

func (l *labels) full() bool { return len(l.list) >= maxLabels || l.bytes >= maxLabelBytes }

// drop takes the oldest detail out of the list, or, when there is none, the
// oldest program. Its neighbour stands for it.
func (l *labels) drop() {
	i := max(0, slices.IndexFunc(l.list, func(n wire.Program) bool { return n.Parent != 0 }))
	gone := l.list[i]
	l.bytes -= size(gone)
	l.list = slices.Delete(l.list, i, i+1)
	if len(l.list) > 0 {
		l.list[max(0, i-1)].Unlisted += 1 + gone.Unlisted
	}
}

// size is about how much of a frame a program takes, if each byte takes one.
func size(n wire.Program) int {
	bytes := 32 + len(n.Dir)
	for _, a := range n.Args {
		bytes += len(a) + 1
	}
	return bytes
}
