//go:build linux

package command

import (
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Evidence bounds what is recorded of a command, below the bounds for every command. The zero Evidence adds none.
type Evidence struct {
	Output int64 // bytes of each stream of its output
	Paths  int   // bytes of the names of the paths that it changed
}

// output returns how many bytes of each stream are recorded of a command, whose policy allows allowed.
func (v Evidence) output(allowed int64) int64 {
	if v == (Evidence{}) {
		return allowed
	}
	return min(allowed, v.Output)
}

// changes returns the first of the changes that are recorded.
func (v Evidence) changes(all []format.Change) []format.Change {
	if v == (Evidence{}) {
		return all
	}
	room := v.Paths
	for i, c := range all {
		if room -= audit.EncodedLen(c.Path); room < 0 {
			return all[:i]
		}
	}
	return all
}
