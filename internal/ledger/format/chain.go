package format

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Misfit names the first record of a sandbox that does not fit its chain, and the reason. It is the cause of the
// error that reports it.
type Misfit struct {
	Sandbox Sandbox
	Seq     int64
	Why     string
}

// Error names the record and the reason.
func (m *Misfit) Error() string {
	return fmt.Sprintf("record %d of %s is invalid: %s", m.Seq, m.Sandbox, m.Why)
}

// Chain follows the records of one sandbox, one line after the other.
type Chain struct {
	Sandbox Sandbox
	Seq     int64 // of the last record; 0 before the first
	Head    Hash  // hash of the last record; zero before the first
	Leaf    int64 // its leaf; -1 before the first
}

// NewChain returns a chain that is positioned before the first record of a sandbox.
func NewChain(id Sandbox) *Chain { return &Chain{Sandbox: id, Leaf: -1} }

// Next checks the line of the next record, without its newline, and returns the record if it fits the previous ones.
// Otherwise the cause of the error is a Misfit, and the chain does not advance.
func (c *Chain) Next(line []byte) (*Record, Hash, error) { return c.Follow(ParseLine(line)) }

// Follow is Next for a parsed line.
func (c *Chain) Follow(p Parsed) (*Record, Hash, error) {
	if p.Err != nil {
		return nil, Hash{}, c.Misfit(c.Seq+1, "cannot be read", p.Err)
	}
	r, err := p.Record, error(nil)
	switch {
	case r.Sandbox != c.Sandbox:
		err = c.Misfit(c.Seq+1, fmt.Sprintf("it belongs to %s", r.Sandbox), nil)
	case r.Seq != c.Seq+1:
		err = c.Misfit(c.Seq+1, fmt.Sprintf("found record %d instead", r.Seq), nil)
	case r.Prev != c.Head && c.Seq == 0:
		err = c.Misfit(1, "it refers to an earlier record", nil)
	case r.Prev != c.Head:
		err = c.Misfit(c.Seq, fmt.Sprintf("it is not the predecessor of record %d", r.Seq), nil)
	case r.Leaf <= c.Leaf:
		err = c.Misfit(r.Seq, "its leaf is not after that of its predecessor", nil)
	}
	if err != nil {
		return nil, Hash{}, err
	}
	c.Seq, c.Head, c.Leaf = r.Seq, p.Hash, r.Leaf
	return r, p.Hash, nil
}

// Misfit returns the error that names a record. Its kind is that of the cause; Corrupt without a cause.
func (c *Chain) Misfit(seq int64, why string, cause error) error {
	kind := fault.Corrupt
	if cause != nil {
		kind, why = fault.KindOf(cause), why+": "+cause.Error()
	}
	m := &Misfit{c.Sandbox, seq, why}
	return &fault.Error{Kind: kind, Err: m, Hint: fault.HintOf(cause)}
}

// Lines reads lines that end with a newline and are at most as long as a record.
type Lines struct{ r *bufio.Reader }

// NewLines returns the lines of r.
func NewLines(r io.Reader) *Lines { return &Lines{bufio.NewReaderSize(r, MaxLine+1)} }

// Next returns the next line without its newline; it is valid until the next call. It returns io.EOF at the
// end of the input, and io.ErrUnexpectedEOF if that is within a line.
func (l *Lines) Next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	switch {
	case err == nil:
		return bytes.TrimSuffix(line, []byte{'\n'}), nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fault.New(fault.Corrupt, "line exceeds %d bytes", MaxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err
}
