package ledger

import (
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// maxSegment is the maximum size of an uncompressed segment, in bytes.
const maxSegment = 1 << 30

// cursor iterates over the lines of one sandbox's segments, also while they are written. The caller closes it.
type cursor struct {
	path  string // of the ledger
	id    format.Sandbox
	first int64 // of the current segment; 0 before the first one
	at    int64 // offset of the next line in the segment
	f     *os.File
	lines *format.Lines
	again bool // the end was reached, and there was a next segment
}

// segments lists the numbers of the first records of all segments, in order.
func segments(path string, id format.Sandbox) ([]int64, error) {
	names, err := os.ReadDir(filepath.Join(path, dirSandboxes, string(id)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []int64
	for _, e := range names {
		if n := firstOf(e.Name()); n > 0 && !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), err
}

// skip continues at the segment that has the record numbered seq.
func (c *cursor) skip(seq int64) error {
	all, err := segments(c.path, c.id)
	if err != nil {
		return err
	}
	i, found := slices.BinarySearch(all, seq)
	if !found && i > 0 {
		i--
	}
	if i < len(all) {
		return c.open(all[i])
	}
	return nil
}

func (c *cursor) open(first int64) error {
	c.close()
	c.first, c.at = first, 0
	name := segment(c.id, first)
	f, err := openAt(c.path, name, os.O_RDONLY)
	if err == nil {
		c.f, c.lines = f, format.NewLines(f)
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f, err = openAt(c.path, strings.TrimSuffix(name, plainEnd)+archiveEnd, os.O_RDONLY); err != nil {
		return err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	c.f, c.lines = f, format.NewLines(io.LimitReader(z, maxSegment))
	return nil
}

// next returns the next line without its newline; it is valid until the next call. It returns io.EOF at the end of
// the present content, also within a line that is being written; a later call may return more.
func (c *cursor) next() ([]byte, error) {
	for {
		if c.lines != nil {
			line, err := c.lines.Next()
			if err == nil {
				c.at += int64(len(line)) + 1
				c.again = false
				return line, nil
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, err
			}
		}
		more, err := c.later()
		if err != nil {
			return nil, err
		}
		if !more {
			return nil, io.EOF
		}
	}
}

// later continues at the end of a segment: it reads the segment again from where it ended, since records may have
// been appended before the next segment was created, and then opens the next one.
func (c *cursor) later() (bool, error) {
	all, err := segments(c.path, c.id)
	if err != nil {
		return false, err
	}
	i, found := slices.BinarySearch(all, c.first)
	if found {
		i++
	}
	behind := i < len(all)
	switch {
	case c.f == nil && behind:
		return true, c.open(all[i])
	case c.f == nil:
		return false, nil
	case behind && c.again:
		c.again = false
		return true, c.open(all[i])
	}
	c.again = behind
	if strings.HasSuffix(c.f.Name(), archiveEnd) {
		return behind, nil
	}
	if _, err := c.f.Seek(c.at, io.SeekStart); err != nil {
		return false, err
	}
	c.lines = format.NewLines(c.f)
	return behind, nil
}

func (c *cursor) close() {
	if c.f != nil {
		c.f.Close()
	}
	c.f, c.lines, c.again = nil, nil, false
}
