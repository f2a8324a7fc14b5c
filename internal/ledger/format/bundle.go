package format

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Maximum sizes of the files of a bundle that are read into memory, in bytes.
const (
	maxManifest   = 16 << 20
	maxKeys       = 1 << 20
	maxCheckpoint = 64 << 10
	maxProofs     = 16 << 20
)

// MaxBlob is the maximum size of a blob, in bytes.
const MaxBlob = 16 << 20

// Demands describes what a bundle must prove besides being complete. The zero Demands trusts the first key in the
// bundle: then the bundle proves only that the owner of that key made it.
type Demands struct {
	Keys      []string // trusted verifier keys of the log; one of them must lead to its signatures
	Old       []byte   // an older signed checkpoint, from which the log must have grown
	Witnesses []string // verifier keys of witnesses, all of which must have signed the bundle's witnessed checkpoint
	// Each is called with each record, in order, unless it is nil. The records are only proven once VerifyBundle has
	// returned without an error.
	Each func(*Record)
}

// Verified is what a bundle proves.
type Verified struct {
	Sandbox   Sandbox
	Records   int64
	Log       Checkpoint
	Key       string      // key that signed
	Keys      Keys        // all keys of the log, or those that follow from the trusted one
	Trusted   bool        // the keys follow from one of Demands.Keys
	Grown     bool        // the log grew from Demands.Old
	Witnessed int64       // size of the log that the witnesses signed; 0 for none
	Seen      []time.Time // when each witness of Demands signed
	Blobs     int         // number of captures in the bundle
	Absent    []string    // captures that are no longer kept
	First     time.Time   // time of the first record
	Last      time.Time   // time of the last record
}

// VerifyBundle reads a bundle of size bytes and checks all of it. It uses bounded memory for any bundle. An error of
// kind Corrupt describes what is invalid; if that is a record, its cause is a Misfit for the first such record.
func VerifyBundle(ctx context.Context, r io.ReaderAt, size int64, d Demands) (*Verified, error) {
	b, err := openBundle(r, size, d.Keys)
	if err != nil {
		return nil, err
	}
	v := &Verified{Sandbox: b.Sandbox, Records: b.Records, Key: b.key, Keys: b.keys, Trusted: len(d.Keys) > 0,
		Absent: b.Absent}
	if v.Log, err = b.checkpoint(); err != nil {
		return nil, err
	}
	if err := b.records(ctx, v, d.Each); err != nil {
		return nil, err
	}
	if err := b.sums(ctx, v); err != nil {
		return nil, err
	}
	if err := b.grown(v, d.Old); err != nil {
		return nil, err
	}
	return v, b.witnessed(v, d.Witnesses)
}

// bundle is a bundle whose manifest is signed and whose files are where the manifest says.
type bundle struct {
	*Manifest
	keys  Keys
	key   string // key that signed the manifest
	files map[string]*io.SectionReader
	blobs map[string]bool // names of the blobs in the bundle and of those listed as absent
}

func openBundle(r io.ReaderAt, size int64, trusted []string) (*bundle, error) {
	a := &archive{r: r, size: size}
	f, err := a.next(FileManifest, -1)
	if err != nil {
		return nil, err
	}
	signed, err := small(f, FileManifest, maxManifest)
	if err != nil {
		return nil, err
	}
	text, _, _ := strings.Cut(string(signed), "\n\n")
	b := &bundle{files: map[string]*io.SectionReader{}, blobs: map[string]bool{}}
	if b.Manifest, err = ParseManifest(text + "\n"); err != nil {
		return nil, err
	}
	for _, f := range b.Files {
		if b.files[f.Name], err = a.next(f.Name, f.Bytes); err != nil {
			return nil, err
		}
		b.blobs[strings.TrimPrefix(f.Name, blobsPrefix)] = strings.HasPrefix(f.Name, blobsPrefix)
	}
	for _, name := range b.Absent {
		b.blobs[name] = true
	}
	if err := a.end(); err != nil {
		return nil, err
	}
	text, err = b.small(FileKeys, maxKeys)
	if err != nil {
		return nil, err
	}
	if b.keys, err = ParseKeys([]byte(text)); err != nil {
		return nil, err
	}
	if len(trusted) > 0 {
		if b.keys, err = b.keys.Trusting(trusted); err != nil {
			return nil, err
		}
	}
	if _, b.key, err = b.keys.Open(signed, b.Size); err != nil {
		return nil, err
	}
	if b.Origin != b.keys.Origin() {
		return nil, fault.New(fault.Corrupt, "the bundle is of %.80q, but its keys are of %.80q", b.Origin, b.keys.Origin())
	}
	return b, nil
}

// small reads a file of a bundle that must not be large; "" if it does not exist.
func (b *bundle) small(name string, most int64) (string, error) {
	f := b.files[name]
	if f == nil {
		return "", nil
	}
	all, err := small(f, name, most)
	return string(all), err
}

func small(f *io.SectionReader, name string, most int64) ([]byte, error) {
	if f.Size() > most {
		return nil, fault.New(fault.Corrupt, "%s of a bundle has %d bytes, more than the limit of %d", name, f.Size(), most)
	}
	return io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
}

func (b *bundle) checkpoint() (Checkpoint, error) {
	msg, err := b.small(FileCheckpoint, maxCheckpoint)
	if err != nil {
		return Checkpoint{}, err
	}
	c, err := b.keys.Checkpoint([]byte(msg))
	if err == nil && c.Size != b.Size {
		err = fault.New(fault.Corrupt, "the bundle is of log size %d, but its checkpoint of %d", b.Size, c.Size)
	}
	return c, err
}

// records follows the chain of the records and checks the root of the tree.
func (b *bundle) records(ctx context.Context, v *Verified, each func(*Record)) error {
	chain, lines := NewChain(b.Sandbox), NewAhead(NewLines(b.files[FileRecords]).Next)
	leaf := func() (*Leaf, error) {
		line, err := lines.Next()
		switch {
		case err == io.EOF: //nolint:errorlint // what Lines gives at the end is io.EOF itself
			return nil, nil
		case err != nil:
			return nil, chain.Misfit(chain.Seq+1, "cannot be read",
				fault.New(fault.Corrupt, "its line is damaged").Because(err))
		case chain.Seq%1024 == 0 && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		r, h, err := chain.Follow(line)
		if err != nil {
			return nil, err
		}
		if r.Leaf >= b.Size {
			return nil, chain.Misfit(r.Seq, "its leaf is outside the log", nil)
		}
		if err := b.named(chain, r); err != nil {
			return nil, err
		}
		if r.Seq == 1 {
			v.First = r.Time
		}
		v.Last = r.Time
		if each != nil {
			each(r)
		}
		return &Leaf{r.Leaf, h}, nil
	}
	proof := bufio.NewReaderSize(b.files[FileProof], 64<<10)
	root, err := CoverRoot(b.Size, leaf, func(int64) (h Hash, err error) {
		if _, err = io.ReadFull(proof, h[:]); err != nil {
			err = fault.New(fault.Corrupt, "the proof of the bundle is truncated").Because(err)
		}
		return h, err
	})
	if err != nil {
		return err
	}
	if last, err := leaf(); err != nil || last != nil {
		return errors.Join(err, chain.Misfit(chain.Seq, "it is after the end of the log", nil))
	}
	if chain.Seq != b.Records || chain.Head != b.Head {
		return chain.Misfit(max(min(chain.Seq, b.Records+1), 1),
			fmt.Sprintf("the last of the %d records of the bundle is not the one in its manifest", b.Records), nil)
	}
	if _, err := proof.ReadByte(); err == nil {
		return fault.New(fault.Corrupt, "the proof of the bundle has excess hashes")
	}
	if root != v.Log.Root {
		return fault.New(fault.Corrupt, "the records of %s do not match the checkpoint of the log", b.Sandbox)
	}
	return nil
}

// named checks that each capture that a record names is in the bundle or listed as absent.
func (b *bundle) named(c *Chain, r *Record) error {
	for _, name := range r.Captures() {
		if !b.blobs[name] {
			return c.Misfit(r.Seq, "it names a capture that is neither in the bundle nor listed as absent", nil)
		}
	}
	return nil
}

// sums compares every file with the manifest, and every blob with its name.
func (b *bundle) sums(ctx context.Context, v *Verified) error {
	for _, f := range b.Files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		sum, name := sha256.New(), hmac.New(sha256.New, f.Salt[:])
		from := b.files[f.Name]
		if _, err := from.Seek(0, io.SeekStart); err != nil {
			return err
		}
		to := io.Writer(sum)
		blob, isBlob := strings.CutPrefix(f.Name, blobsPrefix)
		if isBlob {
			to = io.MultiWriter(sum, name)
			v.Blobs++
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
		if Hash(sum.Sum(nil)) != f.Sum {
			return fault.New(fault.Corrupt, "%s of the bundle has been altered", f.Name)
		}
		if isBlob && Hash(name.Sum(nil)).String() != blob {
			return fault.New(fault.Corrupt, "%s of the bundle does not match its records", f.Name)
		}
	}
	return nil
}

// grown checks that the log grew from an old checkpoint to that of the bundle.
func (b *bundle) grown(v *Verified, old []byte) error {
	if len(old) == 0 {
		return nil
	}
	c, err := b.keys.Checkpoint(old)
	if err != nil {
		return fault.Wrap(err, "read the old checkpoint")
	}
	v.Grown = true
	return b.grew(c, v.Log)
}

func (b *bundle) grew(from, to Checkpoint) error {
	proofs, err := b.small(FileConsistency, maxProofs)
	if err != nil {
		return err
	}
	return Grew(from, to, proofs)
}

// witnessed checks that the log grew from a checkpoint that the witnesses signed.
func (b *bundle) witnessed(v *Verified, witnesses []string) error {
	msg, err := b.small(FileWitness, maxCheckpoint)
	if err != nil {
		return err
	}
	if msg == "" && len(witnesses) > 0 {
		return fault.New(fault.Corrupt, "no witness signed a checkpoint of this bundle")
	}
	if msg == "" {
		return nil
	}
	c, err := b.keys.Checkpoint([]byte(msg))
	if err == nil {
		err = b.grew(c, v.Log)
	}
	if err != nil {
		return fault.Wrap(err, "read the witnessed checkpoint")
	}
	for _, w := range witnesses {
		at, err := Cosigned([]byte(msg), w)
		if err != nil {
			return err
		}
		v.Witnessed, v.Seen = c.Size, append(v.Seen, at)
	}
	return nil
}

// Consistency returns the text of proofs that a log grew to size: for each old size the line `from OLD COUNT` and the
// hashes. They are read from r, as tlog does.
func Consistency(size int64, old []int64, r tlog.HashReader) ([]byte, error) {
	old = slices.Compact(slices.Sorted(slices.Values(old)))
	var b []byte
	for _, from := range old {
		if from <= 0 || from >= size {
			continue // nothing is a prefix of everything, and equal sizes are compared directly
		}
		proof, err := tlog.ProveTree(size, from, r)
		if err != nil {
			return nil, err
		}
		b = fmt.Appendf(b, "from %d %d\n", from, len(proof))
		for _, h := range proof {
			b = fmt.Appendf(b, "%s\n", Hash(h))
		}
	}
	return b, nil
}

// Grew checks that the log of one checkpoint is the beginning of that of another one, with a text of Consistency.
func Grew(from, to Checkpoint, proofs string) error {
	switch {
	case from.Size > to.Size:
		return fault.New(fault.Corrupt, "the log has %d records, fewer than %d before: it was truncated", to.Size, from.Size)
	case from.Size == to.Size && from.Root != to.Root:
		return fault.New(fault.Corrupt, "two different logs have %d records: the log was rewritten", to.Size)
	case from.Size == to.Size, from.Size == 0:
		return nil
	}
	proof, err := findProof(proofs, from.Size)
	if err != nil {
		return err
	}
	return grew(proof, from, to)
}

func findProof(proofs string, from int64) (tlog.TreeProof, error) {
	for head := fmt.Sprintf("from %d ", from); proofs != ""; {
		var line string
		if line, proofs, _ = strings.Cut(proofs, "\n"); !strings.HasPrefix(line, head) {
			continue
		}
		count := number(strings.TrimPrefix(line, head))
		if count < 0 || count > 64 {
			return nil, fault.New(fault.Corrupt, "the consistency proof from %d is damaged", from)
		}
		proof := make(tlog.TreeProof, count)
		for i := range proof {
			line, proofs, _ = strings.Cut(proofs, "\n")
			h, err := ParseHash(line)
			if err != nil {
				return nil, err
			}
			proof[i] = tlog.Hash(h)
		}
		return proof, nil
	}
	return nil, fault.New(fault.NotFound, "no consistency proof from size %d in the bundle", from).
		WithHint("export it again with that checkpoint: coppice ledger export NAME --since FILE")
}
