package format

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Growth is a checkpoint with the proof that the log grew to it from an older size: the request to a witness. Its
// text is the body of add-checkpoint in C2SP tlog-witness.
//
//	old SIZE
//	BASE64          each hash of the consistency proof
//
//	CHECKPOINT      the signed note
type Growth struct {
	Old        int64 // 0: from an empty log, which needs no proof
	Proof      []Hash
	Checkpoint []byte
}

// maxProof is the maximum number of hashes of a proof, and maxGrowth the maximum size of such a text in bytes.
const (
	maxProof  = 63
	maxGrowth = maxCheckpoint + 64*(maxProof+1)
)

// Text returns the text that ParseGrowth reads.
func (g Growth) Text() []byte {
	b := fmt.Appendf(nil, "old %d\n", g.Old)
	for _, h := range g.Proof {
		b = fmt.Appendf(b, "%s\n", base64.StdEncoding.EncodeToString(h[:]))
	}
	return append(append(b, '\n'), g.Checkpoint...)
}

// ParseGrowth reads the output of Text. It accepts nothing else.
func ParseGrowth(b []byte) (g Growth, err error) {
	bad := fault.New(fault.Invalid, "not a checkpoint with a consistency proof").
		WithHint("print it on the log's host: coppice ledger checkpoint --from SIZE")
	if len(b) > maxGrowth {
		return g, bad
	}
	head, rest, ok := bytes.Cut(b, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	if !ok || len(lines) > 1+maxProof {
		return g, bad
	}
	g.Old = number(strings.TrimPrefix(lines[0], "old "))
	for _, line := range lines[1:] {
		raw, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(raw) != len(Hash{}) {
			return Growth{}, bad
		}
		g.Proof = append(g.Proof, Hash(raw))
	}
	g.Checkpoint = rest
	if g.Old < 0 || !bytes.HasSuffix(rest, []byte{'\n'}) || !bytes.Equal(g.Text(), b) {
		return Growth{}, bad
	}
	return g, nil
}

// ProveGrowth returns the proof of a Growth from an old size of a log to another one.
func ProveGrowth(size, old int64, r tlog.HashReader) (proof []Hash, err error) {
	if old < 0 || old > size {
		return nil, fault.New(fault.Invalid, "the log has %d records, expected %d", size, old)
	}
	if old == 0 || old == size {
		return nil, nil
	}
	hashes, err := tlog.ProveTree(size, old, r)
	for _, h := range hashes {
		proof = append(proof, Hash(h))
	}
	return proof, err
}

// Proves checks that the log of the checkpoint to, which is that of g, grew from the checkpoint from, which has the
// old size of g.
func (g Growth) Proves(from, to Checkpoint) error {
	if from.Size == 0 || from.Size >= to.Size {
		if len(g.Proof) > 0 {
			return fault.New(fault.Invalid, "a consistency proof from %d to %d must have no hashes", from.Size, to.Size)
		}
		if from.Size == 0 {
			return nil
		}
		return Grew(from, to, "")
	}
	proof := make(tlog.TreeProof, len(g.Proof))
	for i, h := range g.Proof {
		proof[i] = tlog.Hash(h)
	}
	return grew(proof, from, to)
}

// grew checks a proof of growth between two sizes.
func grew(proof tlog.TreeProof, from, to Checkpoint) error {
	if tlog.CheckTree(proof, to.Size, tlog.Hash(to.Root), from.Size, tlog.Hash(from.Root)) != nil {
		return fault.New(fault.Corrupt, "the log of %d records is not an extension of that of %d: it was rewritten",
			to.Size, from.Size)
	}
	return nil
}
