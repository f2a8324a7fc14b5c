package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// head is the end of a sandbox's chain.
type head struct {
	seq     int64       // of the last record
	hash    format.Hash // hash of the last record
	first   int64       // seq of the first record of the last segment
	bytes   int64       // length of that segment
	removed bool        // its records were removed
}

const headsTitle = "coppice-ledger-heads/v1"

// heads are the ends of all chains, at a checkpoint.
type heads struct {
	at  format.Checkpoint
	all map[format.Sandbox]head
}

// text returns the text that is signed: the checkpoint, and a line for each sandbox.
func (h heads) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s", headsTitle, h.at.Text())
	for _, id := range slices.Sorted(maps.Keys(h.all)) {
		one := h.all[id]
		fmt.Fprintf(&b, "%s %d %s %d %d %v\n", id, one.seq, one.hash, one.first, one.bytes, one.removed)
	}
	return b.String()
}

// parseHeads reads the output of text. It accepts nothing else.
func parseHeads(text string) (heads, error) {
	bad := fault.New(fault.Corrupt, "log/heads of the ledger is damaged")
	f := strings.SplitAfterN(text, "\n", 5)
	if f[0] != headsTitle+"\n" {
		return heads{},
			fault.New(fault.Version, "unknown version %.40q of log/heads of the ledger: must be %q", f[0], headsTitle)
	}
	if len(f) != 5 {
		return heads{}, bad
	}
	at, err := format.ParseCheckpoint(strings.Join(f[1:4], ""))
	if err != nil {
		return heads{}, err
	}
	h := heads{at, map[format.Sandbox]head{}}
	for line := range strings.Lines(f[4]) {
		w := strings.Fields(line)
		if len(w) != 6 {
			return heads{}, bad
		}
		one := head{seq: atoi(w[1]), first: atoi(w[3]), bytes: atoi(w[4])}
		if one.hash, err = format.ParseHash(w[2]); err != nil {
			return heads{}, err
		}
		if one.removed, err = strconv.ParseBool(w[5]); err != nil {
			return heads{}, bad
		}
		h.all[format.Sandbox(w[0])] = one
	}
	if h.text() != text {
		return heads{}, bad
	}
	return h, nil
}

// openHeads reads signed heads.
func openHeads(msg []byte, keys format.Keys) (heads, error) {
	text, _, _ := strings.Cut(string(msg), "\n\n")
	h, err := parseHeads(text + "\n")
	if err != nil {
		return h, err
	}
	if h.at.Origin != keys.Origin() {
		return h, fault.New(fault.Corrupt, "log/heads of the ledger is of %.80q", h.at.Origin)
	}
	_, _, err = keys.Open(msg, h.at.Size)
	return h, err
}
