package ledger

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// The files of a witness, below the home of its host.
const (
	dirWitness     = "witness"
	fileWitnessKey = "witness/key"  // secret; see witnesskey_linux.go
	dirSeen        = "witness/seen" // for each log, the checkpoint that was cosigned last
)

// Witness cosigns the logs of other hosts: it cosigns a checkpoint if the log grew from the last one that it
// cosigned, and never one that contradicts that. Requests have the form of C2SP tlog-witness, answers that of
// tlog-cosignature/v1. A checkpoint is flushed before its cosignature is returned. The methods are safe for
// concurrent use.
type Witness struct {
	files
	now func() time.Time
	mu  sync.Mutex // held while it signs, from reading the last checkpoint to storing the next
}

// NewWitness returns the witness of a host with that home. Its key is made when it first cosigns.
func NewWitness(home string, fs vfs.FS, now func() time.Time) *Witness {
	return &Witness{files: files{fs, home}, now: now}
}

// Cosigned is a checkpoint that was cosigned.
type Cosigned struct {
	Checkpoint []byte // the checkpoint as it was received, followed by the cosignature
	Signature  string // the line of the cosignature
	Key        string // verifier key of the witness
	Log        format.Checkpoint
	Before     int64 // size of the checkpoint cosigned before; 0 for none
}

// Cosign cosigns the checkpoint of a log with trusted verifier keys. request is the text of a format.Growth
// from the size that was cosigned last, which is 0 for a new log. It returns Denied for a checkpoint that
// none of these keys signed, Conflict if the proof is from another size, and Corrupt if the log did not grow
// from what was cosigned.
func (w *Witness) Cosign(request []byte, trusted []string) (*Cosigned, error) {
	g, err := format.ParseGrowth(request)
	if err != nil {
		return nil, err
	}
	c, err := trustedCheckpoint(g.Checkpoint, trusted)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last, err := w.seen(c.Origin)
	if err != nil {
		return nil, fault.Wrap(err, "read the cosigned checkpoint of %s", c.Origin)
	}
	if err := follows(last, c, g); err != nil {
		return nil, err
	}
	name, key, err := w.ready()
	if err == nil {
		err = w.replace(seenFile(c.Origin), []byte(c.Text()))
	}
	if err != nil {
		return nil, fault.Wrap(err, "cosign a checkpoint of %s", c.Origin)
	}
	line := format.Cosign(c, name, key, w.now())
	return &Cosigned{append(bytes.Clone(g.Checkpoint), line...), line,
		format.WitnessKey(name, key.Public().(ed25519.PublicKey)), c, last.Size}, nil
}

// trustedCheckpoint returns the checkpoint of a note that is signed by one of the keys.
func trustedCheckpoint(note []byte, trusted []string) (c format.Checkpoint, err error) {
	if len(trusted) == 0 {
		return c, fault.New(fault.Invalid, "a key of the log is required").
			WithHint("print them on its host: coppice ledger keys")
	}
	for _, key := range trusted {
		if c, err = (format.Keys{{Key: key}}).Checkpoint(note); err == nil {
			return c, nil
		}
	}
	return c, fault.New(fault.Denied, "the checkpoint is not signed by a given key").Because(err).
		WithHint("print the keys on its host: coppice ledger keys")
}

// follows decides whether a checkpoint may be cosigned after the last one.
func follows(last, c format.Checkpoint, g format.Growth) error {
	switch {
	case g.Old > c.Size:
		return fault.New(fault.Invalid, "the proof is from size %d, but the checkpoint has size %d", g.Old, c.Size)
	case c.Size < last.Size:
		return fault.New(fault.Corrupt,
			"the cosigned checkpoint of %s has size %d, this one %d: it is old, or the log was rolled back",
			c.Origin, last.Size, c.Size).
			WithHint("request the newest: coppice ledger checkpoint --from %d", last.Size)
	case c.Size == last.Size && c.Root != last.Root && last.Size > 0:
		return fault.New(fault.Corrupt, "the log %s was forked: its key signed two checkpoints of size %d", c.Origin, c.Size).
			WithHint("do not trust its host until the cause is known")
	case g.Old != last.Size:
		return fault.New(fault.Conflict, "the proof is from size %d, but the last cosigned checkpoint has size %d",
			g.Old, last.Size).
			WithHint("on the log's host: coppice ledger checkpoint --from %d", last.Size)
	}
	return fault.Wrap(g.Proves(last, c),
		"the log %s is not consistent with the cosigned checkpoint, or its proof is damaged",
		c.Origin)
}

// seenFile returns the name of the file with the last checkpoint of a log. The origin is hashed because clients
// choose it.
func seenFile(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return dirSeen + "/" + hex.EncodeToString(sum[:])
}

// seen returns the checkpoint that was cosigned last, or the zero Checkpoint.
func (w *Witness) seen(origin string) (c format.Checkpoint, err error) {
	text, err := w.read(seenFile(origin))
	if err != nil || text == nil {
		return c, err
	}
	if c, err = format.ParseCheckpoint(string(text)); err == nil && c.Origin != origin {
		err = fault.New(fault.Corrupt, "the cosigned checkpoint of %s is of %.80q", origin, c.Origin)
	}
	return c, err
}
