package format

import (
	"bytes"
	"fmt"
	"io"

	"github.com/coppice-dev/coppice/internal/fault"
)

// A bundle is a tar archive whose bytes are determined by its files: headers of POSIX ustar with fixed
// fields, padding of zeros, two blocks of zeros at the end.
const (
	block   = 512
	maxFile = 1<<33 - 1 // largest number of eleven octal digits
)

// tarHeader returns the header of a file. The name must be short ASCII.
func tarHeader(name string, size int64) []byte {
	b := make([]byte, block)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x0000000000000\x00        0", size))
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func padding(size int64) int64 { return (block - size%block) % block }

// WriteFile writes one file of a bundle, with exactly size bytes of r.
func WriteFile(w io.Writer, name string, size int64, r io.Reader) error {
	if size > maxFile {
		return fault.New(fault.Unsupported,
			"%s has %d bytes, more than a bundle file's limit of %d", name, size, int64(maxFile))
	}
	if _, err := w.Write(tarHeader(name, size)); err != nil {
		return err
	}
	if _, err := io.CopyN(w, r, size); err != nil {
		return err
	}
	_, err := w.Write(make([]byte, padding(size)))
	return err
}

// WriteEnd writes the end of a bundle.
func WriteEnd(w io.Writer) error {
	_, err := w.Write(make([]byte, 2*block))
	return err
}

// archive reads a bundle in place.
type archive struct {
	r    io.ReaderAt
	size int64
	at   int64 // offset of the next file
}

// next returns the next file. It must have this name and, unless size is -1, this size.
func (a *archive) next(name string, size int64) (*io.SectionReader, error) {
	head := make([]byte, block)
	if _, err := a.r.ReadAt(head, a.at); err != nil {
		return nil, torn(name, err)
	}
	if size < 0 {
		if _, err := fmt.Sscanf(string(head[124:135]), "%o", &size); err != nil {
			return nil, fault.New(fault.Corrupt, "not a ledger bundle")
		}
	}
	end := a.at + block + size + padding(size)
	if !bytes.Equal(head, tarHeader(name, size)) {
		return nil, fault.New(fault.Corrupt, "%s is out of order in the bundle", name)
	}
	if end > a.size {
		return nil, torn(name, io.ErrUnexpectedEOF)
	}
	if err := a.zeros(a.at+block+size, end); err != nil {
		return nil, err
	}
	f := io.NewSectionReader(a.r, a.at+block, size)
	a.at = end
	return f, nil
}

// end returns an error unless only the end of a tar archive follows.
func (a *archive) end() error {
	if a.size != a.at+2*block {
		return fault.New(fault.Corrupt, "trailing data after the last file of the bundle")
	}
	return a.zeros(a.at, a.size)
}

func (a *archive) zeros(from, to int64) error {
	b := make([]byte, to-from)
	if _, err := a.r.ReadAt(b, from); err != nil && to > from {
		if err != io.EOF || a.size != to {
			return torn("padding", err)
		}
	}
	if len(bytes.Trim(b, "\x00")) > 0 {
		return fault.New(fault.Corrupt, "nonzero padding in the bundle")
	}
	return nil
}

func torn(name string, err error) error {
	return fault.New(fault.Corrupt, "the bundle is truncated in %s", name).Because(err)
}
