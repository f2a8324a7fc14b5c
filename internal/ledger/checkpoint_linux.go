package ledger

import (
	"bytes"
	"context"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Checkpoint returns the signed checkpoint of the log, including all that was appended.
func (l *Ledger) Checkpoint(ctx context.Context) (signed []byte, err error) {
	err = l.do(ctx, "create a checkpoint", func() (err error) {
		if err = l.fold(); err == nil {
			signed, err = l.read(fileCheckpoint)
		}
		return err
	})
	return signed, err
}

// Growth returns the checkpoint of the log, including all that was appended, and the proof that it grew from an older
// size, for a witness: see format.Growth.
func (l *Ledger) Growth(ctx context.Context, old int64) (g format.Growth, err error) {
	err = l.do(ctx, "prove consistency", func() error {
		if err := l.fold(); err != nil {
			return err
		}
		file, err := l.hashes()
		if err != nil {
			return err
		}
		defer file.Close()
		g.Old = old
		if g.Proof, err = format.ProveGrowth(l.state.tree.Size(), old, file); err == nil {
			g.Checkpoint, err = l.read(fileCheckpoint)
		}
		return err
	})
	return g, err
}

// AddWitness stores a checkpoint of this log, in place of an older one. All of witnesses, given by their
// verifier keys (C2SP tlog-cosignature/v1), must have signed it.
func (l *Ledger) AddWitness(ctx context.Context, cosigned []byte, witnesses ...string) error {
	return l.do(ctx, "store a witnessed checkpoint", func() error {
		c, err := l.secrets.keys.Checkpoint(cosigned)
		if err != nil {
			return fault.New(fault.Invalid, "not a checkpoint of this log").Because(err).
				WithHint("print the request for a witness: coppice ledger checkpoint --from SIZE")
		}
		if len(witnesses) == 0 {
			return fault.New(fault.Invalid, "a witness is required")
		}
		for _, w := range witnesses {
			if _, err := format.Cosigned(cosigned, w); err != nil {
				return fault.New(fault.Invalid, "the checkpoint is not cosigned by %.80q", w).Because(err)
			}
		}
		if err := l.fold(); err != nil {
			return err
		}
		if err := l.grewTo(c); err != nil {
			return err
		}
		was, err := l.read(fileWitness)
		if err != nil {
			return err
		}
		if before, err := l.secrets.keys.Checkpoint(was); was != nil && err == nil && before.Size > c.Size {
			return fault.New(fault.Conflict, "a checkpoint of size %d is already witnessed, newer than this one of size %d",
				before.Size, c.Size)
		}
		return l.replace(fileWitness, cosigned)
	})
}

// grewTo checks that a checkpoint is one of the log as it is flushed.
func (l *Ledger) grewTo(c format.Checkpoint) error {
	now := l.checkpoint(&l.state.tree)
	proofs, err := l.proofs(now.Size, c.Size)
	if err != nil {
		return err
	}
	return format.Grew(c, now, string(proofs))
}

// proofs is format.Consistency with the hashes on the disk.
func (l *Ledger) proofs(size int64, old ...int64) ([]byte, error) {
	file, err := l.hashes()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return format.Consistency(size, old, file)
}

// Inclusion is the standard proof that a leaf is in the log, as in RFC 6962.
type Inclusion struct {
	Checkpoint []byte // signed
	Leaf       int64
	Proof      tlog.RecordProof
}

// Prove returns the proof that an appended record is in the log.
func (l *Ledger) Prove(ctx context.Context, r *format.Record) (in Inclusion, err error) {
	if in.Checkpoint, err = l.Checkpoint(ctx); err != nil {
		return in, err
	}
	text, _, _ := bytes.Cut(in.Checkpoint, []byte("\n\n"))
	c, err := format.ParseCheckpoint(string(text) + "\n")
	if err != nil {
		return in, err
	}
	file, err := l.hashes()
	if err != nil {
		return in, err
	}
	defer file.Close()
	in.Leaf = r.Leaf
	in.Proof, err = tlog.ProveRecord(c.Size, r.Leaf, file)
	return in, fault.Wrap(err, "prove record %d of %s", r.Seq, r.Sandbox)
}

// RotateKey makes a new key, which signs from now on. The old key signs the new one, and is then recorded and
// deleted.
func (l *Ledger) RotateKey(ctx context.Context) error {
	return l.do(ctx, "rotate the key", func() error {
		if err := l.fold(); err != nil {
			return err
		}
		next, err := l.secrets.rotated(l.state.tree.Size())
		if err != nil {
			return err
		}
		l.broken = true // until it is completed, only the disk has the state
		if err := l.replace(fileKey, next.encode()); err != nil {
			return err
		}
		l.secrets = next
		if err := l.finish(); err != nil {
			return err
		}
		l.broken = false
		return nil
	})
}

// recordRotation appends the record of the newest key. After a crash the log may have it twice.
func (l *Ledger) recordRotation() error {
	keys := l.secrets.keys
	n := len(keys) - 1
	err := l.appendNow(Draft{Sandbox: format.Host, Name: string(format.Host), Observer: format.ByDaemon,
		Body: &format.Key{New: keys[n].Key, Old: keys[n-1].Key, Statement: string(keys[n].Statement)}})
	if err != nil {
		return err
	}
	l.secrets.recorded = true
	return l.replace(fileKey, l.secrets.encode())
}
