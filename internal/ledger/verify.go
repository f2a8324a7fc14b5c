package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Proven is the result of Verify.
type Proven struct {
	Records int64             // number of records of the sandbox, all verified
	Log     format.Checkpoint // log that contains them
	Grown   bool              // the log grew from the given old checkpoint
}

// Verify checks that the records of a sandbox are exactly those that were appended, in order, and that the log has
// them. With an old checkpoint, it also checks that the log only grew since; with keys, that the log's keys follow
// from one of them. An error of kind Corrupt describes what is invalid; if that is a record, its cause is a
// format.Misfit for the first such record. Records may be appended meanwhile.
func (r Reader) Verify(ctx context.Context, id format.Sandbox, trusted []string, old []byte) (*Proven, error) {
	if !id.Valid() {
		return nil, fault.New(fault.Invalid, "invalid sandbox %.80q", string(id))
	}
	v, err := r.view(trusted)
	if err != nil {
		return nil, fault.Wrap(err, "verify the ledger of %s", id)
	}
	return r.verify(ctx, id, v, old)
}

// VerifyEach is Verify for many sandboxes. It reads the signed files only once. It calls fn with each result, until
// fn returns an error, which it returns.
func (r Reader) VerifyEach(
	ctx context.Context, ids []format.Sandbox, fn func(format.Sandbox, *Proven, error) error,
) error {
	v, err := r.view(nil)
	if err != nil {
		return fault.Wrap(err, "verify the ledger")
	}
	for _, id := range ids {
		p, err := r.verify(ctx, id, v, nil)
		if err := fn(id, p, err); err != nil {
			return err
		}
	}
	return nil
}

// verify is Verify in a view.
func (r Reader) verify(ctx context.Context, id format.Sandbox, v view, old []byte) (_ *Proven, err error) {
	if v.heads[id].removed {
		err = fault.New(fault.NotFound, "the records were removed, as recorded by %s", format.Host)
	}
	if err == nil {
		err = r.fits(ctx, id, v)
	}
	p := &Proven{Records: v.heads[id].seq, Log: v.now}
	if err == nil && len(old) > 0 {
		p.Grown = true
		err = r.grew(v, old)
	}
	if err != nil {
		return nil, fault.Wrap(err, "verify the ledger of %s", id)
	}
	return p, nil
}

// view is the signed state of a ledger.
type view struct {
	keys    format.Keys
	flushed format.Checkpoint // its hashes are all stored
	now     format.Checkpoint // including the records that only the intake has
	heads   map[format.Sandbox]head
	lines   map[int64][]byte // of the intake, by leaf, from flushed on
}

// view reads the intake, and then the flushed state: if a fold happens in between, the intake is the older one, and
// parts of it are ignored.
func (r Reader) view(trusted []string) (v view, err error) {
	for range 4 {
		if v, err = r.viewOnce(trusted); err == nil {
			return v, nil
		}
	}
	return v, err
}

func (r Reader) viewOnce(trusted []string) (v view, err error) {
	intake, err := readFile(r.root, fileIntake)
	if err != nil {
		return v, err
	}
	signed, err := readFile(r.root, fileHeads)
	if err != nil {
		return v, err
	}
	if v.keys, err = r.Keys(); err != nil {
		return v, err
	}
	if len(trusted) > 0 {
		if v.keys, err = v.keys.Trusting(trusted); err != nil {
			return v, err
		}
	}
	ends, err := openHeads(signed, v.keys)
	if err != nil {
		return v, err
	}
	file, err := r.hashes()
	if err != nil {
		return v, err
	}
	defer file.Close()
	s := state{heads: ends.all}
	if s.tree, err = file.tree(ends.at); err != nil {
		return v, err
	}
	batches, _, err := parseIntake(intake)
	if err != nil {
		return v, err
	}
	v.flushed, v.now, v.lines = ends.at, ends.at, map[int64][]byte{}
	for _, b := range batches {
		leaf := s.tree.Size()
		p, err := replay(&s, v.keys, b)
		if err != nil {
			return v, err
		}
		if p == nil {
			continue
		}
		for i, e := range b.entries {
			v.lines[leaf+int64(i)] = e.line
		}
		s.took(p)
	}
	v.now.Size, v.now.Root = s.tree.Size(), s.tree.Root()
	v.heads = s.heads
	return v, nil
}

// fits checks the records of a sandbox up to the end of its chain, and the tree up to its root.
func (r Reader) fits(ctx context.Context, id format.Sandbox, v view) error {
	file, err := r.hashes()
	if err != nil {
		return err
	}
	defer file.Close()
	c := &cursor{path: r.root, id: id}
	defer c.close()
	w := &walk{ctx: ctx, view: v, lines: c, hashes: file, end: v.heads[id], chain: format.NewChain(id)}
	w.ahead = format.NewAhead(w.stored)
	root, err := format.CoverRoot(v.flushed.Size, w.leaf, file.at)
	if err != nil {
		return err
	}
	if root != v.flushed.Root {
		return fault.New(fault.Corrupt, "log/hashes of the ledger does not match its checkpoint of size %d",
			v.flushed.Size)
	}
	for w.chain.Seq < w.end.seq {
		if _, err := w.next(); err != nil {
			return err
		}
	}
	if w.chain.Head != w.end.hash {
		return w.chain.Misfit(w.chain.Seq, "not the last record that was appended", nil)
	}
	return r.nothingBehind(w)
}

// nothingBehind returns an error unless all further records were appended after the view was read, so that a newer
// view has them.
func (r Reader) nothingBehind(w *walk) error {
	line, err := w.lines.next()
	for len(w.taken) > 0 && err == nil && bytes.Equal(line, w.taken[0]) {
		w.taken = w.taken[1:]
		line, err = w.lines.next()
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return w.chain.Misfit(w.chain.Seq+1, "cannot be read", err)
	}
	newer, err := r.view(nil)
	if err != nil {
		return err
	}
	if newer.heads[w.chain.Sandbox].seq <= w.chain.Seq {
		return w.chain.Misfit(w.chain.Seq+1, "it was never appended", nil)
	}
	return nil
}

// walk iterates over the records of a sandbox.
type walk struct {
	ctx    context.Context
	view   view
	lines  *cursor
	ahead  *format.Ahead // of lines
	read   int64         // number of lines read
	hashes *stored
	end    head
	chain  *format.Chain
	taken  [][]byte // lines that were taken from the intake
}

// leaf returns the next flushed record, as CoverRoot needs it.
func (w *walk) leaf() (*format.Leaf, error) {
	if w.chain.Seq >= w.end.seq {
		return nil, nil
	}
	leaf, err := w.next()
	if err != nil || leaf.At >= w.view.flushed.Size {
		return nil, err
	}
	return leaf, nil
}

// next returns the next record, which must be the one that the log has at its leaf.
func (w *walk) next() (*format.Leaf, error) {
	seq := w.chain.Seq + 1
	if seq%1024 == 0 && w.ctx.Err() != nil {
		return nil, context.Cause(w.ctx)
	}
	line, err := w.line(seq)
	if err != nil {
		return nil, w.chain.Misfit(seq, "cannot be read", fault.New(fault.Corrupt, "its segment is damaged").Because(err))
	}
	rec, h, err := w.chain.Follow(line)
	if err != nil {
		return nil, err
	}
	if rec.Leaf >= w.view.now.Size {
		return nil, w.chain.Misfit(seq, "its leaf is beyond the end of the log", nil)
	}
	want, err := w.at(rec.Leaf)
	if err == nil && want != h {
		err = w.chain.Misfit(seq, fmt.Sprintf("the log has another record at leaf %d", rec.Leaf), nil)
	}
	return &format.Leaf{At: rec.Leaf, Hash: h}, err
}

func (w *walk) at(leaf int64) (format.Hash, error) {
	if line, ok := w.view.lines[leaf]; ok {
		return format.HashLine(line), nil
	}
	return w.hashes.at(tlog.StoredHashIndex(0, leaf))
}

// line returns the line of a record. After it first reached the end of the segments, it only takes lines from the
// intake, since the segments may grow meanwhile.
func (w *walk) line(seq int64) (format.Parsed, error) {
	if len(w.taken) == 0 {
		if line, err := w.ahead.Next(); !errors.Is(err, io.EOF) {
			return line, err
		}
	}
	line, err := w.pending(seq)
	if err != nil {
		return format.Parsed{}, err
	}
	w.taken = append(w.taken, line)
	return format.ParseLine(line), nil
}

// stored returns the next line of the segments, up to the end of the chain in the view.
func (w *walk) stored() ([]byte, error) {
	if w.read == w.end.seq {
		return nil, io.EOF
	}
	line, err := w.lines.next()
	if err == nil {
		w.read++
	}
	return line, err
}

// pending returns the line of a record that only the intake has.
func (w *walk) pending(seq int64) ([]byte, error) {
	for leaf := max(w.chain.Leaf+1, w.view.flushed.Size); leaf < w.view.now.Size; leaf++ {
		r, err := format.Parse(w.view.lines[leaf])
		if err == nil && r.Sandbox == w.chain.Sandbox && r.Seq == seq {
			return w.view.lines[leaf], nil
		}
	}
	return nil, fault.New(fault.Corrupt, "missing")
}

// grew checks that the log grew from an old checkpoint.
func (r Reader) grew(v view, old []byte) error {
	c, err := v.keys.Checkpoint(old)
	if err != nil {
		return fault.Wrap(err, "read the old checkpoint")
	}
	file, err := r.hashes()
	if err != nil {
		return err
	}
	defer file.Close()
	var proofs []byte
	if c.Size < v.flushed.Size {
		if proofs, err = format.Consistency(v.flushed.Size, []int64{c.Size}, file); err != nil {
			return err
		}
	}
	return format.Grew(c, v.flushed, string(proofs))
}
