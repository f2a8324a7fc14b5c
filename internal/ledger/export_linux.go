package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"maps"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Export writes the bundle of a sandbox: all its records and captures, the proof that the log has them, and what a
// third party needs to check that: see format.VerifyBundle. old are sizes of checkpoints that others hold: the bundle
// proves that the log grew from them. Records may be appended meanwhile.
func (l *Ledger) Export(ctx context.Context, id format.Sandbox, w io.Writer, old ...int64) error {
	var x export
	err := l.do(ctx, "export the records of a sandbox", func() (err error) {
		if err = l.fold(); err != nil {
			return err
		}
		h, ok := l.state.heads[id]
		if !ok || h.removed {
			return fault.New(fault.NotFound, "records of %s not found", id)
		}
		c := l.checkpoint(&l.state.tree)
		x = export{ledger: l, ctx: ctx, end: h, keys: l.secrets.keys, now: c}
		x.Manifest = format.Manifest{Origin: c.Origin, Sandbox: id, Records: h.seq, Head: h.hash, Size: c.Size}
		x.checkpoint, err = l.read(fileCheckpoint)
		return err
	})
	if err == nil {
		err = x.write(w, old)
	}
	return fault.Wrap(err, "export the ledger of %s", id)
}

// export is a bundle that is being written.
type export struct {
	format.Manifest
	ledger     *Ledger
	ctx        context.Context
	end        head
	keys       format.Keys
	now        format.Checkpoint
	checkpoint []byte
	small      map[string][]byte // content of the files that are held in memory
	leaves     []int64
}

func (x *export) write(w io.Writer, old []int64) error {
	l := x.ledger
	sum, size, blobs, err := x.scan()
	if err != nil {
		return err
	}
	if err := x.proofs(old); err != nil {
		return err
	}
	for _, name := range []string{format.FileKeys, format.FileCheckpoint, format.FileWitness, format.FileConsistency,
		format.FileProof} {
		if b, ok := x.small[name]; ok {
			x.Files = append(x.Files, format.File{Name: name, Bytes: int64(len(b)), Sum: sha256.Sum256(b)})
		}
	}
	x.Files = append(x.Files, format.File{Name: format.FileRecords, Bytes: size, Sum: sum})
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		if x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
		content, salt, err := l.readBlob(x.Sandbox, name)
		switch {
		case fault.Is(err, fault.NotFound):
			x.Absent = append(x.Absent, name)
		case err != nil:
			return err
		default:
			x.Files = append(x.Files,
				format.File{Name: "blobs/" + name, Bytes: int64(len(content)), Sum: sha256.Sum256(content), Salt: salt})
		}
	}
	signed, err := x.sign()
	if err != nil {
		return err
	}
	if err := format.WriteFile(w, format.FileManifest, int64(len(signed)), bytes.NewReader(signed)); err != nil {
		return err
	}
	for _, f := range x.Files {
		if x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
		if err := x.file(w, f); err != nil {
			return err
		}
	}
	return format.WriteEnd(w)
}

// sign signs the manifest with the key of the checkpoint. If the key was rotated since, the new one may not sign for
// this size, so the bundle must be made again.
func (x *export) sign() (signed []byte, err error) {
	err = x.ledger.do(x.ctx, "sign a bundle", func() (err error) {
		if len(x.ledger.secrets.keys) != len(x.keys) {
			return fault.New(fault.Conflict, "the key was rotated during the export").WithHint("export again")
		}
		signed, err = format.Sign(x.Text(), x.ledger.secrets.signer)
		return err
	})
	return signed, err
}

func (x *export) file(w io.Writer, f format.File) error {
	if b, ok := x.small[f.Name]; ok {
		return format.WriteFile(w, f.Name, f.Bytes, bytes.NewReader(b))
	}
	if f.Name == format.FileRecords {
		r := x.reader()
		defer r.c.close()
		return format.WriteFile(w, f.Name, f.Bytes, r)
	}
	content, _, err := x.ledger.readBlob(x.Sandbox, f.Name[len("blobs/"):])
	if err != nil {
		return err
	}
	return format.WriteFile(w, f.Name, f.Bytes, bytes.NewReader(content))
}

// scan reads the records once, and returns their hash and size and the captures that they name. It collects their
// leaves.
func (x *export) scan() (sum format.Hash, size int64, blobs map[string]bool, err error) {
	c := &cursor{path: x.ledger.path, id: x.Sandbox}
	defer c.close()
	h, chain := sha256.New(), format.NewChain(x.Sandbox)
	blobs = map[string]bool{}
	for chain.Seq < x.end.seq {
		if x.ctx.Err() != nil {
			return sum, 0, nil, context.Cause(x.ctx)
		}
		line, err := c.next()
		if err != nil {
			return sum, 0, nil,
				chain.Misfit(chain.Seq+1, "cannot be read", fault.New(fault.Corrupt, "its segment is damaged").Because(err))
		}
		r, _, err := chain.Next(line)
		if err != nil {
			return sum, 0, nil, err
		}
		h.Write(line)
		h.Write([]byte{'\n'})
		size += int64(len(line)) + 1
		x.leaves = append(x.leaves, r.Leaf)
		for _, name := range r.Captures() {
			blobs[name] = true
		}
	}
	if chain.Head != x.end.hash {
		return sum, 0, nil, chain.Misfit(chain.Seq, "not the last record that was appended", nil)
	}
	return format.Hash(h.Sum(nil)), size, blobs, nil
}

// proofs makes the files of a bundle that contain proofs.
func (x *export) proofs(old []int64) error {
	l := x.ledger
	x.small = map[string][]byte{format.FileKeys: x.keys.Encode(), format.FileCheckpoint: x.checkpoint}
	witness, err := l.read(fileWitness)
	if err != nil {
		return err
	}
	if witness != nil {
		c, err := x.keys.Checkpoint(witness)
		if err != nil {
			return err
		}
		if c.Size <= x.Size { // otherwise it was added since
			x.small[format.FileWitness] = witness
			old = append(old[:len(old):len(old)], c.Size)
		}
	}
	growth, err := l.proofs(x.Size, old...)
	if err != nil {
		return err
	}
	if len(growth) > 0 {
		x.small[format.FileConsistency] = growth
	}
	file, err := l.hashes()
	if err != nil {
		return err
	}
	defer file.Close()
	proof := []byte{}
	for _, at := range format.Cover(x.Size, x.leaves) {
		if x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
		h, err := file.at(at)
		if err != nil {
			return err
		}
		proof = append(proof, h[:]...)
	}
	x.small[format.FileProof] = proof
	return nil
}

func (x *export) reader() *recordReader {
	return &recordReader{ctx: x.ctx, c: &cursor{path: x.ledger.path, id: x.Sandbox}}
}

// recordReader reads the lines of a cursor as a stream.
type recordReader struct {
	ctx  context.Context
	c    *cursor
	rest []byte
}

// Read implements io.Reader.
func (r *recordReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if r.ctx.Err() != nil {
			return 0, context.Cause(r.ctx)
		}
		line, err := r.c.next()
		if err != nil {
			return 0, err
		}
		r.rest = append(append(r.rest[:0], line...), '\n')
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
